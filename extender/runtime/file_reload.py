"""Reads files again when their content changes: policies and certificates. Unusable files leave the last ones in use.

Only contents are compared: kubelet changes the files of a ConfigMap or Secret by swapping a symbolic link.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import structlog

from extender.base.berth_errors import BerthError
from extender.files import name_of, read_mounted

if TYPE_CHECKING:  # the node agent reads files again, too, and must not load pydantic
    from extender.policy import Policy

READ_SECONDS = 1.0  # between two reads of files that may change
T = TypeVar("T")
_LOG = structlog.get_logger("berth.files")


@dataclass(eq=False)
class ReloadedFiles(Generic[T]):
    """Files whose content is used again when it changes.

    A thread reads each file, at most `most` bytes of it, and calls `parse` with all contents if one of them changed.
    `use` gets the result in the event loop. `reject` gets each new problem: that a file cannot be read or parsed, or
    that `use` raised a BerthError or OSError. After a problem the contents are used again, also if they become what
    they were; after another exception of `use`, too, which `reload` raises. `known` are the contents already in use.
    `what` names the files in the log.
    """

    what: str
    paths: Sequence[Path]
    most: int
    parse: Callable[[list[bytes]], T]
    use: Callable[[T], None]
    reject: Callable[[str], None] = lambda _: None
    known: list[bytes] | None = None
    _problem: str = field(default="", init=False)

    async def run(self, rejected: Callable[[str], Awaitable[None]] | None = None) -> None:
        """Reload once a second until cancelled. `rejected` gets each new problem."""
        while True:
            problem = await self.reload()
            if problem and rejected is not None:
                await rejected(problem)
            await asyncio.sleep(READ_SECONDS)

    async def reload(self) -> str:
        """Read the files, and use them if they changed and are valid. Returns a new problem, else ''."""
        files = [str(path) for path in self.paths]
        try:
            found = await asyncio.to_thread(self._changed)
            if found is not None:
                contents, parsed = found
                self.use(parsed)
                self.known, self._problem = contents, ""
                _LOG.info(f"{self.what} read again", files=files)
        except (BerthError, OSError) as error:  # OSError: a file that changes meanwhile
            problem = str(error)
            if problem == self._problem:
                return ""
            self._problem = problem
            self.reject(problem)
            _LOG.warning(f"{self.what} rejected; the last valid content stays", files=files, problem=problem)
            return problem
        return ""

    def _changed(self) -> tuple[list[bytes], T] | None:
        """The contents and what they mean, if they changed."""
        contents = [read_mounted(path, self.most) for path in self.paths]
        return None if contents == self.known and not self._problem else (contents, self.parse(contents))


def read_policy(path: Path) -> tuple[bytes, Policy]:
    """(content, policy) of a file. Raises WireError or PolicyError, which name the file."""
    from extender.policy import MAX_POLICY_BYTES, PolicyError, load_policy

    content = read_mounted(path, MAX_POLICY_BYTES)
    try:
        return content, load_policy(content)
    except PolicyError as error:
        raise PolicyError(f"{name_of(path)}: {error}") from error


def reloaded_policy(
    path: Path, use: Callable[[Policy], None], reject: Callable[[str], None], known: bytes | None = None
) -> ReloadedFiles[Policy]:
    """The policy file of a process. `known` is the content of the policy that is already in force."""
    from extender.policy import MAX_POLICY_BYTES, load_policy

    in_force = [known] if known is not None else None
    return ReloadedFiles("policy", [path], MAX_POLICY_BYTES, lambda found: load_policy(*found), use, reject, in_force)
