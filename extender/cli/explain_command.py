"""`berth explain`: why a pod or a group waits, or where a pod would go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Annotated
from urllib.parse import quote, urlencode

import orjson
import typer
from pydantic import BaseModel, TypeAdapter
from rich.table import Table

from extender.allocation import Features
from extender.api.fields import Json
from extender.api.object_meta import ObjectKey
from extender.base.berth_errors import WireError
from extender.base.text_limits import counted, one_line, shown
from extender.cache import ClusterCache
from extender.cli.cluster_objects import load_dump
from extender.cli.console_client import ConsoleClient, DecisionReply, NotKnown, ScoredNodeReply
from extender.cli.console_options import (
    NODE_KINDS,
    ConsoleMaker,
    Named,
    asks_console,
    explained,
    freed,
    node_names,
    pod_names,
    without_kind,
)
from extender.cli.object_files import checked_files, policy_of, policy_text
from extender.cli.options import AllNamespaces, Namespace, Watch, WideOutput, check_namespace
from extender.cli.output import Screen, say, say_value, table_screen, watch_changes
from extender.console import ComparedSets, Explainer, UnknownPod, WhatIf
from extender.explain import GangExplanation, UnschedulableNodes
from extender.explain.scenario import Scenario, scenario_of
from extender.manifests import hypothetical, is_device_class
from extender.policy import Policy
from extender.scheduling import Evaluator
from extender.scheduling.decision import crowded_text, runner_up_text

_BRIEF, _WIDE = 5, 1000  # rows in a table
_COLOURS = {"fits": "green", "bound": "green", "refused": "red", "blocked": "red", "waiting": "yellow"}  # by outcome
_CLUSTER_SCOPED = ("DeviceClass", "DeviceTaintRule", "Namespace", "Node", "PriorityClass", "ResourceSlice")
_UNPLACED = ("refused", "blocked", "gave-up", "unfinished")  # outcomes of groups for which devices are lacking


class ExplanationReply(BaseModel):
    """One explanation of a pod in the reply to POST /v1/explain."""

    pod: str
    outcome: str
    sentence: str = ""
    best: list[ScoredNodeReply] = []
    unschedulable: list[UnschedulableNodes] = []
    misses: list[str] = []
    facts: list[str] = []
    terms: list[str] = []
    failing: list[str] = []
    narration: list[str] = []
    decision: DecisionReply | None = None
    sets: ComparedSets | None = None
    gang: str = ""
    alone: str = ""


_REPLY: TypeAdapter[ExplanationReply | GangExplanation] = TypeAdapter(ExplanationReply | GangExplanation)
Attempts = Callable[[str], str]  # of a pod, NAMESPACE/NAME, to the text about them
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[pod|group] [NAMESPACE/]NAME",
        help="A pod or a group that exists; pod/NAME, too.",
        autocompletion=pod_names,
    ),
]
Files = Annotated[
    list[Path] | None,
    typer.Option("-f", "--file", help="Pods or workloads that do not exist yet, with their claim templates."),
]
Without = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NODE", help="Explain as if this node did not exist; node/NAME, too.", autocompletion=node_names
    ),
]
Free = Annotated[
    list[str] | None,
    typer.Option(metavar="[NAMESPACE/]POD", help="Explain as if the devices of this pod were free; pod/NAME, too."),
]


@asks_console
def explain_command(
    words: Words = None,
    *,
    file: Files = None,
    namespace: Namespace = "",
    all_namespaces: AllNamespaces = False,
    snapshot: Annotated[
        Path | None, typer.Option(help="Use a file made by `berth snapshot` instead of a running Berth.")
    ] = None,
    policy: Annotated[Path | None, typer.Option(help="Decide by this policy instead of the active one.")] = None,
    without: Without = None,
    free: Free = None,
    narrate: Annotated[
        str, typer.Option(metavar="NODE", help="Print the steps of the search on this node, unless the pod is bound.")
    ] = "",
    output: WideOutput = "table",
    watch: Watch = False,
    console: ConsoleMaker,
) -> None:
    """Say why a pod or a group waits, or where a pod would go.

    For a bound pod, it says why Berth chose the node. Exit code 1 if no node fits.

    Examples: berth explain pod training/llm-0;  berth explain -f job.yaml --free training/llm-0
    """
    check_namespace(namespace, everywhere=all_namespaces)
    if watch and snapshot is not None:
        raise WireError("--watch", "does not go with --snapshot: the file does not change")
    if file and words and words != ["pod"]:
        raise WireError("NAMESPACE/NAME", f"does not go with -f FILE, is {shown(' '.join(words))}")
    target = explained(words or [], namespace) if not file else None
    if target is not None and target.is_group and (policy is not None or narrate):
        raise WireError("explain group", "takes no -f, --policy or --narrate")
    objects = [obj for _, obj in checked_files(file)] if file else []
    question: Json = {
        "objects": _placed(objects, namespace),
        "without": [without_kind(name, NODE_KINDS) for name in without or ()],
        "free": freed(free or (), namespace),
        "narrate": narrate,
    }
    attempts: Attempts | None = None
    if snapshot is not None:
        decided_by = policy_of(policy) if policy is not None else None
        answer = partial(_answer_of_file, snapshot, target, decided_by, question)
    else:
        text = policy_text(policy) if policy is not None else None
        client = console()
        within = "" if all_namespaces else namespace or client.namespace
        question |= {"objects": _placed(objects, within), "free": freed(free or (), within), "policy": text}
        answer = partial(_ask, client, target, question, within)
        attempts = client.attempts if target is not None else None
    found = _answer_or_kind(answer, target)
    show = partial(_show_all, output=output, narrated=bool(narrate), attempts=attempts)
    show(found)
    _tell_classes(question["objects"])
    if watch:
        watch_changes(answer, show, found)
    if any(explanation["outcome"] in ("refused", "blocked") for explanation in found):
        raise typer.Exit(1)


def _placed(objects: list[Json], namespace: str) -> list[Json]:
    """The objects as `kubectl apply` would create them: one without a namespace is in this one, unless that is ''."""
    return [
        {**obj, "metadata": {"namespace": namespace, **(obj.get("metadata") or {})}}
        if namespace and obj.get("kind") not in _CLUSTER_SCOPED
        else obj
        for obj in objects
    ]


def _answer_or_kind(answer: Callable[[], list[Json]], target: Named | None) -> list[Json]:
    """The answer. The error for a pod that is not known says so, if the words look like an object of another kind."""
    try:
        return answer()
    except (NotKnown, UnknownPod) as error:
        other = target.of_wrong_kind() if target is not None else None
        if other is None:
            raise
        raise other from error


def _ask(console: ConsoleClient, target: Named | None, question: Json, within: str) -> list[Json]:
    """The console's answer. A name without namespace is searched `within` the namespace, then in all."""
    if target is not None and not target.namespace and within:
        try:
            return _ask(console, target._replace(namespace=within), question, "")
        except NotKnown as error:
            with suppress(NotKnown):  # such as: the name is ambiguous
                return _ask(console, target, question, "")
            raise error from None
    if target is not None and target.is_group:
        return _ask_group(console, target.group_key, question)
    body = orjson.dumps({**question, "pod": target.text if target is not None else None})
    found: list[Json] = console.ask("/v1/explain", list[ExplanationReply | GangExplanation], body)
    return found


