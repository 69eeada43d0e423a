"""Of a pod, Berth keeps a bounded part of what its author writes, and says so where it needed more."""

from __future__ import annotations

import gc
import json
import tracemalloc
from typing import Any

import pytest

from extender.api.pods import decode_pod
from tests.worlds.running_berth import berthing, claim, pod

_KEPT = 40_000  # bytes of one pod

WIDE = "\U0001f600" + "x" * 200_000


def _written(**spec: Any) -> dict:
    found = pod("p", "one")
    found["spec"] |= spec
    return found


def _affinity(values: int) -> dict:
    terms = [{"matchExpressions": [{"key": "k", "operator": "In", "values": [f"v{i}" for i in range(values)]}]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def _noted(**annotations: str) -> dict:
    return pod("p", "one", annotations={f"berth.dev/{name}": text for name, text in annotations.items()})


def _reported(**status: Any) -> dict:
    return {**pod("p", "one"), "status": status}


_DEVICES = {"resources": {"limits": {"example.com/a": "1", "cpu": "1"}}}
HUGE: dict[str, dict] = {
    "node affinity": _written(affinity=_affinity(50_000)),
    "node selector": _written(nodeSelector={f"k{i}": "v" for i in range(10_000)}),
    "tolerations": _written(tolerations=[{"key": f"k{i}", "operator": "Exists"} for i in range(10_000)]),
    "containers": _written(containers=[{"name": f"c{i}", **_DEVICES} for i in range(5_000)]),
    "containers without devices": _written(containers=[{"name": f"c{i}"} for i in range(5_000)]),
    "claims": _written(resourceClaims=[{"name": f"c{i}", "resourceClaimName": f"n{i}"} for i in range(10_000)]),
    "scheduler": _written(schedulerName=WIDE),
    "unknown annotations": _noted(**{f"x{i}": "y" * 100 for i in range(2_000)}),
    "known annotation": _noted(topology=WIDE),
    "forged decision": _noted(decision=WIDE),
    "decision of a bound pod": _noted(decision=WIDE) | {"spec": {**_noted()["spec"], "nodeName": "n1"}},
    "message of a scheduler": _reported(conditions=[{"type": "PodScheduled", "status": "False", "message": WIDE}]),
    "claims of templates that it does not name": _reported(
        resourceClaimStatuses=[{"name": f"c{i}", "resourceClaimName": f"n{i}"} for i in range(10_000)]
    ),
}


@pytest.mark.parametrize("name", HUGE)
def test_a_pod_takes_little_memory_whatever_its_author_writes(name: str) -> None:
    """Sixty pods with long lists of nodes once took 370 MiB, and three hundred with long annotations 280 MiB."""
    text = json.dumps(HUGE[name])
    decode_pod(json.loads(text))
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = decode_pod(json.loads(text))  # so that the texts of `HUGE` do not hide what it keeps
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept.may_need_devices
    assert after - before < _KEPT


TOO_LARGE: dict[str, tuple[dict, str]] = {
    "affinity of a pod alone": (_written(affinity=_affinity(50_000)), ""),
    "affinity of a member": (
        {**_written(affinity=_affinity(50_000)), "metadata": _noted(group="g", **{"group-min": "1"})["metadata"]},
        "pod spec: its nodeSelector, node affinity and tolerations are too large for a member of a group",
    ),
    "affinity of a member with 300 nodes": (
        {**_written(affinity=_affinity(300)), "metadata": _noted(group="g", **{"group-min": "1"})["metadata"]},
        "",
    ),
    "containers": (HUGE["containers"], "pod spec.containers: their names and resources are too large"),
    "claims": (HUGE["claims"], "64 claims"),
    "annotation": (_noted(topology=WIDE), "is not one of required, preferred, product, none"),
    "number": (_noted(**{"min-bandwidth-gbps": "0" * 100_000}), "is not a number of GB/s"),
}


@pytest.mark.parametrize("name", TOO_LARGE)
async def test_what_berth_does_not_read_is_refused_unless_kube_scheduler_checks_it_alone(name: str) -> None:
    """Attack: fill memory with pods of a megabyte."""
    asked, wanted = TOO_LARGE[name]
    async with berthing({"n1": "t4-4"}) as b:
        await b.create(claim("one"), asked)
        reply = (await b.client.post("/filter", json={"Pod": b.pod("p"), "NodeNames": ["n1"]})).json()
    if not wanted:
        assert reply["NodeNames"] == ["n1"]
    else:
        assert wanted in reply["FailedAndUnresolvableNodes"]["n1"]
