"""The policy file while Berth runs: read again when it changes, the last good one kept."""

from __future__ import annotations

from pathlib import Path

import structlog

from extender.policy import PolicyError, load_policy
from extender.service.judge import Judge


class PolicyFile:
    """`look` as often as changes should be seen. A ConfigMap volume changes by a link that is swapped: only the content
    counts."""

    def __init__(self, path: Path, judge: Judge) -> None:
        self._path = path
        self._judge = judge
        self._text = path.read_text()
        self._log = structlog.get_logger("berth.policy")

    def look(self) -> None:
        """Use the file's policy if it changed and is valid."""
        try:
            text = self._path.read_text()
        except OSError as error:
            self._refuse(f"cannot be read: {error}")
            return
        if text == self._text:
            return
        self._text = text
        try:
            policy = load_policy(text)
        except PolicyError as error:
            self._refuse(str(error))
            return
        self._judge.use_policy(policy)
        self._log.info("policy in force", file=str(self._path), generation=self._judge.policy_generation)

    def _refuse(self, problem: str) -> None:
        if self._judge.policy_problem != problem:
            self._log.warning("policy refused; the last good one stays in force", file=str(self._path), problem=problem)
        self._judge.policy_problem = problem
