"""The undo of a bind, without a bind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from structlog.testing import capture_logs

from extender.api.object_meta import ObjectKey
from extender.api.pods import Pod
from extender.api.resource_claims import Claim
from extender.base.berth_errors import BerthError
from extender.cluster import ClusterError, NotFound, Unavailable, Writer
from extender.serve.undo import BindError, BindingCycle, Step, Undo
from tests.worlds.eventually import eventually

KEY = ObjectKey("ns", "p")


class _Undo(Undo):
    """Calls `act` in place of the writes."""

    def __init__(self, act: Callable[[str], Awaitable[object]]) -> None:
        super().__init__(Writer.__new__(Writer))
        self._act = act
        self.undone: list[tuple[str, Step, str]] = []  # (UID of the claim, step, error)

    async def _undo(self, cycle: BindingCycle, step: Step, claim: Claim, error: BerthError) -> None:
        await self._act(claim.uid)
        self.undone.append((claim.uid, step, str(error)))


async def nothing(_: str) -> None:
    pass


def cycle_of(*uids: str, steps: tuple[Step, ...] = (Step.FOUND, Step.RESERVED)) -> BindingCycle:
    cycle = BindingCycle(Pod(KEY, "uid"), "n1", 0.0)
    for uid in uids:
        for step in steps:
            cycle.note(step, Claim(ObjectKey("ns", uid), uid))
    return cycle


async def test_the_steps_of_a_claim_are_undone_last_first_with_the_error_that_ended_the_bind() -> None:
    undo = _Undo(nothing)
    await undo.unwind(cycle_of("c", steps=(Step.CREATED, Step.ALLOCATED)), BindError("lost"))
    assert undo.undone == [("c", Step.ALLOCATED, "lost"), ("c", Step.CREATED, "lost")]


@pytest.mark.parametrize(("problem", "lines"), [(Unavailable("no answer"), 1), (NotFound("no such claim"), 0)])
async def test_a_failure_keeps_no_other_step_from_being_undone_and_is_logged_if_the_claim_exists(
    problem: ClusterError, lines: int
) -> None:
    calls = 0

    async def failing_first(_: str) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise problem

    undo = _Undo(failing_first)
    with capture_logs() as log:
        await undo.unwind(cycle_of("c"), BindError("lost"))
    assert [step for _, step, _ in undo.undone] == [Step.FOUND]
    assert len(log) == lines


async def test_different_claims_do_not_wait_for_each_other() -> None:
    """Each may take seconds: a pod with many claims would undo its bind for longer than kube-scheduler waits."""
    all_began = asyncio.Barrier(3)

    async def act(_: str) -> None:
        await all_began.wait()

    unwinding = asyncio.create_task(_Undo(act).unwind(cycle_of("a", "b", "c"), BindError("lost")))
    await eventually(unwinding.done, "all steps are undone")


async def test_a_bug_is_raised_after_all_other_steps_are_undone() -> None:
    """The bind then counts as failed with this bug."""
    calls = 0

    async def buggy(uid: str) -> None:
        nonlocal calls
        calls += 1
        if uid == "b" or calls == 1:
            raise KeyError("a bug")

    undo = _Undo(buggy)
    with pytest.raises(KeyError, match="a bug"):
        await undo.unwind(cycle_of("a", "b", "c"), BindError("lost"))
    assert [uid for uid, _, _ in undo.undone] == ["a", "c", "c"]
