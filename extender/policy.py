"""The policy: the schema and the defaults of the file that the ConfigMap carries. Other modules read the file.

Each field has a range, a default and a description, which docs/policy.md repeats. Faults are told in words that need no
knowledge of pydantic, with line and column.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from typing import Annotated, Literal

from cachetools import LRUCache
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError, field_validator

from extender.api.documents import Positions, one_value
from extender.base.berth_errors import BerthError, WireError
from extender.base.text_limits import one_line, shown

MAX_POLICY_BYTES = 16 * 1024  # bytes of a policy's text
MAX_EFFECTIVE = 256  # merged policies in the cache: pods choose their classes, and so any subset of the overrides


class PolicyError(BerthError):
    """The policy does not match the schema. The text names each field and value."""


class UnreadablePolicy(PolicyError):
    """The text is not a policy: it is not UTF-8, not YAML, not a single document, or beyond a limit."""


def _no_boolean(value: object) -> object:
    """Reject booleans: no setting is one, and pydantic would read YAML's `yes` as 1."""
    if isinstance(value, bool):
        raise ValueError("must not be true or false")  # noqa: TRY004 - pydantic reports ValueErrors
    return value


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    _no_boolean = field_validator("*", mode="before")(_no_boolean)


class Weights(_Strict):
    """Weights of the parts of the score. Only their ratios matter; 0 disables a part."""

    link: float = Field(20, ge=0, le=100, description="predicted ring bandwidth, relative to what the pod asked for")
    affinity: float = Field(
        10, ge=0, le=100, description="devices of several drivers near each other: a GPU's NIC on its PCIe root"
    )
    value: float = Field(12, ge=0, le=100, description="prefer the product of least value, and keep whole NVLink sets")
    headroom: float = Field(2, ge=0, le=100, description="how well the device memory fits the requested memory")
    # Fragmentation and packing decide among equals: together less than what the GPUs of two products differ in value.
    fragmentation: float = Field(
        0.2, ge=0, le=100, description="how much free GPU capacity stays usable for later jobs"
    )
    packing: float = Field(
        0.08, ge=0, le=100, description="prefer nodes whose GPUs (without GPUs: own devices) are already in use"
    )
    health: float = Field(4, ge=0, le=100, description="avoid devices with an informational taint or a reported fault")
    preference: float = Field(24, ge=0, le=100, description="rank of the chosen firstAvailable alternative")
    clique: float = Field(
        10, ge=0, le=100, description="same NVLink clique, rack or spine as the other pods of the group"
    )


class Intent(_Strict):
    """Topology requirements of a pod without annotations."""

    topology: Literal["required", "preferred", "product", "none"] = Field(
        "product",
        description="required: only nodes with a ring of links; preferred: links as good as the fleet's best; "
        "product: as good as those of the GPU's product; none: no effect",
    )


Headroom = Literal["tight", "roomy"]
Packing = Literal["pack", "spread"]
Drift = Literal["penalise", "filter", "ignore"]
ComputeDomains = Literal["prefer", "require", "ignore"]
_Value = Annotated[float, Field(ge=0, le=1_000_000), BeforeValidator(_no_boolean)]
Products = Annotated[dict[Annotated[str, Field(min_length=2)], _Value], Field(max_length=64)]


class Override(_Strict):
    """Settings for pods of some namespaces, with claims of some DeviceClasses. If both are set, both must match."""

    namespaces: tuple[str, ...] = Field((), description="namespaces to which the entry applies; empty: all")
    classes: tuple[str, ...] = Field((), description="DeviceClasses, one of which a claim must use; empty: all")
    weights: Weights | None = Field(None, description="weights that differ; other weights stay")
    defaults: Intent | None = Field(None, description="intent of pods without annotations")
    headroom: Headroom | None = Field(None, description="see headroom")
    packing: Packing | None = Field(None, description="see packing")
    drift: Drift | None = Field(None, description="see drift")
    products: Products | None = Field(None, description="see products; replaces the whole map")

    def applies(self, namespace: str, classes: frozenset[str]) -> bool:
        """Whether the override applies to a pod of this namespace whose claims use these DeviceClasses."""
        return (not self.namespaces or namespace in self.namespaces) and (
            not self.classes or not classes.isdisjoint(self.classes)
        )


