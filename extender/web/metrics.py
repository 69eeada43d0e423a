"""What the service counts, and how long the verbs take, as text for scrapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from extender.mirror.audit import KINDS
from extender.service.calls import BOUNDS
from extender.service.service import Service
from extender.verdict.facts import Facts

GAUGE, COUNTER, SUMMARY, HISTOGRAM = GaugeMetricFamily, CounterMetricFamily, SummaryMetricFamily, HistogramMetricFamily
Family = CounterMetricFamily | GaugeMetricFamily | SummaryMetricFamily | HistogramMetricFamily
Value = float | tuple[float, ...]  # in the order of the lines of the exposition format: a summary is its count and its sum
_NOTHING: dict[type[Family], tuple[Any, ...]] = {
    GAUGE: (0,), COUNTER: (0,), SUMMARY: (0, 0), HISTOGRAM: ([(bound, 0) for bound in (*map(str, BOUNDS), "+Inf")], 0),
}  # fmt: skip


class Reading(NamedTuple):
    """One figure of the service. With labels, `value` gives one value per combination."""

    name: str
    kind: type[Family]
    help: str
    value: Callable[[Service], Value | Mapping[tuple[str, ...], Value]]
    labels: tuple[str, ...] = ()


def _by_product(read: Callable[[Facts], float]) -> Callable[[Service], Mapping[tuple[str, ...], Value]]:
    return lambda s: {(product,): read(facts) for product, facts in s.surveyor.facts.items()}


READINGS = (
    Reading("berth_ready", GAUGE, "1 when every kind has been listed", lambda s: float(not s.not_ready)),
    Reading("berth_task_failures_total", COUNTER, "Times that a background task failed; it is started again",
            lambda s: {(name,): float(count) for name, count in s.supervisor.failures.items()}, ("task",)),
    Reading("berth_nodes", GAUGE, "Nodes known", lambda s: len(s.mirror.store.nodes)),
    Reading("berth_nodes_unbuilt", GAUGE, "Nodes whose view cannot be built; Berth keeps the view they had before",
            lambda s: len(s.mirror.unbuilt)),
    Reading("berth_slices", GAUGE, "ResourceSlices known", lambda s: len(s.mirror.store.slices)),
    Reading("berth_claims", GAUGE, "ResourceClaims known", lambda s: len(s.mirror.store.claims)),
    Reading("berth_claims_in_flight", GAUGE, "Claims being bound now", lambda s: len(s.mirror.ledger.in_flight)),
    Reading("berth_waiting_pods", GAUGE, "Pods whose last filter was refused", lambda s: s.judge.waiting),
    Reading("berth_refusals_total", COUNTER, "Filters that refused every node, by the code of the reason that most nodes had",
            lambda s: {(code,): count for code, count in s.judge.refusals.items()}, ("code",)),
    Reading("berth_budgets_exhausted_total", COUNTER, "Budgets of evaluation that ended before the work did",
            lambda s: float(s.judge.throttle.exhausted)),
    Reading("berth_unfinished_demands", GAUGE, "Demands whose evaluation goes on in the background",
            lambda s: s.judge.unfinished_demands),
    Reading("berth_holds", GAUGE, "Pods for which filter holds devices", lambda s: s.mirror.ledger.holds),
    Reading("berth_shapes", GAUGE, "Distinct demands whose ranking of all nodes is remembered", lambda s: len(s.judge.rankings)),
    Reading("berth_verdicts", GAUGE, "Verdicts remembered, one per demand and distinct state of a node", lambda s: s.judge.rankings.groups),
    Reading("berth_evaluations_total", COUNTER, "Searches made for a verdict that was not remembered", lambda s: s.judge.rankings.evaluations),
    Reading("berth_fence_wait_seconds", SUMMARY, "Waits of binds until the watch showed their writes",
            lambda s: (s.binder.fence.waits, s.binder.fence.seconds)),
    Reading("berth_fence_losses_total", COUNTER, "Binds that gave way to an earlier write of the same device", lambda s: s.binder.fence.losses),
    Reading("berth_api_requests_total", COUNTER, "Requests to the API server other than watches, by method and HTTP status (empty: no answer)",
            lambda s: {key: float(count) for key, count in s.client.answers.items()}, ("method", "status")),
    Reading("berth_watch_silence_seconds", GAUGE,
            "Seconds since the API server said anything on the watch of a kind, bookmarks included",
            lambda s: {(name,): r.silence for name, r in s.reflectors.items()}, ("kind",)),
    Reading("berth_watch_failures", GAUGE, "Times in a row that list or watch of a kind failed",
            lambda s: {(name,): float(r.failures) for name, r in s.reflectors.items()}, ("kind",)),
    Reading("berth_lists_total", COUNTER, "Complete lists of a kind; more than one after the start means a watch was lost",
            lambda s: {(name,): float(r.relists) for name, r in s.reflectors.items()}, ("kind",)),
    Reading("berth_unreadable_objects", GAUGE,
            "Objects whose newest version cannot be read; Berth keeps the last version that could be",
            lambda s: {(name,): float(len(r.unreadable)) for name, r in s.reflectors.items()}, ("kind",)),
    Reading("berth_policy_generation", GAUGE, "Policies put in force since the start", lambda s: s.judge.policy_generation),
    Reading("berth_policy_refused", GAUGE, "1 while the policy file is wrong and the last good one stays in force",
            lambda s: float(bool(s.judge.policy_problem))),
    Reading("berth_wakes_total", COUNTER, "Times the marker class was touched so that waiting pods are tried again",
            lambda s: s.waker.touches),
    Reading("berth_events_total", COUNTER, "Events written on pods whose reason to wait changed", lambda s: s.teller.events),
    Reading("berth_agents", GAUGE, "Nodes with a fabric slice of the agent", lambda s: len(s.mirror.store.fabric)),
    Reading("berth_agents_silent", GAUGE, "Agents not heard of for so long that their word on memory is ignored",
            lambda s: len(s.mirror.store.silent_agents)),
    Reading("berth_agent_age_seconds", GAUGE, "Seconds since the quietest agent that is still believed was heard of",
            lambda s: s.mirror.oldest_agent(s.clock())),
    Reading("berth_gpus", GAUGE, "Whole GPUs, by product", _by_product(lambda f: f.gpus), ("product",)),
    Reading("berth_gpus_free", GAUGE, "GPUs that nothing holds, not even a share, by product", _by_product(lambda f: f.free), ("product",)),
    Reading("berth_gpus_drifting", GAUGE, "GPUs whose memory is in use though no claim holds them, by product",
            _by_product(lambda f: f.drifting), ("product",)),
    Reading("berth_gpus_unhealthy", GAUGE, "GPUs that their agent reports trouble of, by product", _by_product(lambda f: f.unhealthy), ("product",)),
    Reading("berth_largest_free_nvlink_set", GAUGE, "Free GPUs that NVLink joins in one ring on the best node, by product",
            _by_product(lambda f: f.largest_set), ("product",)),
    Reading("berth_gpu_memory_unclaimed_bytes", GAUGE, "Memory that no claim holds, by product", _by_product(lambda f: f.unclaimed_bytes), ("product",)),
    Reading("berth_gpu_memory_live_free_bytes", GAUGE, "Memory that agents say is free, by product", _by_product(lambda f: f.live_free_bytes), ("product",)),
    Reading("berth_gpus_stranded", GAUGE, "GPUs, counted in parts, that are free and that the typical job of late cannot use where they are, by product",
            _by_product(lambda f: f.stranded), ("product",)),
    Reading("berth_bandwidth_ratio", SUMMARY, "Ring bandwidth of pods bound with several GPUs over the best of any set of that size in the fleet",
            lambda s: (s.journal.joined, s.journal.joined_share)),
    *(
        Reading(f"berth_audit_{kind.replace('-', '_')}", GAUGE, f"Audit: {sentence}",
                lambda s, kind=kind: s.auditor.by_kind()[kind])  # type: ignore[misc] # the default binds the kind
        for kind, sentence in KINDS.items()
    ),
    Reading("berth_audit_drift", GAUGE, "Audit: claims that the watch had wrong when last compared with a fresh list", lambda s: s.auditor.drifted),
    Reading("berth_claims_deallocated_total", COUNTER,
            "Claims deallocated because their pod cannot go where they are allocated", lambda s: s.collector.deallocated),
    Reading("berth_claims_collected_total", COUNTER,
            "Allocations by Berth that nobody reserved, taken back", lambda s: s.collector.collected),
    Reading("berth_extended_claims_removed_total", COUNTER,
            "Special claims of extended resources left by attempts that ended half way, deleted", lambda s: s.collector.removed),
    Reading("berth_claims_kept_total", COUNTER,
            "Claims not taken back, as a fresh read showed them changed or in use", lambda s: s.collector.kept),
    Reading("berth_call_seconds", HISTOGRAM, "Seconds to answer a call of kube-scheduler, by verb and HTTP status",
            lambda s: s.calls.values(), ("verb", "status")),
)


class Metrics:
    """The figures of one service as text. The library writes the form of every line once, before the first scrape; from then on
    only labels and values are put in, because that shares the interpreter with kube-scheduler's calls."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._forms = {reading.name: form_of(reading) for reading in READINGS}
        self._lines: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        self._last: dict[str, tuple[object, list[str]]] = {}  # what each figure was, and how that reads

    def text(self) -> Iterator[bytes | None]:
        """Steps that end with the exposition format, text/plain version 0.0.4."""
        parts: list[str] = []
        for reading in READINGS:
            for text in self._text(reading):
                parts += text or ()
                yield None
        yield "".join(parts).encode()

    def _text(self, reading: Reading) -> Iterator[list[str] | None]:
        """Steps that end with the lines of one figure."""
        found = reading.value(self._service)
        yield None
        last = self._last.get(reading.name)
        if last is None or last[0] != found:
            lines = [self._forms[reading.name].head]
            for labels, value in found.items() if isinstance(found, Mapping) else [((), found)]:
                lines += self._samples(reading.name, labels, value if isinstance(value, tuple) else (value,))
                yield None
            last = self._last[reading.name] = found, lines
        yield last[1]

    def _samples(self, name: str, labels: tuple[str, ...], values: tuple[float, ...]) -> Iterator[str]:
        """Lines of one combination of labels."""
        lines = self._lines.get((name, labels))
        if lines is None:
            lines = self._lines[name, labels] = self._forms[name].labelled(labels)
        return (f"{line} {_number(value)}\n" for line, value in zip(lines, values, strict=True))


class Form(NamedTuple):
    """How the library writes a figure: help and type, then its lines up to the value, each label as a placeholder."""

    head: str
    lines: tuple[str, ...]

    def labelled(self, labels: tuple[str, ...]) -> list[str]:
        """The lines of one combination of labels."""
        lines = list(self.lines)
        for number, label in enumerate(labels):
            escaped = label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
            lines = [line.replace(_placeholder(number), escaped) for line in lines]
        return lines


def form_of(reading: Reading) -> Form:
    """As the library writes it."""
    family = reading.kind(reading.name, reading.help, labels=reading.labels)
    head = _exposed(family)
    family.add_metric([_placeholder(number) for number in range(len(reading.labels))], *_NOTHING[reading.kind])
    lines = _exposed(family).removeprefix(head).rstrip("\n").split("\n")
    return Form(head, tuple(line.rpartition(" ")[0] for line in lines))


def _placeholder(number: int) -> str:
    return f"\0{number}\0"


_number: Callable[[float], str] = floatToGoString


class _Only(Collector):
    def __init__(self, family: Family) -> None:
        self._family = family

    def collect(self) -> list[Family]:
        return [self._family]


def _exposed(family: Family) -> str:
    return generate_latest(_Only(family)).decode()
