"""`berth defrag`: which pods to restart so that others fit, in which order, and the proof that they fit then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table

from extender.assess import (
    BUDGET,
    CLAIM,
    ClusterFacts,
    ClusterReading,
    Move,
    RestartAdvice,
    Terms,
    advice_for,
    clock_faults,
    facts_of,
    newest_time,
    reading_of,
    unread_of,
)
from extender.assess.wanted_pods import (
    Shape,
    Wanted,
    largest_shapes,
    unsized_products,
    wanted_group,
    wanted_objects,
    wanted_pod,
    wanted_shape,
)
from extender.base.berth_errors import WireError
from extender.base.text_limits import counted
from extender.cel import CompileError
from extender.cel.dra import compile_selector
from extender.cli.cluster_objects import Objects, from_cluster, from_files, used_policy
from extender.cli.console_options import explained
from extender.cli.logs import set_up_logging
from extender.cli.object_files import checked_files
from extender.cli.options import NAMESPACE, BerthNamespace, BerthPolicy, Context, Kubeconfig, check_namespace
from extender.cli.output import Screen, say, say_json, table_screen
from extender.console import BUDGETS_PATH
from extender.lint import one_sentence
from extender.policy import Policy

_MAX_NAMED = 3  # pods of a reason
_CLAIM = "ResourceClaim"
_NEEDED = {
    "ResourceSlice": "which devices there are",
    "DeviceClass": "which devices a class has",
    _CLAIM: "which devices are in use",
}
_MAX_GPUS, _MAX_PODS = 32, 400
_SEARCH_SECONDS = 10.0
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[pod|group] [NAMESPACE/]NAME", help="A pod or a group that waits for devices."),
]
Files = Annotated[
    list[Path] | None,
    typer.Option("-f", "--file", help="A pod or a workload that does not exist yet, with its claim templates."),
]
Gpus = Annotated[
    int | None, typer.Option(min=1, max=_MAX_GPUS, help="Room for a pod with so many GPUs that links join.")
]
Pods = Annotated[int, typer.Option(min=1, max=_MAX_PODS, help="So many pods with --gpus each, as a gang.")]
Level = Annotated[
    str, typer.Option("--in", metavar="LABEL", help="All --pods on nodes with one value of this node label.")
]
Cel = Annotated[str, typer.Option(metavar="CEL", help="Only such GPUs, as the selector of a request says it.")]
ClassName = Annotated[str, typer.Option("--class", metavar="NAME", help="The DeviceClass of --gpus.")]
Priority = Annotated[
    int | None,
    typer.Option(help="Restart no pods above this priority. Default: that of the waiting pod, otherwise 0."),
]
AllSchedulers = Annotated[bool, typer.Option("--all-schedulers", help="Restart pods of other schedulers, too.")]
InNamespace = Annotated[str, typer.Option("-n", "--namespace", help="That of the pod or the group. Default: default.")]
Snapshots = Annotated[
    list[Path] | None,
    typer.Option(help="Files of berth snapshot, or lists of kubectl get -o json, in place of the cluster."),
]
Seconds = Annotated[float, typer.Option(min=1.0, max=3600.0, help="End the search after so long.")]
Form = Annotated[Literal["table", "json", "commands"], typer.Option("-o", "--output", help="How to print.")]


def defrag_command(
    words: Words = None,
    *,
    file: Files = None,
    gpus: Gpus = None,
    pods: Pods = 1,
    level: Level = "",
    selector: Cel = "",
    device_class: ClassName = "gpu.nvidia.com",
    priority: Priority = None,
    all_schedulers: AllSchedulers = False,
    namespace: InNamespace = "",
    snapshot: Snapshots = None,
    policy: BerthPolicy = None,
    berth_namespace: BerthNamespace = NAMESPACE,
    seconds: Seconds = _SEARCH_SECONDS,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    output: Form = "table",
) -> None:
    """Say which pods to restart so that others fit.

    It only lists objects. Without a pod, a file or --gpus, it answers for the largest set of joined GPUs of each
    product, or for one GPU. Exit code 1 if there is no room and no advice.

    Examples: berth defrag pod llm-0 -n training;  berth defrag --gpus 8;  berth defrag -f job.yaml
    """
    set_up_logging("error")  # each bind of the proof would write a line
    check_namespace(namespace)
    shape = Shape(gpus, pods, level, device_class, selector) if gpus else None
    _check_question(words, file, shape, (("--pods", pods > 1), ("--in", level), ("--selector", selector)))
    objects = from_files(snapshot) if snapshot else from_cluster(kubeconfig, context, BUDGETS_PATH)
    reading = reading_of(*objects[:3], is_live=objects.is_live, files=objects.files)
    _check_kinds(reading, objects, of_files=bool(snapshot))
    unread = unread_of(reading, reading.cache.snapshot())
    if unread.claims:
        raise WireError(objects.where, f"{unread.claims}, so it is not known which devices are in use")
    decided_by = used_policy(policy, kubeconfig, context, berth_namespace, is_live=objects.is_live)
    reading.lacking += filter(None, [*unread.notes, decided_by.problem, decided_by.unread])
    if shape and shape.class_name not in reading.cache.snapshot().classes:
        raise WireError("--class", f"device class {shape.class_name} does not exist")
    if level:
        _check_level(level, reading, decided_by.policy)
    clock = datetime.now(UTC)
    now = newest_time(reading, clock) if snapshot else clock
    reading.lacking += filter(None, [clock_faults(reading, now)])
    terms = Terms(now, priority, all_schedulers=all_schedulers)
    with Screen(stderr=True).status("searching"):
        facts = facts_of(reading)
        wanted = map(partial(_check_class, terms), _wanted(facts, words, file, shape, namespace))
        found = list(advice_for(facts, wanted, terms, decided_by.policy, seconds))
    if not (words or file or shape):
        reading.lacking += unsized_products(reading.cache.snapshot())
    _show(found, reading, output, of_files=bool(snapshot))
    if not any(one.is_proved or one.verdict == "fits" for one in found):
        raise typer.Exit(1)


def _check_question(
    words: Sequence[str] | None,
    file: Sequence[Path] | None,
    shape: Shape | None,
    parts: Sequence[tuple[str, object]],
) -> None:
    """Raises WireError if the question is not one."""
    given = [name for name, value in (("a pod or a group", words), ("-f FILE", file), ("--gpus", shape)) if value]
    if len(given) > 1:
        raise WireError(given[0], f"does not go with {given[1]}: name one of them")
    for name, value in parts:
        if value and shape is None:
            raise WireError(name, "goes with --gpus")
    try:
        compile_selector(shape.selector if shape is not None and shape.selector else "true")
    except CompileError as error:
        raise WireError("--selector", one_sentence(error)) from error
    if shape is not None and shape.level and shape.pods == 1:
        raise WireError("--in", "is for several pods: give --pods, too")


def _check_kinds(reading: ClusterReading, objects: Objects, *, of_files: bool) -> None:
    """Raises WireError if it is not known which devices there are, or which are in use.

    Without claims, all devices would seem free. A file does not say whether its cluster has no claims: it may have none
    if its running pods name none.
    """
    named = any(pod.claim_keys or pod.extended_claim for pod in reading.pods if pod.node_name)
    for kind, what in _NEEDED.items():
        why = objects.refused.get(kind, "")
        needed = kind != _CLAIM or named or "Pod" not in reading.kinds
        if of_files and kind not in reading.kinds and needed:
            why = "there is none"
        if why:
            raise WireError(objects.where, f"has no readable {kind} ({why}), so it is not known {what}")


def _check_level(level: str, reading: ClusterReading, policy: Policy) -> None:
    """Raises WireError if no node has the label."""
    labels = {label for info in reading.cache.snapshot().node_infos.values() for label in info.node.labels}
    if level not in labels:
        known = ", ".join(one for one in policy.group_levels if one in labels)
        other = f"those of domains that nodes have: {known}" if known else "nor one of the policy's group_levels"
        raise WireError("--in", f"no node has the label {level}, {other}")


def _wanted(
    facts: ClusterFacts,
    words: Sequence[str] | None,
    file: Sequence[Path] | None,
    shape: Shape | None,
    namespace: str,
) -> Iterator[Wanted]:
    """The pods for which room is to be made, one or a gang at a time."""
    snapshot = facts.cache.snapshot()
    if words:
        named = explained(words, namespace)
        named = named._replace(namespace=named.namespace or "default")
        try:
            yield (wanted_group if named.is_group else wanted_pod)(facts, snapshot, named.group_key)
        except WireError as error:
            raise named.of_wrong_kind() or error from error
    elif file:
        yield wanted_objects([obj for _, obj in checked_files(list(file))], snapshot)
    elif shape is not None:
        yield wanted_shape(shape, snapshot)
    else:
        for one in largest_shapes(snapshot):
            yield wanted_shape(one, snapshot)


def _check_class(terms: Terms, wanted: Wanted) -> Wanted:
    """Raises WireError if it is not known which priority the pods of a file will have."""
    if wanted.unknown_class and terms.priority is None:
        raise WireError(
            f"{wanted.asked.text}: priorityClassName {wanted.unknown_class}",
            "is a class that the files do not have: add it with -f, or give its value with --priority",
        )
    return wanted


# -- output ----------------------------------------------------------------------------------------------------------


def _show(found: Sequence[RestartAdvice], reading: ClusterReading, output: str, *, of_files: bool) -> None:
    notes = [*reading.lacking, *reading.unreadable]
    if of_files and BUDGET not in reading.kinds:
        notes.append(f"the files have no {BUDGET}: kubectl get pdb -A -o json writes a file to add with --snapshot")
    if output == "json":
        say_json({"advice": [one.as_json() for one in found], "not_known": notes})
        return
    if not found:
        say(
            "no answer: no node has GPUs with a DeviceClass of their driver's name: ask with --gpus, --class",
            err=output == "commands",
        )
    notes = [f"not known: {note}" for note in notes]
    if sum(one.is_proved for one in found) > 1:
        notes.append("each of these answers is proved alone: carry out one, then ask again")
    if output == "commands":
        if any(one.commands for one in found):
            for line in notes:
                say(f"# {line}")
        for one in found:
            _say_commands(one, is_one_of_several=len(found) > 1)
    else:
        for one in found:
            _print(one)
        for line in notes:
            say(line)


def _say_commands(found: RestartAdvice, *, is_one_of_several: bool) -> None:
    comments = [found.wanted] * is_one_of_several
    comments += filter(None, (found.jobs, found.other_schedulers) if found.commands else ())
    for line in (*(f"# {one}" for one in comments), *found.commands):
        say(line)
    if not found.commands:
        say(found.sentence, err=True)


def _print(found: RestartAdvice) -> None:
    screen = table_screen()
    screen.print(found.sentence, style="bold")
    if found.is_proved:
        heads = ("", "restart", "owner", "frees", "GPU-hours", "cost", "goes to")
        table = Table(*heads, box=None, pad_edge=False, header_style="dim")
        for number, move in enumerate(found.moves, 1):
            table.add_row(str(number), *_cells(move))
        if found.waiting_gpus:
            table.add_row(
                "", f"{counted(found.waiting_gpus, 'GPU')} would wait", "", "", "", f"{found.waiting_cost:g}", ""
            )
        if found.moves:
            screen.print(table)
        screen.print(found.proof, style="green")
    for line in filter(None, (found.jobs, found.other_schedulers)):
        screen.print(line)
    for why, pods in sorted(found.stays.items(), key=lambda item: (-len(item[1]), item[0])):
        more = f" and {counted(len(pods) - _MAX_NAMED, 'other')}" if len(pods) > _MAX_NAMED else ""
        kind = "claims that no restart frees" if pods[0].startswith(CLAIM) else "pods that are never restarted"
        screen.print(f"{kind}, because {why}: {', '.join(sorted(pods)[:_MAX_NAMED])}{more}")
    for command in found.commands:
        screen.print(command)


def _cells(move: Move) -> tuple[str, ...]:
    goes = [", ".join(move.goes_to)] if move.goes_to else []
    if move.waiting_pods:
        part = f"{move.waiting_pods} of {len(move.pods)} pods " if move.goes_to else ""
        goes.append(f"{part}would wait: {move.waits}".rstrip(": "))
    return move.restart, move.owner, "; ".join(move.frees), f"{move.gpu_hours:g}", f"{move.cost:g}", "; ".join(goes)
