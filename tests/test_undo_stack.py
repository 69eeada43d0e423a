"""The undo stack of a bind, without a bind."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from structlog.testing import capture_logs

from extender.cluster import ClusterError, NotFound, Unavailable
from extender.extension.binding_cycle import BindError
from extender.extension.undo_stack import UndoStack
from extender.model import BerthError, ObjectKey
from tests.eventually import eventually


async def test_compensations_run_last_first_with_the_error_that_ended_the_bind() -> None:
    stack, seen = UndoStack(ObjectKey("ns", "p")), []

    async def compensate(name: str, error: BerthError) -> None:
        seen.append((name, str(error)))

    for name in ("first", "second", "third"):
        stack.push("claim", partial(compensate, name))
    await stack.unwind(BindError("lost"))
    assert seen == [("third", "lost"), ("second", "lost"), ("first", "lost")]
    await stack.unwind(BindError("again"))
    assert len(seen) == 3, "each runs once"


async def test_a_compensation_that_fails_does_not_keep_the_others_from_running() -> None:
    stack, seen = UndoStack(ObjectKey("ns", "p")), []

    async def fine(_: BerthError) -> None:
        seen.append("fine")

    async def failing(_: BerthError) -> None:
        raise Unavailable("no answer")

    for compensation in (fine, failing, fine):
        stack.push("claim", compensation)
    await stack.unwind(BindError("lost"))
    assert seen == ["fine", "fine"]


@pytest.mark.parametrize(("problem", "lines"), [(Unavailable("no answer"), 1), (NotFound("no such claim"), 0)])
async def test_the_log_has_a_line_if_a_claim_that_exists_could_not_be_taken_back(
    problem: ClusterError, lines: int
) -> None:
    async def failing(_: BerthError) -> None:
        raise problem

    stack = UndoStack(ObjectKey("ns", "p"))
    stack.push("claim", failing)
    with capture_logs() as log:
        await stack.unwind(BindError("lost"))
    assert len(log) == lines


async def test_the_compensations_of_different_claims_do_not_wait_for_each_other() -> None:
    """Each may take seconds: a pod with many claims would undo its bind for longer than kube-scheduler waits."""
    stack, all_began = UndoStack(ObjectKey("ns", "p")), asyncio.Barrier(3)

    async def compensate(_: BerthError) -> None:
        await all_began.wait()

    for uid in ("a", "b", "c"):
        stack.push(uid, compensate)
    unwinding = asyncio.create_task(stack.unwind(BindError("lost")))
    await eventually(unwinding.done, "all compensations have run")


async def test_a_bug_in_a_compensation_is_raised_after_the_others_have_run() -> None:
    """The bind then counts as failed with this bug."""
    stack, seen = UndoStack(ObjectKey("ns", "p")), []

    async def fine(_: BerthError) -> None:
        seen.append("fine")

    async def buggy(_: BerthError) -> None:
        raise KeyError("a bug")

    for uid, compensation in (("a", fine), ("a", buggy), ("a", fine), ("b", buggy), ("c", fine)):
        stack.push(uid, compensation)
    with pytest.raises(KeyError, match="a bug"):
        await stack.unwind(BindError("lost"))
    assert seen == ["fine"] * 3
