"""Members that share a claim: its reservations are counted before bind, and a bind that fails releases them all."""

from __future__ import annotations

import asyncio

import pytest

from extender.sandbox import ApiError
from extender.sandbox.apiserver.registry import RESOURCES
from tests.worlds.eventually import eventually
from tests.worlds.gang_pods import NO_ROOM, bind_all, planned, reasons
from tests.worlds.running_berth import Berthing, Json, berthing, claim, pod

pytestmark = pytest.mark.loopback

MEMBERS = ("p0", "p1", "p2")


def create_gang(b: Berthing, shared: tuple[str, ...] = ("shared",)) -> None:
    """Each member has the shared claims and one of its own."""
    for name in (*shared, *(f"{name}-gpus" for name in MEMBERS)):
        b.cluster.apply(claim(name))
    notes = {"berth.dev/group": "job", "berth.dev/group-min": "3"}
    for name in MEMBERS:
        b.cluster.apply(pod(name, *shared, f"{name}-gpus", annotations=notes))


def reserved(b: Berthing) -> dict[str, list[str]]:
    found = {one["metadata"]["name"]: one["status"].get("reservedFor") or [] for one in b.claims()}
    return {name: [entry["name"] for entry in entries] for name, entries in found.items() if entries}


@pytest.mark.parametrize("refused", MEMBERS)
async def test_a_bind_that_fails_releases_the_shared_claim(refused: str) -> None:
    async with berthing({"n1": "hgx-h100-8"}) as b:
        create_gang(b)
        await b.settled()
        nodes = await planned(b, *MEMBERS)

        async def refuse(method: str, path: str) -> ApiError | None:
            is_own = method == "PATCH" and path.endswith(f"resourceclaims/{refused}-gpus/status")
            return ApiError(403, "Forbidden", "no") if is_own else None

        b.cluster.api.intercept = refuse
        answers = await bind_all(b, nodes)
        b.cluster.api.intercept = None
        assert all(answers)
        assert reserved(b) == {}
        assert b.held() == []
        assert not any(b.node_of(name) for name in MEMBERS)


async def test_the_last_member_to_leave_releases_the_shared_claim() -> None:
    """The member that allocated the claim undoes its bind before another one has removed its reservation."""
    async with berthing({"n1": "hgx-h100-8"}) as b:
        create_gang(b)
        await b.settled()
        nodes = await planned(b, *MEMBERS)
        forming = next(iter(b.app.service.gangs.forming.values()))
        refused = False

        async def slow(method: str, path: str) -> ApiError | None:
            nonlocal refused
            if method == "PATCH" and path.endswith("resourceclaims/p2-gpus/status"):
                await eventually(lambda: len(forming.written) == 2, "the others wait")
                refused = True
                return ApiError(403, "Forbidden", "no")
            if refused and method == "GET" and path.endswith("pods/p1"):
                await eventually(lambda: "p0" not in reserved(b).get("shared", ()), "p0 is undone")
            return None

        b.cluster.api.intercept = slow
        binds = []
        for name in MEMBERS:
            binds.append(asyncio.create_task(b.bind(name, nodes[name])))
            await eventually(lambda: len(forming.arrived) == len(binds), "the binds come in this order")
        assert all(await asyncio.gather(*binds))
        b.cluster.api.intercept = None
        assert reserved(b) == {}
        assert b.held() == []


async def test_many_members_that_undo_their_binds_at_once_leave_no_reservation() -> None:
    """Each removal outdates the resourceVersion that the others have read."""
    async with berthing({"n1": "hgx-h100-8"}) as b:
        names = [f"m{i}" for i in range(32)]
        notes = {"berth.dev/group": "job", "berth.dev/group-min": "32"}
        for name in ("shared", "last"):
            b.cluster.apply(claim(name))
        for name in names:
            b.cluster.apply(pod(name, "shared", *(["last"] if name == names[-1] else []), annotations=notes))
        await b.settled()
        nodes = await planned(b, *names)
        forming = next(iter(b.app.service.gangs.forming.values()))

        async def refuse(method: str, path: str) -> ApiError | None:
            if method != "PATCH" or not path.endswith("resourceclaims/last/status"):
                return None
            await eventually(lambda: len(forming.written) == len(names) - 1, "the others wait")
            return ApiError(403, "Forbidden", "no")

        b.cluster.api.intercept = refuse
        others = asyncio.create_task(bind_all(b, {name: nodes[name] for name in names[:-1]}))
        await eventually(lambda: len(forming.arrived) == len(names) - 1, "the last one binds last")
        assert await b.bind(names[-1], nodes[names[-1]])
        assert all(await others)
        assert reserved(b) == {}
        assert b.held() == []


def in_use(b: Berthing, users: list[str]) -> None:
    """Claim `shared` is allocated, and reserved for pods of these names."""
    made = claim("shared")
    b.cluster.apply(made)
    device = {"request": made["spec"]["devices"]["requests"][0]["name"], "driver": "gpu.nvidia.com"}
    only = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    status = {
        "allocation": {
            "devices": {"results": [{**device, "pool": "n1", "device": "gpu-0"}]},
            "nodeSelector": {"nodeSelectorTerms": [only]},
        },
        "reservedFor": [{"resource": "pods", "name": name, "uid": uid_of(b, name)} for name in users],
    }
    kind = RESOURCES["resource.k8s.io", "resourceclaims"]
    b.cluster.api.registry.patch(kind, ("default", "shared"), {"status": status}, "status", strategic=False)


def uid_of(b: Berthing, name: str) -> str:
    return b.pod(name)["metadata"]["uid"] if name in MEMBERS else name


FULL = "claim default/shared has 2 of 256 reservations left, too few for group job"
LAST = "claim default/shared has no reservation left"


