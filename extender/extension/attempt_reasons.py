"""The reasons of a filter request that no node passed, as the reply and the metric have them."""

from __future__ import annotations

from collections.abc import Iterable

from extender.model import Code, GroupKey, Reason
from extender.scheduling import CollectedDomain, NodeRanking

GangNodes = Iterable[tuple[str, GroupKey]]
"""Each node with devices that are held for a gang, and the gang."""

_HELD = str(Reason(Code.HELD))


def name_gangs(reasons: dict[str, str], gang_nodes: GangNodes) -> int:
    """Name the gang in the reason of each node whose devices are held for it. Returns the number of these nodes."""
    found = {node: key for node, key in gang_nodes if reasons.get(node) == _HELD}
    reasons.update({node: str(Reason(Code.HELD_FOR_GANG, (str(key),))) for node, key in found.items()})
    return len(found)


def main_code(ranking: NodeRanking, reasons: dict[str, str], collected: CollectedDomain | None, for_gangs: int) -> Code:
    """The code that the metric counts.

    `reasons` maps each named node to its reason. `for_gangs` is the number of nodes with devices held for a gang.
    """
    code = ranking.main_reason() or Code.ELSEWHERE
    if collected is not None and str(collected.reason) in reasons.values():
        return Code.COLLECTED_FOR_GANG
    held = for_gangs and code is Code.HELD and for_gangs >= sum(text == _HELD for text in reasons.values())
    return Code.HELD_FOR_GANG if held else code
