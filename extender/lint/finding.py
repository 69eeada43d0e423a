"""A finding of `berth lint` about one field of one object."""

from __future__ import annotations

from typing import NamedTuple


class LintFinding(NamedTuple):
    """One finding, or a note, which says what was not checked. An error keeps pods from running; a warning may be on
    purpose.
    """

    severity: str  # "error", "warning" or "note"
    where: str  # the object and the field
    problem: str
    correction: str = ""
    fixed: bool = False  # whether `--fix` prints the object without the problem

    def within(self, location: str) -> LintFinding:
        """The finding with the location of its object before the field."""
        return self._replace(where=f"{location}, {self.where}" if self.where else location)
