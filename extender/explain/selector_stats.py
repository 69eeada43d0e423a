"""Statistics of selectors: for each && term, how many devices of the fleet pass, and which values the others have."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import chain

from extender.allocation import NodeInfo, Snapshot
from extender.api.quantity import parse_quantity
from extender.api.resource_slices import Device, Slice
from extender.api.semver import parse_semver
from extender.base.text_limits import counted, one_line
from extender.cel import CelError, CompileError
from extender.cel.dra import Selector, evaluated
from extender.cel.dra.terms import constants_of, left_side, observed_value, term_for
from extender.scheduling import EvaluationContext, PodRequirements, similar_names

_MAX_SHOWN = 3
_CLOSE_RATIO = 0.8  # the least ratio of difflib by which a text without a model is a mistyped one
_SIZE = re.compile("[0-9]+[kmgt]i?b")  # such as 80gb, which many products have
_MAX_VALUES = 256  # distinct values that are counted
_KINDS = {"attributes": "attribute", "capacity": "capacity"}
_MAX_EXPRESSION = 512  # bytes of an expression to copy, which must not be cut
_SEMVER_PART = 1 << 64  # above every number of a version
_DEFAULTS = {"string": '""', "int": "0", "bool": "false", "version": 'semver("0.0.0")'}  # by type of attribute, in CEL


@dataclass(frozen=True, slots=True)
class Renamed:
    """An attribute or capacity that no device has, and the one that was meant. Both names are without their domain if
    it is the same."""

    kind: str  # attribute or capacity
    absent: str
    known: str
    term: TermStats  # the term with the known name

    @property
    def remedy(self) -> tuple[str, int] | None:
        """A term that matches devices, and how many."""
        return _copied((self.term.term, self.term.passed)) if self.term.suffices else self.term.remedy

    def sentence(self, asked: int) -> str:
        """What was meant, with an expression to copy, or else with the values that the devices have."""
        absent, known = one_line(self.absent), one_line(self.known)
        found = f"none of {counted(asked, 'device')} has the {self.kind} {absent}; they have {known}"
        if self.remedy is not None:
            return f"{found}: `{self.remedy[0]}` matches {self.remedy[1]}"
        values = self.term.values()
        return f"{found}: {values}" if values else found


@dataclass(slots=True)
class Needs:
    """How many devices a request needs on one node: a term that matches fewer is no remedy."""

    slices: Sequence[Slice]
    count: int = 1
    _places: dict[int, object] = field(default_factory=dict)  # the node of each device, or its pool

    def are_met_by(self, devices: Devices) -> bool:
        """Whether so many of the devices are on one node."""
        found = list(chain.from_iterable(devices.values()))
        if self.count <= 1 or len(found) < self.count:
            return len(found) >= self.count
        if not self._places:
            self._places = {
                id(device): one.selection.node_name or one.pool for one in self.slices for device in one.devices
            }
        return max(Counter(self._places[id(device)] for device in found).values()) >= self.count


@dataclass(slots=True)
class TermStats:
    """The result of one && term on the devices that passed the terms before it."""

    source: str  # 'class gpu.example.com' or 'request gpu'
    term: str
    asked: int = 0  # devices that reached this term
    passed: int = 0
    failed: int = 0  # devices on which the term has no value
    instead: Counter[str] = field(default_factory=Counter)  # values of the devices that did not pass, with counts
    # Attribute or capacity that the term reads, to the number of devices that have it.
    published: dict[str, int] = field(default_factory=dict)
    similar: str = ""  # attributes of the devices with the names of those that none publishes, as text
    problem: str = ""  # the compile error; then no device was evaluated
    examples: dict[str, tuple[Device, str]] = field(default_factory=dict)  # value to its first device, and the driver
    wanted: list[str] = field(default_factory=list)  # what the term compares these values with
    remedy: tuple[str, int] | None = None  # a term for the nearest of these values, and how many devices it matches
    renamed: Renamed | None = None
    lacking: tuple[str, str] | None = None  # the first device on which the term fails, and the path that it lacks
    defaults: dict[str, str] = field(default_factory=dict)  # path to a neutral value of the type that devices have
    needs: Needs = field(default_factory=lambda: Needs(()))
    observes: bool = True  # whether the values of devices that do not pass are kept
    suffices: bool = False  # whether some node has as many devices that pass as the request needs

    def sentence(self) -> str:
        """The result as a sentence for users."""
        if self.problem:
            return f"{self.source}: `{one_line(self.term)}` does not compile: {one_line(self.problem)}"
        if self.renamed is not None:
            return f"{self.source}: {self.renamed.sentence(self.asked)}"
        others = self.values()
        asked = counted(self.asked, "device")
        missing = [name for name, count in self.published.items() if not count]
        found = f"{self.source}: `{one_line(self.term)}` matches {self.passed or 'none'} of {asked}"
        if others:
            found += f"; {others}"
        if self.remedy is not None:
            found += f"; `{self.remedy[0]}` matches {self.remedy[1]}"
        if missing:
            found += "; " + ", ".join(f"`{one_line(name)}` is published by 0 of {asked}" for name in missing)
            found += self.similar
        elif self.failed:
            found += f"; it has no value on {self.failed}"
        if self.lacking is not None and not missing:
            found += f": {self._default(*self.lacking)}"
        return found

    def nearest(self) -> list[tuple[str, int]]:
        """Values of devices that did not pass with their numbers: the nearest first, of equally near the most frequent
        first."""
        return sorted(self.instead.items(), key=lambda one: (_distance(self.wanted, one[0]), -one[1], one[0]))[
            :_MAX_SHOWN
        ]

    def values(self) -> str:
        """The nearest values with their numbers, as text."""
        return ", ".join(f"{counted(count, 'has', 'have')} {one_line(value)}" for value, count in self.nearest())

    @property
    def fails(self) -> bool:
        """Whether no device passes the term, or it has no value on some. A term that no device reached does not."""
        return bool(self.problem or (self.asked and (self.failed or not self.passed)))

    @property
    def has_advice(self) -> bool:
        """Whether the sentence says what to write instead."""
        return bool(self.remedy or self.renamed or self.similar or self.lacking)

    def _default(self, device: str, path: str) -> str:
        """How the term can allow for devices that lack the attribute or capacity of this path."""
        kind, _, name = path.partition(":")
        domain, _, short = one_line(name).rpartition("/")
        of, default = f'device.{kind}["{domain}"]', self.defaults.get(path, "")
        ways = [f"write {of}.?{short}.orValue({default})"] if default else []
        advice = ", or ".join([*ways, f'check "{short}" in {of} first'])
        return f"device {one_line(device)} lacks {short}, and one such device can make its node unusable; {advice}"


Devices = dict[tuple[str, int], list[Device]]
"""Devices by (driver, weight). Each device counts as `weight` devices.

