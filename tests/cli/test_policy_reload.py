"""A bug in the use of a policy that was read again is counted. The last policy stays until the new one can be used."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from extender.allocation import Features
from extender.cache import ClusterCache
from extender.policy import Policy
from extender.runtime import file_reload
from extender.runtime.file_reload import ReloadedFiles
from extender.runtime.policy_file import reloaded_policy
from extender.runtime.supervisor import Supervisor
from extender.scheduling import Evaluator
from extender.serve.evaluations import Evaluations
from extender.serve.filter import FilterService
from tests.worlds.eventually import eventually
from tests.worlds.supervised_worlds import QUICK


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
    assert [one.candidates for one in used] == [4]
    assert supervisor.failures["policies"] == 1


def test_the_old_policy_stays_in_force_if_a_bug_stops_the_change() -> None:
    cache, old, new = ClusterCache(), Policy(), Policy(candidates=4)
    service = FilterService(cache, old, Evaluator(Features()), Evaluations(lambda: 0.0), lambda: 0.0)
    before = service.policy_generation
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache.slices.agents, "use_seconds", {}.__getitem__)
        with pytest.raises(KeyError):
            service.use_policy(new)
    assert (service.policy, service.policy_generation) == (old, before)
    service.use_policy(new)
    assert (service.policy, service.policy_generation) == (new, before + 1)


class Mount:
    """A file whose server does not answer until `ends` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ends, self.reads = threading.Event(), list[Path]()
        monkeypatch.setattr(file_reload, "read_mounted", self.read)

    def read(self, path: Path, _: int) -> bytes:
        self.reads.append(path)
        self.ends.wait()
        return b"candidates: 4"


async def test_a_read_that_does_not_end_is_reported_and_the_policy_is_used_when_it_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mount, used, problems = Mount(monkeypatch), list[Policy](), list[str]()
    monkeypatch.setattr(file_reload, "READ_SECONDS", 0.01)
    file = reloaded_policy(tmp_path, used.append, problems.append)
    for _ in range(3):
        await file.reload()
    assert (problems, used) == (["a read has not ended after 0.01 s"], [])
    assert len(mount.reads) == 1
    mount.ends.set()
    await eventually(lambda: _reloaded(file, used))
    assert [one.candidates for one in used] == [4]


async def _reloaded(file: ReloadedFiles[Policy], used: list[Policy]) -> bool:
    await file.reload()
    return bool(used)


async def test_a_read_whose_caller_was_cancelled_is_awaited_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mount, used = Mount(monkeypatch), list[Policy]()
    file = reloaded_policy(tmp_path, used.append, lambda _: None)
    first = asyncio.create_task(file.reload())
    await eventually(lambda: mount.reads)
    first.cancel()
    await asyncio.wait([first])
    mount.ends.set()
    await file.reload()
    assert ([one.candidates for one in used], len(mount.reads)) == ([4], 1)
