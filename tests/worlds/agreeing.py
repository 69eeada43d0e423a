"""What `berth allocate` and serve say of one claim on the node n."""

from __future__ import annotations

from extender.api.fields import Json
from extender.base.bits import members
from extender.cache import ClusterCache
from extender.cli.allocate_command import answers_of
from extender.scheduling import Placement, Unschedulable, evaluate
from tests.worlds.filled_caches import asked, put


def check_case(case: Json, objects: list[Json], claim: Json) -> None:
    """Both give the claim the devices that the case expects, or "none", or an "error" with the text of the case."""
    cache = put(ClusterCache(), *objects)
    requirements, context = asked(cache, claim)
    info = cache.snapshot().node_infos["n"]
    status = evaluate(info, requirements, context)
    for order in ("in-tree", "preferred"):
        (found,) = answers_of([("", obj) for obj in [*objects, claim]], order, None)
        if case["expect"] == "error":
            assert case["text"] in found["error"]
            assert isinstance(status, Unschedulable)
            assert case["text"] in status.text
        elif case["expect"] == "none":
            assert (found["allocations"], found["error"]) == (None, None)
            assert isinstance(status, Unschedulable)
        else:
            assert found["allocations"], found
            assert [one["device"] for one in found["allocations"][0]["devices"]["results"]] == case["expect"]
            assert isinstance(status, Placement)
            assert [info.inventory.devices[bit].device.name for bit in members(status.solution.mask)] == case["expect"]
