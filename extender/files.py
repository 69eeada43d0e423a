"""Reading and writing of files that a user names. Each error is one sentence; other modules interpret the content."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

from extender.api.documents import MAX_JSON
from extender.base.berth_errors import WireError
from extender.base.text_limits import one_line

STANDARD_INPUT = Path("-")


def read_file(path: Path, most: int = MAX_JSON) -> bytes:
    """The content of a file; `-` is standard input. Raises WireError if it is unreadable or above `most` bytes."""
    where = name_of(path)
    try:
        if path == STANDARD_INPUT:
            if sys.stdin is None:
                raise WireError(where, "is closed")
            content = sys.stdin.buffer.read(most + 1)
        else:
            with path.open("rb") as stream:
                content = stream.read(most + 1)
    except (OSError, ValueError) as error:
        reason = "is the current folder, not a file" if path == Path() else _reason(error)
        raise WireError(where, reason) from error
    if len(content) > most:
        raise WireError(where, f"is larger than {most} bytes")
    return content


def write_file(path: Path, content: bytes) -> None:
    """Write a file. Raises WireError that names it."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise WireError(name_of(path), error.strerror or str(error)) from error


def must_exist(path: Path) -> None:
    """Raises WireError if no file has this path."""
    if is_missing(path):
        raise WireError(name_of(path), "does not exist")


def is_missing(path: Path) -> bool:
    """Whether no file has this path; unlike Path.exists, it never raises."""
    try:
        path.stat()
    except (OSError, ValueError) as error:
        return isinstance(error, FileNotFoundError)
    return False


def read_mounted(path: Path, most: int) -> bytes:
    """The content of a regular file that Berth reads many times. Raises WireError, also for a pipe."""
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError) as error:
        raise WireError(name_of(path), _reason(error)) from error
    if not regular and not path.is_dir():
        raise WireError(name_of(path), "is not a regular file")
    return read_file(path, most)


def name_of(path: Path) -> str:
    """The path as text for messages."""
    return "standard input" if path == STANDARD_INPUT else one_line(str(path), 1024)


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return "does not exist"
    if isinstance(error, IsADirectoryError):
        return "is a folder"
    if isinstance(error, PermissionError):
        return "may not be read: permission denied"
    return f"cannot be read: {error.strerror if isinstance(error, OSError) and error.strerror else error}"