@pytest.mark.parametrize(
    ("others", "own", "minimum", "bound", "reasons"),
    [
        (254, 0, 3, 0, (FULL, FULL, FULL)),
        (253, 0, 3, 3, ()),
        (253, 1, 3, 3, ()),  # one of them has its reservation, and 254 are in use
        (254, 0, 2, 2, (LAST,)),
        (256, 0, 2, 0, (LAST, LAST, LAST)),
    ],
    ids=["too few", "just enough", "some have theirs", "enough for the minimum", "full"],
)
async def test_a_gang_counts_the_reservations_of_a_claim_that_its_members_share(
    others: int, own: int, minimum: int, bound: int, reasons: tuple[str, ...]
) -> None:
    """Filter once let all members pass, and their binds failed for ever: a claim has 256 reservations."""
    async with berthing({"n1": "hgx-h100-8"}) as b:
        notes = {"berth.dev/group": "job", "berth.dev/group-min": str(minimum)}
        for name in MEMBERS:
            b.cluster.apply(claim(f"{name}-gpus"))
            b.cluster.apply(pod(name, "shared", f"{name}-gpus", annotations=notes))
        in_use(b, [*MEMBERS[:own], *(f"u{i}" for i in range(others))])
        await b.settled()
        answers = {name: await b.filter(name) for name in MEMBERS}
        fits = {name: "n1" for name, answer in answers.items() if answer["NodeNames"]}
        assert len(fits) == bound
        if fits:
            assert not any(await bind_all(b, fits))
            await b.settled()

        async def refused() -> bool:
            """Berth may have to read first which members run."""
            found = [await b.filter(name) for name in MEMBERS if name not in fits]
            return [{**one["FailedNodes"], **one["FailedAndUnresolvableNodes"]}["n1"] for one in found] == list(reasons)

        await eventually(refused)
        if not fits:
            assert reasons[0] in (await b.client.get("/v1/explain/group/default/job")).text


SHARED = {"name": "c0", "resourceClaimName": "shared"}  # the entry of the pods


def pod_group(b: Berthing, **spec: object) -> None:
    b.cluster.apply({
        "apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": "job"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": len(MEMBERS)}}, **spec},
    })  # fmt: skip


@pytest.mark.parametrize("is_listed", [False, True], ids=["a claim of the pods", "a claim of the PodGroup"])
async def test_the_pods_of_a_pod_group_count_the_reservations_of_a_shared_claim(is_listed: bool) -> None:
    """A claim that the PodGroup lists is reserved once for all its pods; any other one for each pod."""
    async with berthing({"n1": "hgx-h100-8"}) as b:
        pod_group(b, **({"resourceClaims": [SHARED]} if is_listed else {}))
        await eventually(lambda: b.app.service.cache.store.group_policies, "the PodGroup is known")
        in_use(b, [f"u{i}" for i in range(254)])
        for name in MEMBERS:
            b.cluster.apply(claim(f"{name}-gpus"))
            b.cluster.apply(pod(name, "shared", f"{name}-gpus", schedulingGroup={"podGroupName": "job"}))
        await b.settled()
        if not is_listed:
            assert [await reasons(b, name) for name in MEMBERS] == [{FULL}] * 3
            return
        assert await bind_all(b, await planned(b, *MEMBERS)) == ["", "", ""]
        stored = b.cluster.store["resourceclaims", ("default", "shared")]["status"]["reservedFor"]
        assert [one["resource"] for one in stored[254:]] == ["podgroups"]


def large_config(b: Berthing, name: str) -> None:
    """A claim whose allocation would have 65 config entries: 32 of each of two classes, and one of its own."""
    entry = {"opaque": {"driver": "gpu.nvidia.com", "parameters": {"k": 1}}}
    expression = {"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}
    asked: list[Json] = []
    for one in (f"{name}-a", f"{name}-b"):
        spec = {"selectors": [expression], "config": [entry] * 32}
        kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"}
        b.cluster.apply({**kind, "metadata": {"name": one}, "spec": spec})
        asked.append({"name": one, "exactly": {"deviceClassName": one, "allocationMode": "ExactCount", "count": 1}})
    made = claim(name)
    made["spec"]["devices"] = {"requests": asked, "config": [entry]}
    b.cluster.apply(made)


@pytest.mark.parametrize("is_busy", [False, True])
async def test_a_claim_with_too_much_config_is_named_by_each_member(is_busy: bool) -> None:
    """No wait helps, so 'no domain has room' was not true. Where devices are in use, only their end can tell."""
    async with berthing({"n1": "hgx-h100-8", "n2": "hgx-h100-8"} if is_busy else {"n1": "hgx-h100-8"}) as b:
        b.cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "cpu"}})
        if is_busy:
            await b.create(claim("other", 8), pod("q", "other"))
            assert await b.bind("q", (await b.filter("q"))["NodeNames"][0]) == ""
        for name in MEMBERS[:2]:
            large_config(b, f"{name}-gpus")
            notes = {"berth.dev/group": "job", "berth.dev/group-min": "2"}
            b.cluster.apply(pod(name, f"{name}-gpus", annotations=notes))
        await b.settled()
        (text,) = await reasons(b, "p0")
        assert await reasons(b, "p1") == {text}
        (found,) = (await b.client.get("/v1/explain/group/default/job")).json()
        why = "claim c0: its allocation would have 65 config entries"
        assert found["outcome"] == "blocked", "explain sees that also where devices are in use"
        assert found["sentence"].startswith(f"group default/job fits nowhere: pod default/p0: {why}")
        assert text == NO_ROOM if is_busy else text.startswith(f"pod default/p0 of the group: {why}")
