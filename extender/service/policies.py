"""Policy files while Berth runs: read again when they change, the last good one kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import structlog

from extender.policy import Policy, PolicyError, load_policy


class PolicyFile:
    """`look` as often as changes should be seen. A ConfigMap volume changes by a link that is swapped: only the content
    counts."""

    def __init__(self, path: Path, use: Callable[[Policy], None], refuse: Callable[[str], None]) -> None:
        self._path = path
        self._use = use
        self._refuse = refuse
        self._text: str | None = None
        self._problem = ""
        self._log = structlog.get_logger("berth.policy")

    def seen(self, text: str) -> None:
        """This content is in force already."""
        self._text = text

    def look(self) -> str:
        """Use the file's policy if it changed and is valid. The answer is what is wrong now and was not before."""
        try:
            text = self._path.read_text()
            if text == self._text:
                return ""
            policy = load_policy(text)
        except (OSError, PolicyError) as error:
            return self._refused(str(error) if isinstance(error, PolicyError) else f"cannot be read: {error}")
        self._text, self._problem = text, ""
        self._use(policy)
        self._log.info("policy read", file=str(self._path))
        return ""

    def _refused(self, problem: str) -> str:
        if problem == self._problem:
            return ""
        self._problem = problem
        self._refuse(problem)
        self._log.warning("policy refused; the last good one stays", file=str(self._path), problem=problem)
        return problem


class CandidateFile:
    """A policy file that may be absent: then there is no candidate."""

    def __init__(self, path: Path, use: Callable[[Policy | None], None], refuse: Callable[[str], None]) -> None:
        self._path = path
        self._use = use
        self._file = PolicyFile(path, use, refuse)
        self._there = False

    def look(self) -> None:
        """As PolicyFile's."""
        if self._path.exists():
            self._there = True
            self._file.look()
        elif self._there:
            self._there = False
            self._use(None)
