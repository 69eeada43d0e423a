"""Oracle worlds as Kubernetes objects, the input of the search."""

from __future__ import annotations

from extender.allocation import Features, Problem, problem_of, usage_of
from extender.cel.dra import Masks
from extender.model import DeviceId
from extender.wire import SliceDecoder, decode_claim, decode_class, decode_node
from tests.oracle import DRIVER, World


def problem(world: World) -> Problem:
    devices = []
    for i, d in enumerate(world.devices):
        device = {
            "name": f"dev-{i}",
            "attributes": {"kind": {"string": d["kind"]}, "group": {"int": d["group"]}},
            "capacity": {"memory": {"value": str(d["memory"])}},
            "allowMultipleAllocations": d["shared"],
        }
        if d["tainted"]:
            device["taints"] = [{"key": "t", "effect": "NoSchedule"}]
        if d["counters"]:
            device["consumesCounters"] = [{"counterSet": "s", "counters": {"c": {"value": str(d["counters"])}}}]
        devices.append(device)
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 2}
    slices = [
        {"metadata": {"name": "s1"}, "spec": {"driver": DRIVER, "nodeName": "n", "pool": pool, "devices": devices}},
        {
            "metadata": {"name": "s2"},
            "spec": {
                "driver": DRIVER,
                "nodeName": "n",
                "pool": pool,
                "sharedCounters": [{"name": "s", "counters": {"c": {"value": str(world.budget)}}}],
            },
        },
    ]
    claims = [decode_claim(claim_object(world, c)) for c in range(1 + max(r["claim"] for r in world.requests))]
    allocated_state = usage_of(
        decoded := [SliceDecoder().decode(s) for s in slices],
        [DeviceId(DRIVER, "p", f"dev-{i}") for i in world.taken],
        {DeviceId(DRIVER, "p", f"dev-{i}"): {"memory": m * 10**9} for i, m in world.used.items()},
    )
    classes = {"any": decode_class({"metadata": {"name": "any"}, "spec": {}})}
    return problem_of(
        decode_node({"metadata": {"name": "n"}}),
        decoded,
        classes,
        [(str(c.key), c.spec) for c in claims],
        allocated_state,
        Features(),
        Masks(),
    )


def claim_object(world: World, claim: int) -> dict:
    requests = []
    for number, request in enumerate(r for r in world.requests if r["claim"] == claim):
        forms = [device_request(option, request["tolerates"], f"o{i}") for i, option in enumerate(request["options"])]
        exactly = len(forms) == 1
        requests.append({"name": f"r{number}", **({"exactly": forms[0]} if exactly else {"firstAvailable": forms})})
    constraints = [{f"{c['kind']}Attribute": f"{DRIVER}/group"} for c in world.constraints if c["claim"] == claim]
    return {"metadata": {"name": f"c{claim}"}, "spec": {"devices": {"requests": requests, "constraints": constraints}}}


def device_request(option: dict, tolerates: bool, name: str) -> dict:
    form: dict = {"name": name, "deviceClassName": "any", "allocationMode": "All" if option["all"] else "ExactCount"}
    if not option["all"]:
        form["count"] = option["count"]
    if option["kind"]:
        form["selectors"] = [{"cel": {"expression": f"device.attributes['{DRIVER}'].kind == '{option['kind']}'"}}]
    if option["memory"]:
        form["capacity"] = {"requests": {"memory": str(option["memory"])}}
    if tolerates:
        form["tolerations"] = [{"operator": "Exists"}]
    return form
