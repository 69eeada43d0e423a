"""A bug in the use of a policy that was read again is counted. The last policy stays until the new one can be used."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from extender.allocation import Features
from extender.cache import ClusterCache
from extender.extension.filter_service import FilterService
from extender.policy import Policy
from extender.runtime import PolicyFile, Supervisor, watch_policies
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
    supervisor.start("policies", partial(watch_policies, PolicyFile(path, use, lambda _: None)))
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
    assert (service.policy, service.policy_digest, service.policy_generation) == (old, old.digest, before)
    service.use_policy(new)
    assert (service.policy, service.policy_digest, service.policy_generation) == (new, new.digest, before + 1)
