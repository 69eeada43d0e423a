"""Prints the explanation of a group, for `berth explain group`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from extender.cli.output import Screen, table_screen
from extender.wire import Json


def show_sentence(console: Screen, sentence: str) -> None:
    """Print the sentence about a group, each part of it on a line of its own."""
    first, *rest = sentence.split("; ")
    console.print(first, style="bold")
    for part in rest:
        console.print(f"  {part}")


def show_group(found: Json, rows: int) -> None:
    """Print an explanation with at most so many rows in each table."""
    console = table_screen()
    show_sentence(console, found["sentence"])
    for miss in found["misses"][1:]:
        console.print(f"  or: it {miss['sentence']}")
    if found["cut_short"]:
        console.print(f"  {found['cut_short']}")
    console.print(_facts(found))
    members = [(one["pod"], one["state"], one["node"], one["reason"], one["since"]) for one in found["members"]]
    _table(console, "members", ("pod", "state", "node", "reason", "waits since"), members, rows)
    plan = [(one["pod"], one["node"], "\n".join(one["devices"])) for one in found["plan"]]
    _table(console, "plan", ("pod", "node", "devices"), plan, rows)
    holders = [
        (one["node"], str(one["devices"]), ", ".join(one["pods"] or one["claims"]), one["state"], one["group"])
        for one in found["holders"]
    ]
    title = f"holders of devices {found['held_in']}"
    _table(console, title, ("node", "devices", "pods", "state", "group"), holders, rows, found["more_holders"])


def _facts(found: Json) -> str:
    facts = [f"named by {found['source']}"]
    if found["minimum"] and found["members"]:
        facts.append(f"{found['bound']} of at least {found['minimum']} bound")
    elif found["minimum"]:
        facts.append(f"at least {found['minimum']} pods together")
    if found["topology"]:
        facts.append(f"topology {found['topology']}")
    if found["topology_label"]:
        facts.append(f"one value of {found['topology_label']}")
    if found["since"] and found["outcome"] != "planned":
        facts.append(f"{found['since_event']} since {found['since']}")
    return "; ".join(facts)


def _table(
    console: Screen, title: str, heads: tuple[str, ...], rows: Sequence[tuple[str, ...]], most: int, more: int = 0
) -> None:
    if not rows:
        return
    table = Table(title=title, title_justify="left")
    for head in heads:
        table.add_column(head)
    for row in rows[:most]:
        table.add_row(*row)
    console.print(table)
    left = len(rows[most:]) + more
    if left:
        console.print(f"  and {left} more")