def _ask_group(console: ConsoleClient, key: ObjectKey, what_if: Json) -> list[Json]:
    query = urlencode({name: ",".join(what_if[name]) for name in ("without", "free") if what_if[name]})
    path = f"/v1/explain/group/{quote(key.namespace, safe='')}/{quote(key.name, safe='')}"
    found: list[Json] = console.ask(f"{path}?{query}" if query else path, list[GangExplanation])
    return found


def _answer_of_file(snapshot: Path, target: Named | None, policy: Policy | None, question: Json) -> list[Json]:
    cache, bound = load_dump(snapshot)
    if target is not None and target.is_group:
        scenario, explainer = _scenario(cache, question), _offline_explainer(cache)
        key = target.group_key if target.namespace else explainer.named_group(target.name)
        return explainer.groups(key, scenario, bound, seconds=inf)
    return _offline(cache, target.text if target is not None else None, policy, question)


def _offline(cache: ClusterCache, name: str | None, policy: Policy | None, question: Json) -> list[Json]:
    explainer = _offline_explainer(cache)
    what_if = WhatIf(_scenario(cache, question), policy, question["narrate"])
    if name is None:
        given = hypothetical(question["objects"], cache.store.group_policies)
        return list(explainer.hypothetical(given, what_if, inf))
    found = explainer.waiting(explainer.named(name), what_if, inf)
    if found is None:
        raise UnknownPod(f"pod {one_line(name)} does not wait in this snapshot")
    return [found]


