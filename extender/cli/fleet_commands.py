"""`berth nodes`, `berth claims` and `berth top`: show the fleet as a running `berth console` reports it."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Literal
from urllib.parse import quote

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from extender.api.fields import Json
from extender.base.text_limits import counted
from extender.cli.berth_client import SERVER, ClaimReply, FleetReply, NodeDetailReply, Server, Token, ask
from extender.cli.options import WideOutput
from extender.cli.output import say_json, table_screen

_COLOURS = {"f": "green", "u": "blue", "h": "yellow", "d": "red", "x": "magenta"}
_TOP_PODS, _TOP_DECISIONS = 10, 12


def nodes_command(
    names: Annotated[list[str] | None, typer.Argument(help="Only nodes whose name contains one of these.")] = None,
    server: Server = SERVER,
    token: Token = "",
    output: WideOutput = "table",
) -> None:
    """List nodes with the state of every GPU, and other devices.

    The full name of a node also lists its devices: each has its PCIe root and NUMA node, with who says so, and a free
    GPU the nearest free NICs. Exit code 1 if no name matches.

    Example: berth nodes h100 --output wide;  berth nodes node-17
    """
    fleet = ask(server, token, "/v1/fleet", FleetReply)
    rows = [n for n in fleet["nodes"] if not names or any(part in n["name"] for part in names)]
    named = [n["name"] for n in rows if n["name"] in (names or ())]
    details = {name: ask(server, token, f"/v1/nodes/{quote(name, safe='')}", NodeDetailReply) for name in named}
    if output == "json":
        say_json([details.get(row["name"], row) for row in rows])
    else:
        console = table_screen()
        console.print(_node_table(rows, wide=output == "wide"))
        console.print(_summary(rows))
        for detail in details.values():
            console.print(_device_table(detail))
    if not rows:
        raise typer.Exit(1)


def claims_command(
    server: Server = SERVER,
    token: Token = "",
    output: WideOutput = "table",
) -> None:
    """List claims with their devices and pods.

    Example: berth claims --output json
    """
    rows = ask(server, token, "/v1/claims", list[ClaimReply])
    if output == "json":
        say_json(rows)
        return
    table = Table("claim", "devices", "pods", *(["by", "problem"] if output == "wide" else []), box=None)
    for one in rows:
        more = [_allocator(one), one["problem"]] if output == "wide" else []
        table.add_row(one["claim"], " ".join(one["devices"]) or "-", " ".join(one["pods"]) or "-", *more)
    table_screen().print(table)


def top_command(
    *,
    server: Server = SERVER,
    token: Token = "",
    once: Annotated[bool, typer.Option("--once", help="Print the fleet once and end.")] = False,
    output: Annotated[
        Literal["table", "wide", "json"], typer.Option(help="How to print; json prints the fleet once and ends.")
    ] = "table",
    seconds: Annotated[float, typer.Option(min=0.2, max=60, help="Seconds between two updates.")] = 2.0,
) -> None:
    """Watch free GPUs, waiting pods and decisions.

    Ctrl-C ends it.

    Example: berth top --seconds 5
    """
    if output == "json":
        say_json(ask(server, token, "/v1/fleet", FleetReply))
        return
    console = table_screen()
    if once or not sys.stdout.isatty():
        console.print(_top(ask(server, token, "/v1/fleet", FleetReply)))
        return
    with Live(_top(ask(server, token, "/v1/fleet", FleetReply)), console=console, screen=True) as live:
        try:
            while True:
                time.sleep(seconds)
                live.update(_top(ask(server, token, "/v1/fleet", FleetReply)))
        except KeyboardInterrupt:
            return


def _allocator(claim: Json) -> str:
    if claim["ours"]:
        return "berth"
    return "another" if claim["devices"] else ""


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
    names = {"f": "free", "u": "allocated", "h": "held", "s": "shared", "d": "drifting", "x": "unhealthy"}
    counts = ", ".join(
        f"{letters[letter]} {name}" + f" ({'1-9' if letter == 's' else letter})" * letters_too
        for letter, name in names.items()
        if letters[letter]
    )
    return f"{counted(len(rows), 'node')}: {counts or 'no GPUs'}"


def _when(at: str) -> str:
    """The time of a decision of today, the day of an older one: both fit into 80 columns beside the rest."""
    day, _, time_of_day = at.partition("T")
    return time_of_day if day == datetime.now(UTC).date().isoformat() else day


def _top(fleet: Json) -> Group:
    products: dict[str, list[Json]] = {}
    for node in (node for node in fleet["nodes"] if node["gpus"]):
        products.setdefault(node["product"], []).append(node)
    heads = [Column(head, justify="right") for head in ("nodes", "GPUs", "free", "largest free on one node")]
    table = Table("product", *heads, title="GPUs", title_justify="left", box=None)
    for name, nodes in sorted(products.items()):
        free = [node["gpus"].count("f") for node in nodes]
        table.add_row(name, str(len(nodes)), str(sum(len(n["gpus"]) for n in nodes)), str(sum(free)), str(max(free)))
    title = counted(fleet["waiting"], "pod waits", "pods wait")
    waiting = Table(title=title, title_justify="left", box=None, show_header=False)
    for pod in fleet["pending"][:_TOP_PODS]:
        more = f" and {pod['pods'] - 1} more of its group" if pod.get("pods", 1) > 1 else ""
        waiting.add_row(f"{pod['pod']}{more}", pod["sentence"])
    decided = Table(title="decisions", title_justify="left", box=None, show_header=False)
    for one in fleet["decisions"][:_TOP_DECISIONS]:
        gbps = f"predicted {one['ring_gbps']} of {one['best_gbps']} GB/s" if one["ring_gbps"] else ""
        decided.add_row(_when(one["at"]), one["pod"], one["node"], counted(one["devices"], "device"), gbps)
    return Group(_summary(fleet["nodes"], letters_too=False), table, waiting, decided)