class Policy(_Strict):
    """The whole policy. A policy equals only itself: comparing by value would take a tenth of the time of a filter."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__
    weights: Weights = Field(Weights(), description="parts of the score")
    defaults: Intent = Field(Intent(), description="intent of pods without annotations")
    candidates: int = Field(
        32,
        ge=1,
        le=512,
        description="most nodes in the reply to a filter request, best first; with 1, Berth alone decides",
    )
    headroom: Headroom = Field(
        "tight", description="tight: prefer the smallest sufficient GPU; roomy: prefer the largest"
    )
    packing: Packing = Field("pack", description="pack: prefer nodes in use; spread: prefer empty nodes")
    hold_seconds: float = Field(
        15, gt=0, le=300, description="seconds that a filter call holds the devices of its first node in memory"
    )
    binding_timeout_seconds: float = Field(
        600, ge=1, le=86_400, description="seconds for binding conditions (in-tree: bindingTimeout)"
    )
    binding_wait_seconds: float = Field(
        20,
        ge=1,
        le=86_400,
        description="of these, seconds that one bind call waits: "
        "at least 10 below httpTimeout of the scheduler's bind entry",
    )
    search_steps: int = Field(20_000, ge=100, le=1_000_000, description="most steps of one search on one node")
    evaluation_seconds: float = Field(
        0.1,
        ge=0.005,
        le=2,
        description="seconds that a call, and beside others the calls of a namespace in a second, may evaluate "
        "claims; the rest is queued",
    )
    drift: Drift = Field(
        "penalise",
        description="GPUs in use without a claim; penalise: lower health; filter: never allocate; ignore: no effect",
    )
    compute_domains: ComputeDomains = Field(
        "prefer",
        description="NVLink cliques in which another ComputeDomain has channels; prefer: after the others; "
        "require: never; ignore: no effect",
    )
    live_memory_seconds: float = Field(
        900, ge=60, le=86_400, description="seconds after which Berth ignores the agent's memory readings"
    )
    gang_seconds: float = Field(
        30,
        ge=1,
        le=3600,
        description="seconds from the plan of a gang until the binds of its minimum must have arrived; "
        "the group's own time-out takes precedence",
    )
    gang_collect_seconds: float = Field(
        0,
        ge=0,
        le=3600,
        description="seconds for which a gang without room may keep the freed devices of one domain from other pods; "
        "one gang at a time; 0: never",
    )
    group_levels: tuple[str, ...] = Field(
        ("nvidia.com/gpu.clique", "topology.kubernetes.io/rack", "topology.kubernetes.io/spine"),
        max_length=8,
        description="node labels that define how near two nodes are, the nearest level first",
    )
    products: Products = Field(
        {},
        description="value of a GPU by a part of its product name, the first match counts; "
        "others: from memory, links and age",
    )
    overrides: tuple[Override, ...] = Field(
        (), description="settings that differ by namespace or class; later entries win"
    )
    _effective: LRUCache[tuple[int, ...], Policy] = PrivateAttr(default_factory=lambda: LRUCache(MAX_EFFECTIVE))

    @property
    def digest(self) -> str:
        """16 hexadecimal digits. Equal policies have equal digests."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]

    def unmatched_products(self, products: Collection[str]) -> list[str]:
        """The names in `products`, also those of overrides, that none of these products contains."""
        return [name for name in self.product_names if not any(name in product for product in products)]

    @property
    def product_names(self) -> list[str]:
        """The names in `products`, also those of overrides, each once."""
        maps = (self.products, *(override.products or {} for override in self.overrides))
        return list(dict.fromkeys(name for one in maps for name in one))

    def effective(self, namespace: str, classes: frozenset[str]) -> Policy:
        """The policy for a pod. Equal sets of overrides give the same object while the cache keeps it."""
        chosen = tuple(i for i, override in enumerate(self.overrides) if override.applies(namespace, classes))
        if not chosen:
            return self
        found = self._effective.get(chosen)
        if found is None:
            found = self
            for i in chosen:
                found = _overridden(found, self.overrides[i])
            self._effective[chosen] = found
        return found


def _overridden(policy: Policy, override: Override) -> Policy:
    changes: dict[str, object] = override.model_dump(
        include={"headroom", "packing", "drift", "products"}, exclude_none=True
    )
    for name in ("weights", "defaults"):
        part: BaseModel | None = getattr(override, name)
        if part is not None:
            changes[name] = getattr(policy, name).model_copy(update=part.model_dump(exclude_unset=True))
    return policy.model_copy(update=changes)