def _offline_explainer(cache: ClusterCache) -> Explainer:
    return Explainer(cache, Evaluator(Features()), Policy())


def _scenario(cache: ClusterCache, what_if: Json) -> Scenario:
    """The scenario of the options on a snapshot file. Raises WireError."""
    return scenario_of(cache.snapshot(), what_if["without"], what_if["free"], "--without")


def _show_all(found: list[Json], output: str, *, narrated: bool, attempts: Attempts | None) -> None:
    """Print explanations of groups and of pods. Facts about all pods of a group are printed once."""
    is_data = output in ("json", "yaml")
    for explanation in found if is_data else ():
        say_value(explanation, output)
    replies = [_REPLY.validate_python(explanation) for explanation in found]
    pods = [one for one in replies if isinstance(one, ExplanationReply)]
    groups = [one.group for one in replies if isinstance(one, GangExplanation)]
    if len(groups) > 1 and pods and not is_data:
        say("Each group is explained as if the others did not exist.")
    for one in replies if not is_data else ():
        if isinstance(one, GangExplanation):
            _show_group(one, _WIDE if output == "wide" else _BRIEF)
            members = [pod for pod in pods if pod.gang == one.group]
            _show_members(members, one.outcome, output, narrated=narrated)
        elif one.gang not in groups:
            _show(one, output, attempts)
    for pod in pods if narrated else ():
        if not pod.narration:
            say(f"berth: --narrate has no effect: no node was searched for pod {pod.pod}", err=True)


def _tell_classes(given: list[Json]) -> None:
    """Name the classes of the files: the answer is about the cluster with these."""
    for obj in given:
        if is_device_class(obj):
            name = one_line(str((obj.get("metadata") or {}).get("name")))
            say(f"berth: the answer uses DeviceClass {name} of the files: kubectl apply it before the pods", err=True)


def _show_members(members: list[ExplanationReply], outcome: str, output: str, *, narrated: bool) -> None:
    """Print the explanation that the pods of a group would get without the group."""
    console = table_screen()
    if output != "wide" and not narrated:
        alike = {one.alone.removeprefix(f"pod {one.pod}"): one for one in reversed(members)}
        members = list(reversed(alike.values()))[:_BRIEF] if outcome in _UNPLACED else []
    for one in members:
        console.print(f"if it were in no group: {one.alone}")
        if output == "wide":
            _show_nodes(console, one, _WIDE)
        _print_indented(console, one.narration)


