"""A bug in the use of a policy that was read again is counted. The last policy stays until the new one can be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from extender.allocation import Features
from extender.cache import ClusterCache
from extender.policy import Policy
from extender.runtime.file_reload import reloaded_policy
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