def load_policy(content: str | bytes) -> Policy:
    """Read a policy from YAML. Raises PolicyError, which names each wrong field with line and column."""
    positions: Positions = {}
    try:
        found = one_value(content, "the policy", MAX_POLICY_BYTES, positions)
    except WireError as error:
        raise UnreadablePolicy(str(error)) from error
    if not isinstance(found, dict):
        raise UnreadablePolicy("the policy must be a mapping")
    if found and found.keys().isdisjoint(Policy.model_fields):
        raise UnreadablePolicy("the policy has none of a policy's fields: is it the right file?")
    try:
        return Policy.model_validate(found)
    except ValidationError as error:
        raise PolicyError(faults_of(error, positions)) from error


_MAX_FAULTS = 5  # faults in one message
_VALID = {"integer": "an integer", "dictionary": "an object", "tuple": "a list"}
_KEY = "[key]"  # pydantic's word for a wrong key of a map, the last part of its location
_WORDS = (
    (re.compile(r"Extra inputs are not permitted"), "is no known field"),
    (re.compile(r"Field required"), "is missing"),
    (re.compile(r"Unable to extract tag using discriminator '(\w+)'"), r"has no \1"),
    (
        re.compile(r"Input tag ('.*') found using '(\w+)' does not match any of the expected tags: (.*)", re.DOTALL),
        r"\2 must be one of \3, is \1",
    ),
    (re.compile(r"(?:Value error|Assertion failed), "), ""),
    (re.compile(r"Input should be greater than or equal to "), "must be at least "),
    (re.compile(r"Input should be less than or equal to "), "must be at most "),
    (re.compile(r"Input should be greater than "), "must be above "),
    (re.compile(r"Input should be less than "), "must be below "),
    (re.compile(r"Input should be "), "must be "),
    (re.compile(r"\b[A-Z]\w+ should have "), "must have "),
    (re.compile(r" after validation, not \d+"), ""),
)
_TYPE = re.compile(r"Input should be a valid (\w+).*")


def in_plain_words(problem: str) -> str:
    """A message of pydantic as Berth writes it."""
    problem = _TYPE.sub(lambda found: f"must be {_VALID.get(found[1], f'a {found[1]}')}", problem)
    for pattern, words in _WORDS:
        problem = pattern.sub(words, problem)
    return problem


def faults_of(error: ValidationError, positions: Positions) -> str:
    """The faults that pydantic found, on one line: field, problem, value, and line and column if known."""
    found = error.errors(include_url=False, include_context=False)
    # pydantic counts the items without the wrong ones, whose faults it reports, too.
    faults = [
        one
        for one in found
        if one["type"] != "too_short" or not any(_is_part(other["loc"], one["loc"]) for other in found)
    ]
    sentences = [_fault(fault["loc"], fault["msg"], _value(fault), positions) for fault in faults[:_MAX_FAULTS]]
    return "; ".join(sentences) + (f"; and {len(faults) - _MAX_FAULTS} more" if len(faults) > _MAX_FAULTS else "")


def _is_part(loc: tuple[int | str, ...], of: tuple[int | str, ...]) -> bool:
    return loc[: len(of)] == of and len(loc) > len(of)


def _fault(loc: tuple[int | str, ...], problem: str, value: str, positions: Positions) -> str:
    problem = in_plain_words(problem)
    line, column = positions.get(loc) or positions.get(loc[:-1]) or (0, 0)
    if loc[-1:] == (_KEY,):  # the key is before it
        loc, problem, value = loc[:-2], f"the name {shown(loc[-2])} {problem}", ""
    details = ", ".join(part for part in (value, f"line {line}, column {column}" if line else "") if part)
    field = f"{one_line('.'.join(map(str, loc)))}: " if loc else ""  # a fault of several fields names them itself
    return f"{field}{problem}{f' ({details})' if details else ''}"


def _value(fault: Mapping[str, object]) -> str:
    """The wrong value as text; '' where pydantic gives a whole object: for a missing field, and for several fields."""
    is_object = fault["type"] == "value_error" and isinstance(fault["input"], Mapping)
    return "" if fault["type"] == "missing" or is_object else f"is {shown(fault['input'])}"
