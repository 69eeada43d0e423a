"""Answers of the reference implementation to requests made for this project; see README.md."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any

import orjson

Json = dict[str, Any]
_FOLDER = Path(__file__).parent


def worlds() -> list[Json]:
    """The allocator's cases."""
    return [orjson.loads(line) for line in lzma.decompress((_FOLDER / "worlds.jsonl.xz").read_bytes()).splitlines()]


def probes() -> list[Json]:
    """The cases of CEL."""
    found: list[Json] = orjson.loads(lzma.decompress((_FOLDER / "probes.json.xz").read_bytes()))
    return found
