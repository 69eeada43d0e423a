"""Answers of the reference implementation to requests made for this project; see README.md."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any

import orjson

Json = dict[str, Any]
_FOLDER = Path(__file__).parent


def worlds(name: str = "worlds") -> list[Json]:
    """The allocator's cases."""
    return [orjson.loads(line) for line in _content(f"{name}.jsonl.xz").splitlines()]


def selectors(name: str) -> list[Json]:
    """The cases of CEL."""
    found: list[Json] = orjson.loads(_content(f"{name}.json.xz"))
    return found


def _content(file: str) -> bytes:
    return lzma.decompress((_FOLDER / file).read_bytes())
