"""A bug in the use of a policy that was read again is counted. The last policy stays until the new one can be used."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from extender.allocation import Features
from extender.cache import ClusterCache
from extender.extension.filter import FilterService
from extender.policy import Policy, load_policy
from extender.runtime import LimitedCall, ReloadedFiles, Supervisor, reloaded_policy
from extender.scheduling import Evaluator
from tests.eventually import eventually
from tests.supervised_worlds import QUICK


class Faulty(ClusterCache):
    """A cache that fails when it gets the next policy."""

    broken = False

    def set_live_memory_seconds(self, seconds: float) -> None:
        if self.broken:
            self.broken = False
            raise KeyError("a bug")
        super().set_live_memory_seconds(seconds)


async def test_a_bug_in_the_use_of_a_policy_is_counted_and_the_policy_is_used_again(tmp_path: Path) -> None:
    path, used, faults = tmp_path / "policy.yaml", list[Policy](), [KeyError("a bug")]
    path.write_text("candidates: 4")

    def use(policy: Policy) -> None:
        if faults:
            raise faults.pop()
        used.append(policy)

    supervisor = Supervisor(QUICK)
    supervisor.start("policies", reloaded_policy(path, use, lambda _: None).run)
    await eventually(lambda: used)
    await supervisor.stop()
    assert used == [Policy(candidates=4)]
    assert supervisor.failures["policies"] == 1


def test_the_old_policy_stays_in_force_if_a_bug_stops_the_change() -> None:
    cache, old, new = Faulty(), Policy(), Policy(candidates=4)
    service = FilterService(cache, old, Evaluator(Features()), lambda: 0.0)
    before, cache.broken = service.policy_generation, True
    with pytest.raises(KeyError):
        service.use_policy(new)
    assert (service.policy, service.policy_generation) == (old, before)
    service.use_policy(new)
    assert (service.policy, service.policy_generation) == (new, before + 1)


async def test_a_read_that_does_not_end_is_reported_and_the_policy_is_used_when_it_ends(tmp_path: Path) -> None:
    ends, used, problems, reads = threading.Event(), list[Policy](), list[str](), list[Path]()

    def read(path: Path, most: int) -> bytes:
        reads.append(path)
        ends.wait()
        return b"candidates: 4"

    def parse(contents: list[bytes]) -> Policy:
        return load_policy(contents[0])

    file = ReloadedFiles("policy", [tmp_path], 1024, parse, used.append, problems.append, read=read, limit_seconds=0.01)
    for _ in range(3):
        await file.reload()
    assert (problems, used) == (["a read has not ended after 0.01 s"], [])
    assert len(reads) == 1
    ends.set()
    await eventually(lambda: _reloaded(file, used))
    assert used == [Policy(candidates=4)]


async def _reloaded(file: ReloadedFiles[Policy], used: list[Policy]) -> bool:
    await file.reload()
    return bool(used)


async def test_a_limited_call_that_was_cancelled_is_awaited_again() -> None:
    ends, calls = threading.Event(), list[int]()

    def call() -> int:
        calls.append(1)
        ends.wait()
        return len(calls)

    limited = LimitedCall(call)
    first = asyncio.create_task(limited())
    await eventually(lambda: calls)
    first.cancel()
    await asyncio.wait([first])
    ends.set()
    assert await limited() == 1
