"""The undo stack of a bind: each write pushes its compensation, and a failed bind runs them, last first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from extender.model import BerthError, ObjectKey

# Called with the error that ended the bind: some allocations go back only where their devices are unusable.
Compensation = Callable[[BerthError], Awaitable[object]]


class UndoStack:
    """Compensations of the writes of one bind. Without a call of `unwind` everything that was written stays."""

    def __init__(self, pod: ObjectKey) -> None:
        self._pod = pod
        self._compensations: list[Compensation] = []
        self._log = structlog.get_logger("berth.bind")

    def push(self, compensation: Compensation) -> None:
        """Call it right after the write that it takes back."""
        self._compensations.append(compensation)

    async def unwind(self, error: BerthError) -> None:
        """Run the compensations, last first. What cannot be taken back is logged, and collected later."""
        while self._compensations:
            compensation = self._compensations.pop()
            try:
                await compensation(error)
            except BerthError as problem:
                self._log.warning("could not take back", pod=str(self._pod), because=str(error), problem=str(problem))
