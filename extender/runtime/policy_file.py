"""The policy file of a process: a module of its own, as the node agent reads files again and must not load pydantic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from extender.files import name_of, read_mounted
from extender.policy import MAX_POLICY_BYTES, Policy, PolicyError, load_policy
from extender.runtime.file_reload import ReloadedFiles


def read_policy(path: Path) -> tuple[bytes, Policy]:
    """(content, policy) of a file. Raises WireError or PolicyError, which name the file."""
    content = read_mounted(path, MAX_POLICY_BYTES)
    try:
        return content, load_policy(content)
    except PolicyError as error:
        raise PolicyError(f"{name_of(path)}: {error}") from error


def reloaded_policy(
    path: Path, use: Callable[[Policy], None], reject: Callable[[str], None], known: bytes | None = None
) -> ReloadedFiles[Policy]:
    """The policy file of a process. `known` is the content of the policy that is already in force."""
    return ReloadedFiles(
        "policy", [path], MAX_POLICY_BYTES, _policy_of, use, reject, [known] if known is not None else None
    )


def _policy_of(contents: list[bytes]) -> Policy:
    return load_policy(contents[0])
