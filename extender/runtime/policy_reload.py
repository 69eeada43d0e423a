"""Policy files while Berth runs: read again when they change, the last good one kept."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import structlog

from extender.files import name_of, read_mounted
from extender.model import WireError
from extender.policy import MOST_POLICY, Policy, PolicyError, load_policy

LOOK_SECONDS = 1.0  # between two looks at files that may change: kubelet swaps a link when a ConfigMap changes
T = TypeVar("T")


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

    def reload(self) -> str:
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

    def reload(self) -> None:
        """As PolicyFile's."""
        if not os.path.exists(self._path):  # noqa: PTH110 - Path.exists raises where a folder may not be searched
            if self._file is not None:
                self._file = None
                self._use(None)
            return
        if self._file is None:
            self._file = PolicyFile(self._path, self._use, self._refuse)
        self._file.reload()


async def watch_policies(
    active: PolicyFile | None,
    candidate: CandidateFile | None = None,
    refused: Callable[[str], Awaitable[None]] | None = None,
) -> None:
    """Until cancelled: look at the files again and again, in a thread. What cannot be read leaves the last good policy
    in force; `refused` is told what is wrong now and was not before."""
    while True:
        problem = await asyncio.to_thread(active.reload) if active is not None else ""
        if candidate is not None:
            await asyncio.to_thread(candidate.reload)
        if problem and refused is not None:
            await refused(problem)
        await asyncio.sleep(LOOK_SECONDS)


def in_this_loop(call: Callable[[T], None]) -> Callable[[T], None]:
    """The same call for use in a thread: it is made in the loop that runs now."""
    loop = asyncio.get_running_loop()

    def later(value: T) -> None:
        loop.call_soon_threadsafe(call, value)

    return later
