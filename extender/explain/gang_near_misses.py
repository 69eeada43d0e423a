"""Near misses of a gang: changes that would make it fit, the cheapest first.

Cheap is a change that stops few pods, its own or others, and then few devices. The planner plans the gang with each
change, and only changes with a plan are named. They are few, and not all that exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, combinations

from extender.explain.device_holders import DeviceUse
from extender.explain.gang_question import GangNearMiss, GangQuestion, where
from extender.explain.gang_releases import GangReleases, ends
from extender.model import DeadlineExceeded
from extender.scheduling import GangPlan, GangProblem, GangShortage, PodRequirements

_FOUND = 5  # the cheapest near misses, in one explanation
_SIZES = 3  # smaller minimums that are tried
_PINS = 3  # shared claims whose other users are tried


class GangNearMisses:
    """Near misses of a gang. `shortage` is the result of a plan for its minimum. No method raises DeadlineExceeded.

    `cut_short` is the limit that ended the search; '' if it tried all changes.
    """

    def __init__(self, shortage: GangShortage) -> None:
        self._shortage = shortage
        self._found: list[GangNearMiss] = []
        self.cut_short = ""

    def cheapest(self) -> tuple[GangNearMiss, ...]:
        """The near misses found so far, the cheapest first; of equal ones, the gang's own changes first."""
        return tuple(sorted(self._found, key=lambda one: (one.pods, one.devices))[:_FOUND])

    def try_own_changes(self, question: GangQuestion) -> None:
        """Try the gang without its own constraints, and with a smaller minimum."""
        self._collect(chain(_by_constraint(question), _by_minimum(question, self._shortage)))

    def try_ends(self, question: GangQuestion) -> None:
        """Try the end of other pods."""
        releases = GangReleases(question, self._shortage)
        self._collect(releases.near_misses())
        self.cut_short = self.cut_short or releases.cut_short

    def try_pins(self, question: GangQuestion, pins: Sequence[DeviceUse]) -> None:
        """Try the end of the pods with which members share claims, the fewest first, and then of others, too."""
        before = len(self._found)
        for size in range(1, min(len(pins), _PINS) + 1):
            for chosen in combinations(pins[:_PINS], size):
                self._collect(self._by_pins(question, chosen))
            if len(self._found) > before:
                return

    def _by_pins(self, question: GangQuestion, pins: Sequence[DeviceUse]) -> Iterator[GangNearMiss]:
        """Raises DeadlineExceeded."""
        loose = question.without(pins)
        if loose is None:
            return
        found = loose.plan(loose.problem(loose.gang.missing))
        if isinstance(found, GangPlan):
            yield ends(pins, found)
            return
        releases = GangReleases(loose, found, pins, question)
        yield from releases.near_misses()
        self.cut_short = self.cut_short or releases.cut_short

    def _collect(self, near_misses: Iterator[GangNearMiss]) -> None:
        try:
            for one in near_misses:
                self._found.append(one)
        except DeadlineExceeded:
            self.cut_short = "the work limit of an explanation ended the search for changes: ask again"


def less_constrained(problem: GangProblem) -> Iterator[tuple[GangProblem, str]]:
    """The gang without one of its own constraints on the domain, and the words for this change."""
    if problem.topology == "required":
        yield replace(problem, topology="preferred"), "with topology preferred instead of required"
    if problem.topology_label:
        wanted = f"without the constraint to one value of {problem.topology_label}"
        yield replace(problem, topology_label=""), wanted


def _by_constraint(question: GangQuestion) -> Iterator[GangNearMiss]:
    for changed, wanted in less_constrained(question.problem(question.gang.missing)):
        found = question.plan(changed)
        if isinstance(found, GangPlan):
            yield GangNearMiss(0, 0, f"fits {wanted}, {where(found.level, found.domain)}")


def _by_minimum(question: GangQuestion, shortage: GangShortage) -> Iterator[GangNearMiss]:
    """The gang with a smaller minimum. A minimum below 2 is not tried: it makes no gang."""
    gang, pods = question.gang, question.members.pods[: question.gang.missing]
    needing = [question.members.requirements.get(pod.uid) for pod in pods]
    sizes = [
        size
        for size in range(1, len(pods))
        if size + gang.placed.total() > 1 and 0 < len(pods[:size]) - needing[:size].count(None) <= shortage.room
    ]
    for size in reversed(sizes[-_SIZES:]):
        if isinstance(question.plan(question.problem(size)), GangPlan):
            lacking = sum(_devices(one) for one in needing[size:] if one is not None)
            smaller = gang.minimum - len(pods) + size
            yield GangNearMiss(
                len(pods) - size, lacking, f"fits with a minimum of {smaller} instead of {gang.minimum} members"
            )
            return


def _devices(requirements: PodRequirements) -> int:
    return sum(request.alternatives[0].count for spec in requirements.specs for request in spec.requests)
