"""`berth nodes`, `berth claims` and `berth top`: show the fleet as a running `berth console` reports it."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Annotated, Literal
from urllib.parse import quote

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from extender.api.fields import Json
from extender.base.berth_errors import WireError
from extender.base.text_limits import counted, one_line
from extender.cli.console_client import ClaimReply, ConsoleClient, FleetChangeReply, FleetReply, NodeDetailReply
from extender.cli.console_options import CLAIM_KINDS, NODE_KINDS, ConsoleMaker, asks_console, node_names, without_kind
from extender.cli.options import AllNamespaces, ListOutput, Namespace, Watch, check_namespace
from extender.cli.output import Screen, say, say_value, table_screen, watch_changes

_COLOURS = {"f": "green", "c": "white", "u": "blue", "h": "yellow", "d": "red", "x": "magenta"}
_STATES = {
    "f": "free", "c": "closed", "u": "allocated", "h": "held", "s": "shared", "d": "drifting", "x": "unhealthy",
}  # fmt: skip
_TOP_PODS, _TOP_DECISIONS = 10, 12
_DATA = ("json", "yaml")


@asks_console
def nodes_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME|node/NAME]...", help="Only nodes whose name contains one.", autocompletion=node_names
        ),
    ] = None,
    *,
    output: ListOutput = "table",
    watch: Watch = False,
    console: ConsoleMaker,
) -> None:
    """List nodes with the state of every GPU, and other devices.

    The full name of a node also lists its devices: each has its PCIe root and NUMA node, with who says so, and a free
    GPU the nearest free NICs. Exit code 1 if no name matches.

    Example: berth nodes h100 --output wide;  berth nodes node-17
    """
    client, parts = console(), [without_kind(name, NODE_KINDS) for name in names or ()]
    fleet = client.ask("/v1/fleet", FleetReply)
    rows = _named_nodes(fleet, parts)
    if not rows and parts:
        say(f"berth: no node has {' or '.join(map(one_line, parts))} in its name", err=True)
    if rows or not parts or output in _DATA:
        _show_nodes(client, rows, parts, output)

    def changed() -> list[Json]:
        """The console sends only the nodes that changed."""
        nonlocal fleet
        fleet = client.ask(f"/v1/fleet?since={quote(str(fleet.get('cursor', '')))}", FleetChangeReply)
        return _named_nodes(fleet, parts)

    if watch:
        watch_changes(changed, lambda rows: _show_nodes(client, rows, parts, output), rows)
    if not rows:
        raise typer.Exit(1)


def _named_nodes(fleet: Json, parts: Sequence[str]) -> list[Json]:
    return [node for node in fleet["nodes"] if not parts or any(part in node["name"] for part in parts)]


def _show_nodes(console: ConsoleClient, rows: list[Json], parts: Sequence[str], output: str) -> None:
    """Print rows of the fleet, and the devices of those nodes whose full name was given."""
    if output == "name":
        say("\n".join(f"node/{row['name']}" for row in rows))
        return
    named = [row["name"] for row in rows if row["name"] in parts]
    details = {name: console.ask(f"/v1/nodes/{quote(name, safe='')}", NodeDetailReply) for name in named}
    if output in _DATA:
        say_value([details.get(row["name"], row) for row in rows], output)
        return
    screen = table_screen()
    screen.print(_node_table(rows, wide=output == "wide"))
    screen.print(_summary(rows))
    for detail in details.values():
        screen.print(_device_table(detail))


@asks_console
def claims_command(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[[NAMESPACE/]NAME|claim/NAME]...", help="Only these claims.")
    ] = None,
    *,
    namespace: Namespace = "",
    all_namespaces: AllNamespaces = False,
    output: ListOutput = "table",
    watch: Watch = False,
    console: ConsoleMaker,
) -> None:
    """List claims with their devices and pods.

    Exit code 1 if no claim has one of the names.

    Example: berth claims --output json
    """
    check_namespace(namespace, everywhere=all_namespaces)
    client = console()
    within = "" if all_namespaces else namespace or client.namespace
    wanted = {without_kind(name, CLAIM_KINDS) for name in names or ()}

    def found() -> list[Json]:
        rows = client.ask("/v1/claims", list[ClaimReply])
        return [one for one in rows if _is_wanted(one["claim"], within, wanted)]

    rows = found()
    if rows or output in _DATA:
        _show_claims(rows, output)
    if not rows:
        place, more = (f" in namespace {within}", "; -A lists all namespaces") if within else ("", "")
        named = f" has the name {' or '.join(map(one_line, sorted(wanted)))}" if wanted else ""
        say(f"berth: no claim{place}{named}{more}", err=True)
    if watch:
        watch_changes(found, lambda rows: _show_claims(rows, output), rows)
    if not rows and wanted:
        raise typer.Exit(1)


def _is_wanted(claim: str, within: str, wanted: Collection[str]) -> bool:
    """Whether a claim has one of the names. One with its namespace need not be `within` a namespace."""
    namespace, _, name = claim.partition("/")
    if claim in wanted:
        return True
    return (not within or namespace == within) and (not wanted or name in wanted)


def _show_claims(rows: list[Json], output: str) -> None:
    if output == "name":
        say("\n".join(f"resourceclaim.resource.k8s.io/{one['claim'].partition('/')[2]}" for one in rows))
        return
    if output in _DATA:
        say_value(rows, output)
        return
    table = Table("claim", "devices", "pods", *(["by", "problem"] if output == "wide" else []), box=None)
    for one in rows:
        allocator = "berth" if one["ours"] else "another" if one["devices"] else ""
        more = [allocator, one["problem"]] if output == "wide" else []
        table.add_row(one["claim"], " ".join(one["devices"]) or "-", " ".join(one["pods"]) or "-", *more)
    table_screen().print(table)


@asks_console
def top_command(
    *,
    once: Annotated[bool, typer.Option("--once", help="Print the fleet once and end.")] = False,
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Go on without a terminal, too, until Ctrl-C.")] = False,
    output: Annotated[
        Literal["table", "wide", "json", "yaml"],
        typer.Option("-o", "--output", help="wide: all pods that wait. json and yaml print the fleet once and end."),
    ] = "table",
    seconds: Annotated[float, typer.Option(min=0.2, max=60, help="Seconds between two updates.")] = 2.0,
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Only pods of this namespace.")] = "",
    console: ConsoleMaker,
) -> None:
    """Watch free GPUs, waiting pods and decisions.

    Ctrl-C ends it.

    Example: berth top --seconds 5
    """
    check_namespace(namespace)
    if watch and (once or output in _DATA):
        raise WireError("--watch", f"does not go with {'--once' if once else f'--output {output}'}")
    client = console()
    if output in _DATA:
        say_value(client.ask("/v1/fleet", FleetReply), output)
        return
    screen = table_screen()

    def picture() -> Group:
        return _top(client.ask("/v1/fleet", FleetReply), namespace, everything=output == "wide")

    first = picture()
    if once or not sys.stdout.isatty():
        screen.print(first)
        if not watch:
            return
    with suppress(KeyboardInterrupt), _shown(first, screen) as show:
        while True:
            time.sleep(seconds)
            show(picture())


@contextmanager
def _shown(first: Group, console: Screen) -> Iterator[Callable[[Group], None]]:
    """What shows the next picture: in the place of the one before on a terminal, else below it."""
    if not sys.stdout.isatty():
        yield console.print
        return
    with Live(first, console=console, screen=True) as live:
        yield live.update


def _letters(gpus: str) -> Text:
    return Text.assemble(*((letter, _COLOURS.get(letter, "cyan")) for letter in gpus or "-"))


def _node_table(rows: list[Json], *, wide: bool) -> Table:
    others = ["other devices (free/all)"] if any(node.get("others") for node in rows) else []
    places = ["zone", "rack", "clique"] if wide else []
    table = Table("node", "product", Column("free", justify="right"), "GPUs", *places, *others, box=None)
    for node in rows:
        more = [node.get(name, "-") for name in places]
        if others:
            counts = (f"{one['driver']} {one['free']}/{one['devices']}" for one in node.get("others", ()))
            more.append(" ".join(counts) or "-")
        table.add_row(node["name"], node["product"], str(node["gpus"].count("f")), _letters(node["gpus"]), *more)
    return table


def _device_table(node: Json) -> Table:
    """The devices of a node with their places; columns that no device fills are left out."""
    heads = ("device", "state", "PCIe root", "NUMA node", "free beside it", "claims")
    rows = [
        (
            device["name"],
            device["state"],
            _with_source(device["place"]["roots"], [device["place"]["roots_from"]] * len(device["place"]["roots"])),
            _with_source(device["place"]["numa"], device["place"]["numa_from"]),
            "\n".join(map(_beside, device["beside"])),
            " ".join(device["claims"]),
        )
        for device in node["devices"]
    ]
    used = [column for column in range(len(heads)) if any(row[column] for row in rows)]
    table = Table(*(heads[column] for column in used), title=node["name"], title_justify="left", box=None)
    for row in rows:
        table.add_row(*(row[column] or "-" for column in used))
    return table


def _with_source(values: Iterable[object], sources: Iterable[str]) -> str:
    return ", ".join(f"{value} ({source})" for value, source in zip(values, sources, strict=True))


def _beside(near: Json) -> str:
    more = f" and {near['more']} more" if near["more"] else ""
    return f"{', '.join(near['devices'])}{more}: {near['nearness']}"


def _summary(rows: list[Json], *, letters_too: bool = True) -> str:
    letters = Counter("s" if letter.isdigit() else letter for node in rows for letter in node["gpus"])
    counts = ", ".join(
        f"{letters[letter]} {name}" + f" ({'1-9' if letter == 's' else letter})" * letters_too
        for letter, name in _STATES.items()
        if letters[letter]
    )
    return f"{counted(len(rows), 'node')}: {counts or 'no GPUs'}"


def _when(at: str) -> str:
    """The time of a decision of today, the day of an older one: both fit into 80 columns beside the rest."""
    day, _, time_of_day = at.partition("T")
    return time_of_day if day == datetime.now(UTC).date().isoformat() else day


def _top(fleet: Json, namespace: str = "", *, everything: bool = False) -> Group:
    """The tables of `berth top`. Pods and decisions are those of a namespace, or of all (''): the first few, or all."""
    products: dict[str, list[Json]] = {}
    for node in (node for node in fleet["nodes"] if node["gpus"]):
        products.setdefault(node["product"], []).append(node)
    names = ("nodes", "GPUs", "free", "closed", "largest free on one node")
    heads = [Column(head, justify="right") for head in names]
    table = Table("product", *heads, title="GPUs", title_justify="left", box=None)
    for name, nodes in sorted(products.items()):
        free = [node["gpus"].count("f") for node in nodes]
        closed, gpus = sum(node["gpus"].count("c") for node in nodes), sum(len(node["gpus"]) for node in nodes)
        table.add_row(name, *map(str, (len(nodes), gpus, sum(free), closed, max(free))))
    title = counted(fleet["waiting"], "pod waits", "pods wait")
    own = [
        [one for one in fleet[name] if not namespace or one["pod"].startswith(f"{namespace}/")]
        for name in ("pending", "decisions")
    ]
    waiting = Table(title=title, title_justify="left", box=None, show_header=False)
    for pod in own[0] if everything else own[0][:_TOP_PODS]:
        more = f" and {pod['pods'] - 1} more of its group" if pod.get("pods", 1) > 1 else ""
        waiting.add_row(f"{pod['pod']}{more}", pod["sentence"])
    decided = Table(title="decisions", title_justify="left", box=None, show_header=False)
    for one in own[1] if everything else own[1][:_TOP_DECISIONS]:
        best = ", the best" if one["ring_gbps"] == one["best_gbps"] else f" of {one['best_gbps']}"
        gbps = f"predicted GB/s: {one['ring_gbps']}{best}" if one["ring_gbps"] else ""
        decided.add_row(_when(one["at"]), one["pod"], one["node"], counted(one["devices"], "device"), gbps)
    return Group(_summary(fleet["nodes"], letters_too=False), table, waiting, decided)
