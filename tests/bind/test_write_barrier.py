"""Two replicas that write allocations on the same devices before either sees the other: the first writer keeps them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest

from extender.api.object_meta import ObjectKey
from extender.api.quantity import from_int
from extender.api.resource_claims import Claim, Result
from extender.api.resource_slices import Capacities, Capacity, CounterSet, CounterUse, Device, DeviceId, Slice
from extender.cache import ClusterCache
from extender.cache.allocated_devices import Holder
from extender.runtime.informers import WatchProgress
from extender.serve.binding_cycle import BindError
from extender.serve.write_barrier import WriteBarrier, newer
from tests.worlds.applications import Gate, replicas
from tests.worlds.dra_worlds import asks, custom, extended, mig, place
from tests.worlds.eventually import eventually
from tests.worlds.running_berth import Serving, claim, jobs, pod
from tests.worlds.shared_pool_worlds import a_slice, allocated_claim, use
from tests.worlds.tenant_worlds import allocated

pytestmark = pytest.mark.loopback

WHOLE_NODE = 4  # GPUs of the only node


def reserved(b: Serving, uid: str) -> bool:
    return any(entry["uid"] == uid for one in b.claims() for entry in one["status"].get("reservedFor") or ())


def held_twice(b: Serving) -> list[tuple[str, str]]:
    return [device for device, holders in Counter(b.held()).items() if holders > 1]


def fail(b: Serving, gate: Gate, fault: str) -> None:
    """From now on the replica's watch shows no claim; after a cut it has to list again."""
    gate.close()
    if fault == "cut":
        b.cluster.store.cut_watches()
        b.cluster.store.forget_history()


