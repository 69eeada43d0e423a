"""Versions as semver.org 2.0.0 defines them, strictly."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
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


@dataclass(frozen=True, slots=True, order=True)
class Semver:
    """A version. Comparisons ignore the build metadata, which `text` keeps."""

    major: int
    minor: int
    patch: int
    prerelease: tuple[Any, ...]  # a sort key as in semver.org §11: a release is above all pre-releases
    text: str = field(compare=False)


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
    return Semver(major, minor, patch, _prerelease_key(prerelease), text)


def _prerelease_key(prerelease: str | None) -> tuple[object, ...]:
    """See Semver.prerelease. Numbers are below words."""
    if prerelease is None:
        return (1,)
    parts = tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in prerelease.split("."))
    return (0, parts)
