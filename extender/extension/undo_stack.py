"""The undo stack of a bind: each write pushes its compensation. A failed bind runs those of one claim last first, and
different claims beside each other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from extender.cluster import NotFound
from extender.model import BerthError, ObjectKey

# The argument is the error that ended the bind: some allocations are only taken back if their devices are unusable.
Compensation = Callable[[BerthError], Awaitable[object]]


class UndoStack:
    """Compensations of the writes of one bind. Without a call of `unwind`, all writes stay."""

    def __init__(self, pod: ObjectKey) -> None:
        self._pod = pod
        self._compensations: dict[str, list[Compensation]] = {}  # by UID of the claim
        self._log = structlog.get_logger("berth.bind")

    def push(self, claim_uid: str, compensation: Compensation) -> None:
        """Add the compensation of a write to a claim, right after that write."""
        self._compensations.setdefault(claim_uid, []).append(compensation)

    async def unwind(self, error: BerthError) -> None:
        """Run all compensations. A compensation can take seconds, and kube-scheduler waits for the answer meanwhile.

        A failure is logged; the orphan collector takes back the write later. Raises the first error of another kind,
        which is a bug, after all compensations have run.
        """
        stacks, self._compensations = self._compensations, {}
        unwound = (self._unwind_claim(stack, error) for stack in stacks.values())
        for bug in await asyncio.gather(*unwound, return_exceptions=True):
            if bug is not None:
                raise bug

    async def _unwind_claim(self, stack: list[Compensation], error: BerthError) -> Exception | None:
        """Run the compensations of one claim, last first. Returns the first bug."""
        bug: Exception | None = None
        for compensation in reversed(stack):
            try:
                await compensation(error)
            except NotFound:
                pass  # the claim was deleted, and its devices with it: a tenant can do that in every bind
            except BerthError as problem:
                self._log.warning("could not take back", pod=str(self._pod), because=str(error), problem=str(problem))
            except Exception as problem:  # noqa: BLE001 - a bug must not keep the other compensations from running
                bug = bug or problem
        return bug
