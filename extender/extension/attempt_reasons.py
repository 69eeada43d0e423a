"""The reasons of a filter request that no node passed, as the reply, the record and the metric have them."""

from __future__ import annotations

from collections import Counter
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


def count_reasons(
    ranking: NodeRanking, reasons: dict[str, str], collected: CollectedDomain | None, for_gangs: int
) -> tuple[Counter[str], Code]:
    """The number of nodes by reason text, and the code that the metric counts.

    `reasons` maps each named node to its reason. `for_gangs` is the number of nodes with devices held for a gang.
    """
    code = ranking.main_reason() or Code.ELSEWHERE
    by_text = Counter(reasons.values()) if for_gangs or collected is not None else Counter[str]()
    if collected is not None and str(collected.reason) in by_text:
        return by_text, Code.COLLECTED_FOR_GANG
    if not for_gangs:
        return ranking.unschedulable_counts(), code
    return by_text, Code.HELD_FOR_GANG if code is Code.HELD and for_gangs >= by_text[_HELD] else code
