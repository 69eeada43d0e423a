"""Reads the policy file again when it changes. An invalid file leaves the last valid policy in force."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from extender.files import name_of, read_mounted
from extender.model import WireError
from extender.policy import MOST_POLICY, Policy, PolicyError, load_policy
from extender.runtime.limited_call import LOOK_SECONDS, LimitedCall


def read_policy(path: Path) -> tuple[bytes, Policy]:
    """(content, policy) of a file. Raises WireError or PolicyError, which name the file."""
    content = read_mounted(path, MOST_POLICY)
    try:
        return content, load_policy(content)
    except PolicyError as error:
        raise PolicyError(f"{name_of(path)}: {error}") from error


class PolicyFile:
    """A policy file. Call `reload` regularly, from one task.

    Only the content is compared: kubelet changes the file of a ConfigMap by swapping a symbolic link. `known` is the
    content of the policy that is already in force. `use` gets each new policy, `reject` each new problem, also that a
    read has not ended after `limit_seconds`. If `use` raises an exception, so does `reload`, and the next call uses the
    policy again.
    """

    def __init__(
        self,
        path: Path,
        use: Callable[[Policy], None],
        reject: Callable[[str], None],
        known: bytes | None = None,
        read: Callable[[Path, int], bytes] = read_mounted,
        limit_seconds: float = 10.0,
    ) -> None:
        self._path = path
        self._use = use
        self._reject = reject
        self._known = known
        self._read = read
        self._reading = LimitedCall(self._read_changed, limit_seconds)
        self._problem = ""
        self._log = structlog.get_logger("berth.policy")

    async def reload(self) -> str:
        """Read the file in a thread, and use its policy if it changed and is valid. Returns a new problem, else ''."""
        try:
            found = await self._reading()
        except (WireError, PolicyError, TimeoutError) as error:
            return self.reject(str(error))
        if found is not None:
            content, policy = found
            self._use(policy)
            self._known, self._problem = content, ""
            self._log.info("policy read", file=str(self._path))
        return ""

    def _read_changed(self) -> tuple[bytes, Policy] | None:
        content = self._read(self._path, MOST_POLICY)
        return None if content == self._known and not self._problem else (content, load_policy(content))

    def reject(self, problem: str) -> str:
        """Note why the file cannot be used. The next `reload` uses its policy again. Returns `problem` if it is new."""
        if problem == self._problem:
            return ""
        self._problem = problem
        self._reject(problem)
        self._log.warning("policy rejected; the last valid one stays", file=str(self._path), problem=problem)
        return problem


async def watch_policy(file: PolicyFile, rejected: Callable[[str], Awaitable[None]] | None = None) -> None:
    """Run until cancelled: reload the file once a second. `rejected` gets each new problem."""
    while True:
        problem = await file.reload()
        if problem and rejected is not None:
            await rejected(problem)
        await asyncio.sleep(LOOK_SECONDS)
