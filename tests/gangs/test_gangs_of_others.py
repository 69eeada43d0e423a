"""Gangs of one namespace, and what those of other namespaces can do to them."""

from __future__ import annotations

from extender.api.pods import Pod
from extender.api.reasons import Code, Reason
from tests.worlds.gang_fleet import Gangs


def asked(fleet: Gangs, pod: Pod, *names: str) -> list[str]:
    """The nodes that passed, or the reasons. Besides `names` kube-scheduler offers a node that Berth does not know."""
    found = fleet.gangs.filter(pod, [*names, "unknown"])
    return found.passed or sorted(set(found.failed.values()))


def test_a_gang_waits_for_the_plan_of_one_gang_and_not_for_others_of_its_name() -> None:
    """Otherwise a tenant could keep a gang waiting with gangs on other nodes."""
    fleet = Gangs(nodes=2, kinds=1)
    first = fleet.joined("llm", [fleet.pod("theirs"), fleet.pod("theirs")])
    mine = fleet.joined("mine", [fleet.pod("mine"), fleet.pod("mine")])
    forged = fleet.joined("llm", [fleet.pod("forged"), fleet.pod("forged")])
    assert asked(fleet, forged[0], "n1") == ["n1"]
    assert asked(fleet, first[0], "n0") == ["n0"]
    waits = [str(Reason(Code.GANG_WAITS, ("theirs/llm",)))]
    assert asked(fleet, mine[0], "n0") == waits
    (plan,) = (one for key, one in fleet.gangs.forming.items() if key.namespace == "theirs")
    fleet.gangs.plans.end(plan, "a pod was deleted")
    assert asked(fleet, mine[0], "n0") == ["n0"]