The weight is in the key and not beside each device: 40,000 new tuples would start the garbage collector.
"""


NodeSample = tuple[NodeInfo, int]
"""One node with an attribute signature, and the number of nodes with it."""


def selector_stats(
    requirements: PodRequirements,
    snapshot: Snapshot,
    samples: Collection[NodeSample] | None,
    context: EvaluationContext,
) -> list[TermStats]:
    """The statistics of all selectors, in the order of their evaluation.

    A term that no device reaches is not evaluated, and a selector that no device reaches is left out.

    `samples` has one node per attribute signature; the term results of its devices then count for all nodes with it.
    It is None if the requirements read an identity; then all nodes are evaluated. Raises DeadlineExceeded.
    """
    devices: Devices = {}
    slices = list(_slices(snapshot, samples))
    for slice_, weight in slices:
        devices.setdefault((slice_.pool.driver, weight), []).extend(slice_.devices)
    findings: list[TermStats] = []
    for source, expressions, count in _sources(requirements):
        remaining, needs = devices, Needs([slice_ for slice_, _ in slices], count)
        for expression in expressions:
            if not any(remaining.values()):
                break
            selector = context.masks.selector(expression, context.deadline)
            if isinstance(selector, CompileError):
                findings.append(TermStats(source, expression, problem=str(selector)))
                break
            for term in selector.terms:
                findings.append(TermStats(source, term, needs=needs))
                if any(remaining.values()):
                    remaining = _passing(findings[-1], remaining, context)
    return findings


def failing_terms(requirements: PodRequirements, snapshot: Snapshot, context: EvaluationContext) -> list[str]:
    """The selector terms that fail on devices without an attribute or capacity, as sentences with a remedy.

    Raises DeadlineExceeded.
    """
    found = selector_stats(requirements, snapshot, None, context)
    return [term.sentence() for term in found if term.failed and (term.passed or term.lacking is not None)]


def _passing(finding: TermStats, devices: Devices, context: EvaluationContext) -> Devices:
    """Count the devices that pass the term, and return them."""
    selector = context.masks.selector(finding.term, context.deadline)
    if isinstance(selector, CompileError):  # the term is valid only as part of the whole expression
        count = sum(weight * len(some) for (_, weight), some in devices.items())
        finding.asked, finding.passed = count, count
        return devices
    left = _measured(finding, selector, devices, context)
    for path, _ in _reads(selector) or ():
        kind, _, name = path.partition(":")
        if kind in _KINDS and not finding.published.get(name.rpartition("/")[2]):
            meant, finding.similar = _meant(finding, path, devices, context)
            if not finding.passed and finding.renamed is None:
                finding.renamed = meant
    return left


def _measured(finding: TermStats, selector: Selector, devices: Devices, context: EvaluationContext) -> Devices:
    """Count the devices that pass the term, which are returned; if none does, find a term that some do."""
    left = _count(finding, selector, devices, context)
    finding.suffices = finding.needs.are_met_by(left)
    if not finding.passed:
        finding.wanted = constants_of(finding.term)
        finding.remedy = _remedy(finding, devices, context)
    return left


def _remedy(finding: TermStats, devices: Devices, context: EvaluationContext) -> tuple[str, int] | None:
    """A term that matches the devices with the nearest value for which there is one, and how many it matches."""
    if not finding.wanted:
        return None
    for value, _ in finding.nearest():
        device, driver = finding.examples[value]
        term = term_for(finding.term, context.masks.dialect, device, driver, context.deadline)
        if not term or (" == " in term and not _is_near(finding.wanted, value)):
            continue
        selector = context.masks.selector(term, context.deadline)
        if isinstance(selector, CompileError):
            continue
        found = TermStats("", term, observes=False)
        matched = _count(found, selector, devices, context)
        if finding.needs.are_met_by(matched):
            return _copied((term, found.passed))
    return None


def _copied(remedy: tuple[str, int]) -> tuple[str, int] | None:
    """The remedy if a user can copy its expression: if it is short and printable."""
    return remedy if one_line(remedy[0], _MAX_EXPRESSION) == remedy[0] else None


# -- which of the attributes and capacities is meant ---------------------------------------------------------------


def _meant(finding: TermStats, path: str, devices: Devices, context: EvaluationContext) -> tuple[Renamed | None, str]:
    """What the devices have instead of an attribute or capacity that none has: the best as a term, and all as text.

    Names that are alike do not suffice: `model == "H100"` means no number, such as numaNode.
    """
    kind, _, name = path.partition(":")
    wanted, published = constants_of(finding.term), _published(kind, devices)
    known = _texts_near(wanted, devices)[:_MAX_SHOWN] if kind == "attributes" else []
    terms: list[Renamed] = []
    names: list[str] = []
    for full in dict.fromkeys([*similar_names(name, published), *known]):
        if not _is_of_type(wanted, published[full]):
            continue
        names.append(full)
        domain, _, short = name.rpartition("/")
        of, _, other = full.rpartition("/")
        read = rf"(device\.{kind}\[)([\"']){re.escape(domain)}\2(\]\.\??|\]\[[\"']){re.escape(short)}\b"
        changed, count = re.subn(read, rf"\g<1>\g<2>{of}\g<2>\g<3>{other}", finding.term)
        selector = context.masks.selector(changed, context.deadline) if count else None
        if isinstance(selector, Selector):
            term = TermStats(finding.source, changed, needs=finding.needs)
            _measured(term, selector, devices, context)
            terms.append(Renamed(_KINDS[kind], *((short, other) if of == domain else (name, full)), term))
    terms.sort(key=lambda one: one.remedy is None)
    return terms[0] if terms else None, f" (they have {', '.join(names)})" if names else ""


def _published(kind: str, devices: Devices) -> dict[str, set[str]]:
    """The attributes or capacities of devices, as DOMAIN/ID, with the types of their values."""
    found: dict[str, set[str]] = {}
    if kind == "attributes":
        for schema in {device.attributes.schema for some in devices.values() for device in some}:
            for name, value_type in zip(schema.names, schema.value_types, strict=True):
                found.setdefault(name, set()).add(value_type)
        return found
    capacities = {(driver, name) for (driver, _), some in devices.items() for one in some for name in one.capacity}
    return {name if "/" in name else f"{driver}/{name}": {"quantity"} for driver, name in capacities}


def _texts_near(wanted: Sequence[str], devices: Devices) -> list[str]:
    """The attributes, as DOMAIN/ID, that have a text with the words of a wanted one."""
    sought = [words for one in wanted if (words := set(_words(one))) and not one.isdigit()]
    found: set[tuple[str, object]] = set()
    for device in chain.from_iterable(devices.values()) if sought else ():
        schema, values = device.attributes.schema, device.attributes.values_
        found.update((schema.names[i], values[i]) for i in schema.shared if schema.value_types[i] == "string")
    near = {name for name, value in found if any(words <= set(_words(str(value))) for words in sought)}
    return sorted(near)


def _is_of_type(wanted: Sequence[str], types: Iterable[str]) -> bool:
    """Whether values of these types can be what a term wants: a text that is no number is never a number."""
    return (
        not wanted or any(_number(one) is not None for one in wanted) or any(one.startswith("string") for one in types)
    )


# -- which of the values is meant ----------------------------------------------------------------------------------


def _words(text: str) -> list[str]:
    return re.findall("[a-z0-9]+", text.casefold())


def _model(text: str) -> str:
    """The word by which a product differs from others, such as 't4' of 'Tesla T4'; '' without one."""
    return next((one for one in _words(text) if not one.isalpha() and not _SIZE.fullmatch(one)), "")


def _nanos(text: str) -> int | None:
    try:
        return parse_quantity(text).nanos
    except ValueError:
        return None


def _number(text: str) -> int | None:
    """The order of an amount or a version among others; None for any other text."""
    if (nanos := _nanos(text)) is not None:
        return nanos
    try:
        version = parse_semver(text)
    except ValueError:
        return None
    return (version.major * _SEMVER_PART + version.minor) * _SEMVER_PART + version.patch


def _is_near(wanted: Iterable[str], value: str) -> bool:
    """Whether a user who wrote one of the wanted texts or amounts can mean this value, as observed_value shows it."""
    for one in wanted:
        if not value.startswith("'"):
            amount, own = _nanos(one), _nanos(value)
            if amount is not None and own is not None and abs(own - amount) * 10 <= abs(amount):
                return True
        elif model := _model(one):
            if model in _words(value):
                return True
        elif one and (one.casefold() in value.casefold() or _likeness(one, value) >= _CLOSE_RATIO):
            return True
    return False


def _likeness(wanted: str, value: str) -> float:
    return SequenceMatcher(None, wanted.casefold(), value.strip("'").casefold(), autojunk=False).ratio()


def _distance(wanted: Sequence[str], value: str) -> tuple[bool, float]:
    """Sorts values by their nearness to what a term wants."""
    if not wanted:
        return False, 0
    if value.startswith("'"):
        return not _is_near(wanted, value), -max(_likeness(one, value) for one in wanted)
    own = _number(value)
    amounts = [amount for one in wanted if (amount := _number(one)) is not None]
    return False, min((abs(own - amount) for amount in amounts), default=0) if own is not None else 0


def _sources(requirements: PodRequirements) -> Iterator[tuple[str, list[str], int]]:
    """The expressions of each distinct request, in the order of their evaluation, and the devices that it needs."""
    found: dict[tuple[str, ...], tuple[str, int]] = {}
    for spec in requirements.specs:
        for request in spec.requests:
            for option in request.alternatives:
                class_ = requirements.classes.get(option.class_name)
                texts = (*(class_.selectors if class_ else ()), *option.selectors)
                source, least = found.get(texts, (f"request {option.name} (class {option.class_name})", option.count))
                found[texts] = source, min(least, option.count)
    yield from ((source, list(texts), max(count, 1)) for texts, (source, count) in found.items())


def _slices(snapshot: Snapshot, samples: Collection[NodeSample] | None) -> Iterator[tuple[Slice, int]]:
    """Slices with weights: slices of one node with the weight of its sample, all other slices once with weight 1."""
    shared = False
    for node_info, nodes in (
        samples if samples is not None else ((node_info, 1) for node_info in snapshot.node_infos.values())
    ):
        for slice_, _ in node_info.inventory.offsets:
            if slice_.selection.node_name:
                yield slice_, nodes
            else:
                shared = True
    seen: set[int] = set()
    for node_info in snapshot.node_infos.values() if shared else ():
        for slice_, _ in node_info.inventory.offsets:
            if not slice_.selection.node_name and id(slice_) not in seen:
                seen.add(id(slice_))
                yield slice_, 1


Read = tuple[str, Callable[[Device, str], object]]


def _count(finding: TermStats, selector: Selector, devices: Devices, context: EvaluationContext) -> Devices:
    """Count the devices that pass a term, and return them. Equivalent devices are evaluated once."""
    reads, found = _reads(selector), Devices()
    for (driver, weight), some in devices.items():
        finding.asked += weight * len(some)
        passed = found[driver, weight] = list[Device]()
        for group in _equivalent(reads, driver, some):
            if _passes(finding, selector, reads or (), group[0], driver, weight * len(group), context):
                passed += group
            context.deadline.progressed = True
    return found


def _passes(
    finding: TermStats,
    selector: Selector,
    reads: Iterable[Read],
    device: Device,
    driver: str,
    count: int,
    context: EvaluationContext,
) -> bool:
    """Evaluate a device, and count the result for so many like it."""
    lacks = ""
    for path, read in reads:
        value, name = read(device, driver), path.rpartition("/")[2]
        finding.published[name] = finding.published.get(name, 0) + (count if value is not None else 0)
        default = _DEFAULTS.get(value[0], "") if isinstance(value, tuple) else 'quantity("0")'
        if value is not None and default:
            finding.defaults[path] = default
        lacks = lacks or (path if value is None else "")
    try:
        if evaluated(selector.match, device, driver, context.deadline):
            finding.passed += count
            return True
    except CelError:
        finding.failed += count
        if lacks and finding.lacking is None:
            finding.lacking = device.name, lacks
    # With this many distinct values, such as UUIDs, a single value is not useful.
    if finding.observes and len(finding.instead) < _MAX_VALUES:
        left = context.masks.compiled(left_side, finding.term, context.deadline)
        value = "" if isinstance(left, CompileError) else observed_value(left, device, driver, context.deadline)
        if value:
            finding.instead[value] += count
            finding.examples.setdefault(value, (device, driver))
    return False


def _equivalent(reads: list[Read] | None, driver: str, devices: list[Device]) -> Iterable[list[Device]]:
    """Groups of devices with equal values for everything that the term reads."""
    if reads is None:
        return [[device] for device in devices]
    if not reads:
        return [devices] if devices else []
    groups: dict[object, list[Device]] = {}
    first, others = reads[0][1], [read for _, read in reads[1:]]
    for device in devices:
        key = first(device, driver)
        if others:
            key = (key, *[read(device, driver) for read in others])
        groups.setdefault(key, []).append(device)
    return groups.values()


def _reads(selector: Selector) -> list[Read] | None:
    """Path, as 'attributes:DOMAIN/ID', and reader of everything that a selector reads; None if it reads whole maps."""
    found: list[Read] = []
    for path in sorted(selector.reads - {"driver"}):
        kind, _, name = path.partition(":")
        if not name or name.endswith("*"):
            return None
        domain, _, short = name.partition("/")
        found.append((path, _attribute(name) if kind == "attributes" else _capacity(name, domain, short)))
    return found


def _attribute(name: str) -> Callable[[Device, str], object]:
    return lambda device, _: device.attributes.typed(name)


def _capacity(name: str, domain: str, short: str) -> Callable[[Device, str], object]:
    def read(device: Device, driver: str) -> object:
        found = device.capacity.get(name) or (device.capacity.get(short) if domain == driver else None)
        return found.value.nanos if found is not None else None

    return read
