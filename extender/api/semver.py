"""Versions as semver.org 2.0.0 defines them, strictly."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache, total_ordering
from typing import Any

from extender.base.text_limits import REMEMBERED_TEXT, shown

_NUMBER = r"(0|[1-9]\d*)"
_IDENTIFIER = r"(?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)"
_STRICT = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}"
    rf"(?:-({_IDENTIFIER}(?:\.{_IDENTIFIER})*))?(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?",
    re.ASCII,
)


_UINT64, _MAX_DIGITS = 2**64, 20


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Semver:
    """A version. Comparisons ignore the build metadata, which `text` keeps."""

    text: str
    major: int
    minor: int
    patch: int
    key: tuple[Any, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Semver) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __lt__(self, other: Semver) -> bool:
        return self.key < other.key


def parse_semver(text: str) -> Semver:
    """Parse '1.2.3-rc.1+build'. Raises ValueError, which quotes the text."""
    return _known_semver(text) if len(text) <= REMEMBERED_TEXT else _parsed(text)


def is_semver(text: str) -> bool:
    """Whether a text is a version."""
    try:
        parse_semver(text)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=4096)
def _known_semver(text: str) -> Semver:
    return _parsed(text)


def _parsed(text: str) -> Semver:
    match = _STRICT.fullmatch(text)
    if match is None:
        raise ValueError(f"{shown(text)} is not a semantic version (major.minor.patch)")
    *parts, prerelease = match.group(1, 2, 3, 4)
    numbers = [*parts, *(part for part in (prerelease or "").split(".") if part.isdigit())]
    if any(len(number) > _MAX_DIGITS or int(number) >= _UINT64 for number in numbers):
        raise ValueError(f"{shown(text)} has a number beyond 64 bits")
    major, minor, patch = map(int, parts)
    return Semver(text, major, minor, patch, (major, minor, patch, _prerelease_key(prerelease)))


def _prerelease_key(prerelease: str | None) -> tuple[object, ...]:
    """A sort key as in semver.org §11: a release is above all pre-releases, numbers are below words."""
    if prerelease is None:
        return (1,)
    parts = tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in prerelease.split("."))
    return (0, parts)
