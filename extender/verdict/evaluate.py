"""One evaluator for every verb: a demand on a node gives devices and score parts, or the reason why not."""

from __future__ import annotations

from dataclasses import dataclass, field

from extender.allocation.choose import choose, choose_plain
from extender.allocation.features import Features
from extender.allocation.observe import NOBODY, Recorder
from extender.allocation.plain import Plain, plain
from extender.allocation.problem import Problem, Selection, Solution
from extender.allocation.search import Search
from extender.allocation.selection import find_class, select
from extender.allocation.view import Fleet, NodeView
from extender.cel.dra import Masks
from extender.fabric.ring import is_joined
from extender.fabric.sets import bandwidth
from extender.model.budget import UNLIMITED, Budget
from extender.model.claim import DeviceRequest
from extender.model.errors import InvalidClaim, OutOfBudget
from extender.model.reasons import Code, Reason
from extender.scoring.parts import Choice, achieved_gbps, memory_bytes, parts, total
from extender.scoring.preference import ByTopology
from extender.verdict.demand import Demand
from extender.verdict.grants import Grant, Grants, asked_of
from extender.verdict.refusal import explain_refusal


@dataclass(frozen=True, slots=True)
class Refusal:
    """The node cannot serve the demand. `text` is made once, because thousands of nodes share it."""

    reason: Reason
    text: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", str(self.reason))


Verdict = Grant | Refusal


@dataclass(frozen=True, slots=True)
class Rules:
    """What verdicts depend on besides the node and the demand."""

    masks: Masks
    features: Features
    fleet: Fleet
    grants: Grants | None = None  # those of equal states of nodes, where signatures of views mean something
    budget: Budget = UNLIMITED  # decides when a verdict is found, never which


def problem_for(view: NodeView, demand: Demand, rules: Rules) -> Problem:
    """The allocation problem of a demand on a node."""
    classes = {class_.name: class_ for class_ in demand.classes}
    remembered: dict[tuple[str, str], Selection] = {}

    def selection(claim: str, request: DeviceRequest) -> Selection:
        known = remembered.get((claim, request.name))
        if known is None:
            class_ = find_class(claim, request, classes.get)
            known = select(claim, request, class_, view.inventory, rules.masks, rules.features, rules.budget)
            unwanted = unwanted_devices(view, demand)
            if unwanted and not request.admin_access:
                known = known._replace(match=known.match & ~unwanted)
            remembered[claim, request.name] = known
        return known

    return Problem(view.inventory, demand.names, demand.specs, view.usage, selection, view.busy, rules.features)


def unwanted_devices(view: NodeView, demand: Demand) -> int:
    """Devices that the policy or the pod's annotation rules out, whatever selectors say, as a mask."""
    found = view.drift if demand.policy.drift == "filter" else 0
    if demand.expected_bytes:
        for bit in view.gpu_bits:
            if bit >= 0 and 0 < memory_bytes(view, bit) < demand.expected_bytes:
                found |= 1 << bit
    return found


def evaluate(view: NodeView, demand: Demand, rules: Rules, recorder: Recorder | None = None) -> Verdict:
    """The verdict of one node. What users wrote wrongly is a refusal with its reason. A `recorder` hears why the search
    left devices aside; the verdict is the same without one. Raises BudgetSpent."""
    if not demand.open:
        return Grant(Solution((), ()), (), 0.0, 0.0)
    problem = problem_for(view, demand, rules)
    try:
        simple = plain(problem) if recorder is None else None
        if simple is not None:
            return _without_search(view, demand, rules, problem, simple)
        return _by_search(view, demand, rules, problem, recorder)
    except InvalidClaim as error:
        return Refusal(Reason(Code.INVALID, (str(error),)))
    except OutOfBudget:
        return Refusal(Reason(Code.OUT_OF_BUDGET))


def _without_search(view: NodeView, demand: Demand, rules: Rules, problem: Problem, simple: Plain) -> Verdict:
    asked = asked_of(view, demand, simple) if rules.grants is not None else None
    known = rules.grants.get(asked, rules.fleet) if rules.grants is not None and asked is not None else None
    if known is not None:
        return known.to(simple.request)
    rules.budget.check()
    solution = choose_plain(simple, problem, ByTopology(view, demand.policy))
    if solution is None:  # numbers of devices tell why
        return Refusal(explain_refusal(view, problem, Recorder(), demand.expected_bytes))
    verdict = _scored(Choice(view, problem, solution), demand, rules)
    if rules.grants is not None and asked is not None and isinstance(verdict, Grant):
        rules.grants.put(asked, rules.fleet, verdict)
    return verdict


def _by_search(view: NodeView, demand: Demand, rules: Rules, problem: Problem, recorder: Recorder | None) -> Verdict:
    rules.budget.check()
    solution = choose(
        problem,
        ByTopology(view, demand.policy),
        budget=demand.policy.search_steps,
        observer=recorder if recorder is not None else NOBODY,
        call_budget=rules.budget,
    )
    if solution is not None:
        return _scored(Choice(view, problem, solution), demand, rules)
    if recorder is None:  # search once more with a recorder: grants, which are the rule, do without
        recorder = Recorder()
        Search(problem, budget=demand.policy.search_steps, observer=recorder, call_budget=rules.budget).run()
    return Refusal(explain_refusal(view, problem, recorder, demand.expected_bytes))


def _scored(choice: Choice, demand: Demand, rules: Rules) -> Verdict:
    unwanted = _topology(choice, demand)
    if unwanted is not None:
        return Refusal(unwanted)
    found = parts(choice, rules.fleet, demand.policy, demand.expected_bytes)
    if demand.topology == "none":
        found = tuple(part for part in found if part.name != "link")
    return Grant(choice.solution, found, total(found, demand.policy), achieved_gbps(choice))


def _topology(choice: Choice, demand: Demand) -> Reason | None:
    mask = choice.gpus
    if mask and choice.view.partitions is not None and mask not in choice.view.partitions:
        return Reason(Code.PARTITION, (str(mask.bit_count()),))
    if mask.bit_count() < 2:  # noqa: PLR2004 - one GPU needs no link
        return None
    graph = choice.view.fabric.graph if choice.view.fabric is not None else None
    if demand.topology == "required" and (graph is None or not is_joined(graph, mask)):
        return Reason(Code.TOPOLOGY)
    if demand.min_gbps and (graph is None or bandwidth(graph, mask) < demand.min_gbps):
        return Reason(Code.BANDWIDTH)
    return None