def _show(found: ExplanationReply, output: str, attempts: Attempts | None) -> None:
    """Print the explanation of a pod as a table."""
    console, decision = table_screen(), found.decision
    sentence = found.sentence if decision is None else _decided(found.pod, decision)
    if found.alone:
        _show_sentence(console, sentence, found.outcome)
    else:
        console.print(sentence, style=_style(found.outcome))
    if found.misses:
        _show_misses(console, found)
    _print_indented(console, filter(None, [attempts(found.pod) if attempts is not None and decision is None else ""]))
    if found.gang:
        console.print(f"all about its group: berth explain group {found.gang}")
    if found.alone:
        more = "" if output == "wide" else " (its nodes: --output wide)"
        console.print(f"if it were in no group: {found.alone}{more}")
    if not found.alone or output == "wide":
        _show_nodes(console, found, _WIDE if output == "wide" else _BRIEF)
    _print_indented(console, found.narration)
    if decision is not None:
        _print_indented(console, _pairs(decision.chosen))
    if found.sets is not None and len(found.sets.chosen.gpus) > 1 and not found.sets.in_group:
        _print_indented(console, [_first_fit(found.sets)])
    if decision is not None and output == "wide":
        console.print(_best([decision.chosen]))


def _show_misses(console: Screen, found: ExplanationReply) -> None:
    """Print what would help beside the first miss, which is in the sentence, and then what only is lacking."""
    first, *others = found.misses
    before = "or: " if first not in found.facts else "what would help: "
    for miss in others:
        if miss not in found.facts:
            console.print(f"  {before}{miss}")
            before = "or: "
    _print_indented(console, [miss for miss in others if miss in found.facts])


def _show_nodes(console: Screen, found: ExplanationReply, rows: int) -> None:
    """Print what is true of the pod alone: the best nodes, the unschedulable ones, and the terms of its selectors."""
    if found.best:
        console.print(_best(found.best))
    if found.unschedulable:
        console.print(_unschedulable(found.unschedulable, rows))
    if found.terms:
        console.print("selectors, term by term:")
    for term in found.terms:
        fails = term in found.failing
        console.print(f"  {'fails ' if fails else 'passes'} {term}", style="red" if fails else "")


def _beside_best(one: ScoredNodeReply, unit: str) -> str:
    """A predicted bandwidth in GB/s beside the best of such a set on the node."""
    ring, best = f"{one.ring_gbps:.0f}", f"{one.best_gbps:.0f}"
    return f"{ring}{unit}, the best for this pod" if ring == best else f"{ring} of {best}{unit}"


def _first_fit(sets: ComparedSets) -> str:
    """What first fit would have taken on the same node."""
    gpus = ", ".join(sets.names[gpu] for gpu in sets.first_fit.gpus)
    if sets.first_fit == sets.chosen:
        return f"first fit takes the same GPUs: {gpus}"
    links = "" if sets.first_fit.is_joined else ", not joined by links"
    rates = f"{sets.first_fit.gbps:.0f} GB/s instead of {sets.chosen.gbps:.0f}"
    return f"first fit takes {gpus}{links}: {rates}"


def _decided(pod: str, decision: DecisionReply) -> str:
    chosen = decision.chosen
    devices = ", ".join(_devices(chosen)) or "no devices"
    found = f"pod {pod} was bound to {chosen.node} at {decision.at} with {devices}"
    if chosen.ring_gbps:
        found += f"; predicted {_beside_best(chosen, ' GB/s')} ({chosen.source})"
    if decision.runner_up:
        found += f"; {runner_up_text(decision.runner_up, decision.margin)}"
    return found


def _devices(chosen: ScoredNodeReply) -> list[str]:
    """The devices; those of claims that were allocated before are marked as such."""
    return [*chosen.devices, *(f"{device} (allocated before)" for device in chosen.reused)]


def _pairs(chosen: ScoredNodeReply) -> list[str]:
    """The pairs of devices that a pod uses together, a line each, the bandwidth of the network, a crowded clique."""
    pairs = [f"{one.device} + {one.other}: {one.nearness}{', ' * bool(one.note)}{one.note}" for one in chosen.pairs]
    more = f"and {counted(chosen.more_pairs, 'more pair')}" if chosen.more_pairs else ""
    crowded = crowded_text(chosen.clique) if chosen.clique else ""
    return [*pairs, *filter(None, (more, chosen.network, crowded))]


