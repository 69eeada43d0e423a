"""Pods that fit while each bind fails: explain, the fleet, doctor and a metric say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from extender.api.pods import Pod, decode_pod
from extender.sandbox import ApiError, write_kubeconfig
from tests.worlds.commands import berth_beside
from tests.worlds.dra_worlds import place
from tests.worlds.explain_worlds import why
from tests.worlds.interceptions import Refusing
from tests.worlds.running_berth import Berthing, Json, berthing, claim, jobs, pod
from tests.worlds.tenant_worlds import PODS

DENIED = (
    'pods "p" is forbidden: User "system:serviceaccount:berth-system:berth" cannot update resource "pods/finalizers" '
    'in API group "" in the namespace "default": RBAC: no right on pods/finalizers'
)


def condition(message: str, reason: str = "SchedulerError") -> Json:
    return {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}


async def show(b: Berthing, name: str, error: str) -> None:
    """kube-scheduler writes the answer of a bind into the pod's condition."""
    status = {"status": {"conditions": [condition(error)]}}
    b.cluster.api.registry.patch(PODS, ("default", name), status, "status", strategic=False)
    await b.settled()


async def failing(b: Berthing, error: ApiError) -> None:
    """The pod p, whose first bind fails."""
    await b.create(*jobs(p=1))
    b.cluster.api.intercept = Refusing("/binding", error)
    await show(b, "p", await b.bind("p", (await b.filter("p"))["NodeNames"][0]))
    b.cluster.api.intercept = None


async def test_a_bind_that_fails_is_told_everywhere(tmp_path: Path) -> None:
    async with berthing({"n1": "t4-4"}) as b:
        await failing(b, ApiError(403, "Forbidden", DENIED))
        words = f"; but its last attempt ended with an error: {DENIED}"
        found = await why(b, "p")
        assert found["outcome"] == "fits"
        assert found["sentence"].endswith(words)
        _, out, _ = await berth_beside(["explain", "default/p", "--server", str(b.client.base_url)])
        assert words in " ".join(out.split())
        fleet = (await b.client.get("/v1/fleet")).json()
        assert fleet["waiting"] == 1
        assert [row["sentence"] for row in fleet["pending"]] == [f"its last attempt ended with an error: {DENIED}"]
        _, out, _ = await berth_beside(["doctor", "--kubeconfig", str(write_kubeconfig(tmp_path, b.api))])
        assert f"1 waiting pod whose last attempt ended with an error: default/p; default/p: {DENIED}" in out
        assert 'berth_bind_failures_total{error="Forbidden"} 1' in await b.metrics("berth_bind_failures_total{")


async def test_the_end_of_a_long_error_is_told() -> None:
    """The API server repeats the object before it says what is wrong with it."""
    value = {f"key-{i}": "value" for i in range(200)}
    message = f'Binding "p" is invalid: spec: Invalid value: {value}: field is immutable'
    async with berthing({"n1": "t4-4"}) as b:
        await failing(b, ApiError(422, "Invalid", message))
        sentence = (await why(b, "p"))["sentence"]
        assert 'Binding "p" is invalid: spec: Invalid value: {' in sentence
        assert sentence.endswith("}: field is immutable")
        assert "key-100" not in sentence


async def test_a_member_whose_bind_fails_is_told_with_its_group() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        for name in ("g-0", "g-1"):
            notes = {"berth.dev/group": "g", "berth.dev/group-min": "2"}
            await b.create(claim(name), pod(name, name, annotations=notes))
        await show(b, "g-1", DENIED)
        (group,) = (await b.client.get("/v1/explain/group/default/g")).json()
        assert group["sentence"].endswith(f"; the last attempt of g-1 ended with an error: {DENIED}")
        assert [member["reason"] for member in group["members"]] == ["", DENIED]
        assert (await why(b, "g-1"))["sentence"].count(DENIED) == 1


async def test_a_pod_that_is_bound_in_the_end_has_no_error() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        await failing(b, ApiError(403, "Forbidden", DENIED))
        assert await place(b, "p") == ""
        await b.settled()
        assert "last attempt" not in str(await why(b, "p"))
        assert (await b.client.get("/v1/fleet")).json()["pending"] == []


@pytest.mark.parametrize(
    ("conditions", "unschedulable", "error"),
    [
        ([], "", ""),
        ([condition("0/3 nodes", "Unschedulable")], "0/3 nodes", ""),
        ([condition("no right")], "", "no right"),
        ([condition("é" * 600 + " no right")], "", "é" * 127 + "…" + "é" * 122 + " no right"),
        ([condition("x" * 9000 + " no right")], "", "x" * 254 + "…" + "x" * 245 + " no right"),
        ([{**condition("no right"), "status": "True"}], "", ""),
        ([{**condition("no right"), "type": "Ready"}], "", ""),
    ],
)
def test_the_condition_of_a_pod(conditions: list[Json], unschedulable: str, error: str) -> None:
    found: Pod = decode_pod({**pod("p"), "status": {"conditions": conditions}})
    assert (found.unschedulable, found.scheduler_error) == (unschedulable, error)