def group_with_a_claim(b: Serving, *members: str) -> str:
    """A PodGroup that owns the claim of its members, which has the name of the first; returns the group's UID."""
    uid = b.cluster.apply({"kind": "PodGroup", "metadata": {"name": "g"}, "spec": {}})["metadata"]["uid"]
    owner = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "name": "g", "uid": uid}
    of_group = claim(members[0], WHOLE_NODE)
    of_group["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    b.cluster.apply(of_group)
    for name in members:
        b.cluster.apply(pod(name, members[0], schedulingGroup={"podGroupName": "g"}))
    return str(uid)


@pytest.mark.parametrize("fault", ["lags", "cut"])
@pytest.mark.parametrize("first", ["mine", "other"])
@pytest.mark.parametrize("kind", ["ordinary", "extended", "shared", "group"])
async def test_of_two_writers_the_first_keeps_the_devices(kind: str, first: str, fault: str) -> None:
    """`mine` is bound by replica a, `other` by replica b. With a shared claim, `second` shares the claim of `mine`
    and is bound by replica b, which sees all claims before replica a does."""
    async with replicas({"n1": "t4-4"}) as ((a, b), (gate_a, gate_b)):
        await a.create(*jobs(other=WHOLE_NODE))
        if kind == "extended":
            a.cluster.apply(extended("mine", WHOLE_NODE))
        elif kind == "group":
            group = group_with_a_claim(a, "mine")
        else:
            await a.create(*jobs(mine=WHOLE_NODE))
        if kind == "shared":
            a.cluster.apply(pod("second", "mine"))
        await asyncio.gather(a.settled(), b.settled())
        assert (await a.filter("mine"))["NodeNames"] == (await b.filter("other"))["NodeNames"] == ["n1"]
        for one, gate in ((a, gate_a), (b, gate_b)):
            fail(one, gate, fault)

        binds: dict[str, asyncio.Task[str]] = {}
        order = ("mine", "other") if first == "mine" else ("other", "mine")
        for name in order:
            binds[name] = asyncio.create_task((a if name == "mine" else b).bind(name, "n1"))
            holder = group if kind == "group" and name == "mine" else a.pod(name)["metadata"]["uid"]
            bind = binds[name]
            await eventually(lambda holder=holder, bind=bind: reserved(a, holder) or bind.done())
            assert not bind.done(), f"{bind.result()!r} before the watch showed the write"

        gate_b.open()
        answers = {"other": await binds["other"]}
        await b.settled()
        if kind == "shared":
            answers["second"] = await b.bind("second", "n1")
        gate_a.open()
        answers["mine"] = await binds["mine"]
        await asyncio.gather(a.settled(), b.settled())

        assert not held_twice(a), answers
        bound = {name for name in answers if a.node_of(name)}
        assert bound == {name for name, answer in answers.items() if not answer}
        if fault == "lags":
            mine = {"mine", "second"} if kind == "shared" else {"mine"}
            assert bound == (mine if first == "mine" else {"other"}), answers
            lost = answers["other" if first == "mine" else "mine"]
            assert "was allocated to another claim first" in lost
        else:
            assert not {"mine", "other"} <= bound, "a list does not tell the order, so both may give way, never neither"


async def test_a_running_member_keeps_the_groups_claim_though_a_later_member_loses_a_device_of_it() -> None:
    """Another allocator takes a device a second time. A list shows that claim, so it counts as the earlier one."""
    async with replicas({"n1": "t4-4"}) as ((a, _), (gate, _)):
        group_with_a_claim(a, "runs", "waits")
        assert await place(a, "runs") == ""
        await a.settled()
        fail(a, gate, "cut")
        a.cluster.apply(claim("twice"))
        allocated(a, "twice", "gpu-0")
        a.cluster.store.forget_history()
        gate.open()
        await eventually(lambda: ObjectKey("default", "twice") in a.app.service.cache.store.claims)
        assert await place(a, "waits") == "device gpu.nvidia.com/n1/gpu-0 was allocated to another claim first"
        assert len(a.held()) == WHOLE_NODE + 1
        assert (a.node_of("runs"), a.node_of("waits")) == ("n1", "")


async def test_a_claim_deleted_while_the_write_barrier_waits_is_not_bound() -> None:
    """Another actor deletes the claim, and the list that follows the cut does not show it: its version is newer than
    the write."""
    async with replicas({"n1": "t4-4"}, extended("p")) as ((a, _), (gate, _)):
        await a.filter("p")
        fail(a, gate, "cut")
        bind = asyncio.create_task(a.bind("p", "n1"))
        await eventually(lambda: reserved(a, a.pod("p")["metadata"]["uid"]))
        (made,) = a.claims()
        key = ("default", made["metadata"]["name"])
        a.cluster.store.remove("resourceclaims", key)
        a.cluster.store.forget_history()
        gate.open()
        assert await bind == f"claim {key[0]}/{key[1]} was deleted in the meantime"


def partitions(b: Serving) -> None:
    """`mine` takes the whole GPU, `other` a quarter of it: other devices, and together more than the GPU has."""
    counters = {f"memory-slice-{i}": {"value": "1"} for i in range(4)}
    custom(b, [mig("whole", [0, 1, 2, 3], 80), mig("small", [0], 20)], [{"name": "gpu-0", "counters": counters}])
    profile = "device.attributes['d.example.com'].profile == '{}g'"
    for name, size in (("mine", 4), ("other", 1)):
        b.cluster.apply(asks(name, selectors=[{"cel": {"expression": profile.format(size)}}]))


def shares(b: Serving) -> None:
    """`mine` and `other` each take 6 of the 10 that one device has."""
    custom(b, [{"name": "x", "allowMultipleAllocations": True, "capacity": {"mem": {"value": "10"}}}])
    for name in ("mine", "other"):
        b.cluster.apply(asks(name, capacity={"requests": {"mem": "6"}}))


@pytest.mark.parametrize("slices", ["stay", "go"])
@pytest.mark.parametrize("world", [partitions, shares])
async def test_a_part_that_an_earlier_write_leaves_too_small_goes_to_the_first(
    world: Callable[[Serving], None], slices: str
) -> None:
    """Also if the driver restarts and has deleted its slices when the write barrier checks."""
    async with replicas({"n1": "t4-4"}) as ((a, b), gates):
        world(a)
        for name in ("mine", "other"):
            a.cluster.apply(pod(name, name))
        await asyncio.gather(a.settled(), b.settled())
        assert (await a.filter("mine"))["NodeNames"] == (await b.filter("other"))["NodeNames"] == ["n1"]
        for gate in gates:
            gate.close()
        binds = {}
        for one, name in ((a, "mine"), (b, "other")):
            binds[name] = asyncio.create_task(one.bind(name, "n1"))
            uid = one.pod(name)["metadata"]["uid"]
            await eventually(lambda uid=uid: reserved(a, uid))
        if slices == "go":
            caches = [one.app.service.cache.slices for one in (a, b)]
            for name in [name for name in caches[0].published if "d.example.com" in name]:
                a.cluster.store.remove("resourceslices", ("", name))
            await eventually(
                lambda: not any(key.driver == "d.example.com" for found in caches for key in found.pools.by_pool)
            )
        for gate in gates:
            gate.open()
        answers = {name: await bind for name, bind in binds.items()}
        assert answers["mine"] == ""
        lost = "was allocated to another claim first" if slices == "stay" else "do not show whether earlier claims"
        assert lost in answers["other"]
        assert (a.node_of("mine"), a.node_of("other")) == ("n1", "")
        assert len(a.held()) == 1


# -- one cache, whose watch has shown the write of the claim `mine` as version 20 -----------------------------------

WHOLE = Device("whole", consumes=(CounterUse("gpu", (("mem", 4),)),))
SMALL = Device("small", consumes=(CounterUse("gpu", (("mem", 1),)),))
PLAIN = Device("plain")
COUNTERS = CounterSet("gpu", {"mem": 4})


def x(mem: int | None) -> Device:
    """A device that several claims may share."""
    capacity = {"mem": Capacity(from_int(mem))} if mem is not None else {}
    return Device("x", allow_multiple=True, capacity=Capacities(capacity))


def checked(slices: list[Slice], *claims: Claim, listed: bool = False) -> str:
    """The error of the check of the last claim, or ''; with `listed`, a list shows the others."""
    cache = ClusterCache()
    for one in slices:
        cache.apply_slice(one.name, one)
    for claim_ in claims:
        cache.apply_claim(claim_.key, claim_, listed=listed and claim_ is not claims[-1])
    try:
        WriteBarrier(cache, WatchProgress(), lambda: "", "test").require_kept(claims[-1])
    except BindError as error:
        return f"{type(error).__name__}: {error}"
    return ""


LOST = "DeviceLost: device d/p/{} was allocated to another claim first"
UNCLEAR = "BindError: the ResourceSlices do not show whether earlier claims leave enough for device d/p/{}"
GPU = [a_slice("a", WHOLE, SMALL, PLAIN, count=2), a_slice("b", COUNTERS, count=2)]
TEN = [a_slice("a", x(10))]
# name: (slices, what an earlier claim has, what mine has, error)
CHECKS = {
    "the same device": ([a_slice("a", PLAIN)], [use("plain")], [use("plain")], LOST),
    "the same device, no slice": ([], [use("plain")], [use("plain")], LOST),
    "another device": ([a_slice("a", PLAIN, SMALL)], [use("small")], [use("plain")], ""),
    "an exclusive device of an incomplete pool": ([GPU[0]], [use("whole")], [use("plain")], ""),
    "no earlier claim, no slice": ([], [], [use("small")], ""),
    "no earlier claim, an incomplete pool": ([GPU[0]], [], [use("small")], ""),
    "an overdrawn counter": (GPU, [use("whole")], [use("small")], LOST),
    "counters for both": (GPU, [use("small")], [use("plain")], ""),
    "no slice": ([], [use("whole")], [use("small")], UNCLEAR),
    "no slice with the counters": ([GPU[0]], [use("whole")], [use("small")], UNCLEAR),
    "no slice with the devices": ([GPU[1]], [use("whole")], [use("small")], UNCLEAR),
    "no slice with the earlier device": (
        [a_slice("a", SMALL, count=3), a_slice("b", COUNTERS, count=3)],
        [use("whole")],
        [use("small")],
        UNCLEAR,
    ),
    "the first slice of a new generation": (
        [a_slice("a", WHOLE, SMALL, generation=2, count=2), GPU[1]],
        [use("whole")],
        [use("small")],
        UNCLEAR,
    ),
    "a counter set that is not published": ([a_slice("a", WHOLE, SMALL)], [use("whole")], [use("small")], UNCLEAR),
    "a partition that the driver removed": ([a_slice("a", WHOLE, COUNTERS)], [use("whole")], [use("small")], UNCLEAR),
    "a GPU that the driver removed": ([a_slice("a", PLAIN)], [use("plain")], [use("broken")], ""),
    "an earlier GPU that the driver removed": ([a_slice("a", PLAIN)], [use("broken")], [use("plain")], ""),
    "shares that fit": (TEN, [use("x", 4)], [use("x", 6)], ""),
    "shares that do not fit": (TEN, [use("x", 5)], [use("x", 6)], LOST),
    "two shares in one claim": (TEN, [use("x", 4)], [use("x", 3), use("x", 4)], LOST),
    "a device and a share of it": (TEN, [use("x")], [use("x", 1)], LOST),
    "shares, and an older generation": (
        [a_slice("a", x(100)), a_slice("b", x(10), generation=2)],
        [use("x", 5)],
        [use("x", 6)],
        LOST,
    ),
    "shares, and a larger new generation": (
        [a_slice("a", x(10)), a_slice("b", x(100), generation=2)],
        [use("x", 5)],
        [use("x", 6)],
        "",
    ),
    "shares, no slice": ([], [use("x", 1)], [use("x", 1)], UNCLEAR),
    "shares of a device that the driver removed": ([a_slice("a", PLAIN)], [use("x", 1)], [use("x", 1)], UNCLEAR),
    "shares of an unknown capacity": ([a_slice("a", x(None))], [use("x", 1)], [use("x", 1)], UNCLEAR),
    "the only share, no slice": ([], [], [use("x", 6)], ""),
    "the only share, an unknown capacity": ([a_slice("a", x(None), PLAIN)], [use("plain")], [use("x", 6)], ""),
}


@pytest.mark.parametrize("case", CHECKS)
def test_the_later_write_gives_way_if_devices_conflict_or_if_slices_do_not_tell(case: str) -> None:
    slices, earlier, own, error = CHECKS[case]
    mine = allocated_claim("mine", 20, *own)
    if earlier:
        assert checked(slices, allocated_claim("first", 10, *earlier), mine) == error.format(own[0].device.device)
        assert checked(slices, allocated_claim("later", 30, *earlier), mine) == ""
    else:
        assert checked(slices, mine) == error


@pytest.mark.parametrize(("capacity", "looks"), [(99, 0), (60, 1)], ids=["room", "no room"])
def test_shares_of_a_device_are_compared_once_and_only_if_they_are_too_many(
    capacity: int, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check of a pod with 16 claims, each with 32 shares of a device with 10,000 shares, once took 8 s."""
    cache, seen = ClusterCache(), list[DeviceId]()
    holders = cache.allocated_devices.holders

    def counted(id_: DeviceId) -> list[tuple[Holder, Result]]:
        seen.append(id_)
        return holders(id_)

    monkeypatch.setattr(cache.allocated_devices, "holders", counted)
    cache.apply_slice("a", a_slice("a", x(capacity)))
    mine = allocated_claim("mine", 20, *[use("x", 1)] * 32)
    for one in (allocated_claim("first", 10, *[use("x", 1)] * 32), mine):
        cache.apply_claim(one.key, one)
    with suppress(BindError):
        WriteBarrier(cache, WatchProgress(), lambda: "", "test").require_kept(mine)
    assert len(seen) == looks


def test_a_listed_version_does_not_tell_when_the_claim_was_allocated() -> None:
    """The claim was allocated as version 10, before mine; another write, such as a reservation, made it version 30."""
    mine = allocated_claim("mine", 20, use("plain"))
    first = allocated_claim("first", 30, use("plain"))
    assert checked([a_slice("a", PLAIN)], first, mine, listed=True) == LOST.format("plain")
    assert checked([a_slice("a", PLAIN)], mine, first, listed=True) == LOST.format("plain"), "and mine is not earlier"


@pytest.mark.parametrize("version", [10, "x", "\u00b2"], ids=["equal", "no number", "no ASCII digit"])
def test_where_versions_do_not_tell_which_write_was_first_both_lose(version: int | str) -> None:
    """etcd gives no two objects one version, and versions are numbers. Else both pods would get the device."""
    first, mine = (allocated_claim(name, version, use("plain")) for name in ("first", "mine"))
    assert checked([a_slice("a", PLAIN)], first, mine) == LOST.format("plain")
    assert checked([a_slice("a", PLAIN)], mine, first) == LOST.format("plain")


def test_a_list_ends_what_is_known_of_an_earlier_allocation_of_the_claim() -> None:
    """Version 10 allocated another device to mine. A list shows that mine now has the device of `first`, but not since
    when. A claim that did not change keeps its time."""
    cache, first = ClusterCache(), allocated_claim("first", 12, use("plain"))
    cache.apply_slice("a", a_slice("a", PLAIN, SMALL))
    mine, own = (allocated_claim("mine", version, use(name)) for version, name in ((30, "plain"), (10, "small")))
    for one in (own, first, allocated_claim("later", 14, use("plain"))):
        cache.apply_claim(one.key, one)
    barrier = WriteBarrier(cache, WatchProgress(), lambda: "", "test")
    cache.apply_claim(first.key, first, listed=True)
    barrier.require_kept(first)
    cache.apply_claim(mine.key, mine, listed=True)
    with pytest.raises(BindError, match="was allocated to another claim first"):
        barrier.require_kept(mine)


@pytest.mark.parametrize(
    ("seen", "written", "is_newer"),
    [
        ("10", "9", True),
        ("9", "10", False),
        ("10", "10", True),
        ("010", "10", True),
        ("0", "", False),
        ("", "5", False),
        ("\u00b2", "1", False),
        ("1", "\u00b2", False),
        ("\u0665", "4", False),
        ("9" * 5000, "9" * 4999, True),
        ("8" * 5000, "9" * 5000, False),
        ("abc", "abc", True),
    ],
)
def test_versions_are_compared_as_numbers_of_any_length(seen: str, written: str, *, is_newer: bool) -> None:
    assert newer(seen, written) == is_newer
