"""Policy files while Berth runs: read again when they change, the last good one kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import structlog

from extender.files import name_of, read_mounted
from extender.model.errors import WireError
from extender.policy import MOST_POLICY, Policy, PolicyError, load_policy


def read_policy(path: Path) -> tuple[bytes, Policy]:
    """(content, policy) of a file. Raises WireError or PolicyError, naming the file."""
    content = read_mounted(path, MOST_POLICY)
    try:
        return content, load_policy(content)
    except PolicyError as error:
        raise PolicyError(f"{name_of(path)}: {error}") from error


class PolicyFile:
    """`look` as often as changes should be seen, from any one thread at a time. A ConfigMap volume changes by a link
    that is swapped: only the content counts. `known` is the content that is in force already."""

    def __init__(
        self, path: Path, use: Callable[[Policy], None], refuse: Callable[[str], None], known: bytes | None = None
    ) -> None:
        self._path = path
        self._use = use
        self._refuse = refuse
        self._known = known
        self._problem = ""
        self._log = structlog.get_logger("berth.policy")

    def look(self) -> str:
        """Use the file's policy if it changed and is valid. The answer is what is wrong now and was not before."""
        try:
            content = read_mounted(self._path, MOST_POLICY)
            if content == self._known and not self._problem:
                return ""
            policy = load_policy(content)
        except (WireError, PolicyError) as error:
            return self._refused(str(error))
        self._known, self._problem = content, ""
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
        self._refuse = refuse
        self._file: PolicyFile | None = None

    def look(self) -> None:
        """As PolicyFile's."""
        if not os.path.exists(self._path):  # noqa: PTH110 - Path.exists raises where a folder may not be searched
            if self._file is not None:
                self._file = None
                self._use(None)
            return
        if self._file is None:
            self._file = PolicyFile(self._path, self._use, self._refuse)
        self._file.look()