def _best(candidates: Sequence[ScoredNodeReply]) -> Table:
    table = Table("node", "score", "devices", "predicted GB/s", "why", title="best nodes", title_justify="left")
    for one in candidates:
        parts = (f"{part.name} {part.value:.2f}: {part.sentence}" for part in one.parts)
        gbps = _beside_best(one, "") if one.ring_gbps else "-"
        table.add_row(one.node, f"{one.score:.3f}", "\n".join(_devices(one)), gbps, "\n".join([*_pairs(one), *parts]))
    return table


def _unschedulable(found: Sequence[UnschedulableNodes], limit: int) -> Table:
    heads = ("nodes", "reason", "examples", "devices on the first")
    table = Table(*heads, title="unschedulable nodes", title_justify="left")
    for one in found[:limit]:
        causes = [f"{one.examples[0]}: {cause}" for cause in one.causes]  # so that no line is read as its row
        table.add_row(str(one.nodes), one.reason, ", ".join(one.examples), "\n".join(causes))
    return table


# -- the explanation of a group ---------------------------------------------------------------------------------


def _style(outcome: str) -> str:
    return f"bold {_COLOURS.get(outcome, '')}".strip()


def _show_sentence(console: Screen, sentence: str, outcome: str) -> None:
    """Print the sentence about a group, each part of it on a line of its own."""
    first, *rest = sentence.split("; ")
    console.print(first, style=_style(outcome))
    _print_indented(console, rest)


def _print_indented(console: Screen, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(f"  {line}")


def _show_group(found: GangExplanation, rows: int) -> None:
    """Print an explanation with at most so many rows in each table."""
    console = table_screen()
    _show_sentence(console, found.sentence, found.outcome)
    for miss in found.misses[1:]:
        console.print(f"  or: it {miss.sentence}")
    if found.cut_short:
        console.print(f"  {found.cut_short}")
    console.print(_facts(found))
    members = [(one.pod, one.state, one.node, one.reason, one.since) for one in found.members]
    _table(console, "members", ("pod", "state", "node", "reason", "waits since"), members, rows)
    parts = [(one.part, str(one.pods), one.level, one.domain, str(one.room)) for one in found.parts]
    _table(console, "slices and sub-groups", ("part", "pods", "in one", "where", "room"), parts, rows)
    plan = [(one.pod, one.node, "\n".join(one.devices)) for one in found.plan]
    _table(console, "plan", ("pod", "node", "devices"), plan, rows)
    holders = [
        (one.node, str(one.devices), ", ".join(one.pods or one.claims), one.state, one.group) for one in found.holders
    ]
    title = f"holders of devices {found.held_in}"
    _table(console, title, ("node", "devices", "pods", "state", "group"), holders, rows, found.more_holders)


def _facts(found: GangExplanation) -> str:
    facts = [f"named by {found.source}"]
    if found.minimum and found.members:
        facts.append(f"{found.bound} of at least {found.minimum} bound")
    elif found.minimum:
        facts.append(f"at least {found.minimum} pods together")
    if found.topology:
        facts.append(f"topology {found.topology}")
    if found.topology_label:
        facts.append(f"one value of {found.topology_label}")
    if found.since and found.outcome != "planned":
        facts.append(f"{found.since_event} since {found.since}")
    return "; ".join(facts)


def _table(
    console: Screen, title: str, heads: tuple[str, ...], rows: Sequence[tuple[str, ...]], most: int, more: int = 0
) -> None:
    if not rows:
        return
    table = Table(*heads, title=title, title_justify="left")
    for row in rows[:most]:
        table.add_row(*row)
    console.print(table)
    left = len(rows[most:]) + more
    if left:
        console.print(f"  and {left} more")
