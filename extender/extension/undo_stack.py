"""The undo stack of a bind: each write pushes its compensation, and a failed bind runs them, last first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from extender.model import BerthError, ObjectKey

# The argument is the error that ended the bind: some allocations are only taken back if their devices are unusable.
Compensation = Callable[[BerthError], Awaitable[object]]


class UndoStack:
    """Compensations of the writes of one bind. Without a call of `unwind`, all writes stay."""

    def __init__(self, pod: ObjectKey) -> None:
        self._pod = pod
        self._compensations: list[Compensation] = []
        self._log = structlog.get_logger("berth.bind")

    def push(self, compensation: Compensation) -> None:
        """Add the compensation of a write, right after that write."""
        self._compensations.append(compensation)

    async def unwind(self, error: BerthError) -> None:
        """Run the compensations, last first. A failure is logged; the orphan collector takes back the write later.

        Raises the first error of another kind, which is a bug, after all of them have run.
        """
        bug: Exception | None = None
        while self._compensations:
            compensation = self._compensations.pop()
            try:
                await compensation(error)
            except BerthError as problem:
                self._log.warning("could not take back", pod=str(self._pod), because=str(error), problem=str(problem))
            except Exception as problem:  # noqa: BLE001 - the other compensations must run
                bug = bug or problem
        if bug is not None:
            raise bug
