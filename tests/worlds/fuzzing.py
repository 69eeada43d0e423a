"""Shared parts of the fuzzers: the length of their runs, a world in a loop of its own, and JSON with one wrong part.

BERTH_FUZZ is how many examples a fuzzer draws; `make fuzz` sets it. Without it runs are short and equal each time.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

import orjson
import yaml
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tests.worlds.bad_values import spots

T = TypeVar("T")
Json = dict[str, Any]
Spot = tuple[str | int, ...]

CASES = Path(__file__).parents[1] / "cases"
OBJECTS: dict[str, dict[str, Json]] = yaml.safe_load((CASES / "objects.yaml").read_text())
CRASHES: dict[str, list[Json]] = yaml.safe_load((CASES / "crashes.yaml").read_text())
EXAMPLES = int(os.environ.get("BERTH_FUZZ", "25"))
IS_LONG = EXAMPLES > 25

# JSON texts in place of a field, all of which the API server can send.
BAD_FIELDS: tuple[bytes, ...] = (
    b"null", b"true", b"0", b"-1", b"1.5", b"9223372036854775808", b"18446744073709551616", b"1" + b"0" * 40, b"-0.0",
    b'""', b'"x"', b'"\\u0000"', b'"\\ud800"', b'"\xff"', '"²"'.encode(), '"é\U0001f600\u2028"'.encode(),
    b'"' + b"9" * 400 + b'"',
    b'"1Gi"', b'"-1e99"', b'"1.2.3.4"', b'"true"', b'"' + b"x" * 5000 + b'"', b"[]", b"[null]", b"[1]", b'["x"]',
    b"[[]]", b"[{}]",
    b"{}", b'{"x": 1}', b'{"": null}', b'{"x": "y"}', b'{"x": {"x": []}}', b'{"name": "x"}',
    b'[{"name": "x"}, {"name": "x"}]',
    b'{"a": 1, "a": {}}', b"[" * 300 + b"]" * 300, b'{"a":' * 300 + b"1" + b"}" * 300, b"[" * 1100 + b"]" * 1100,
)  # fmt: skip
# And texts that only a broken or hostile client sends.
BAD_TEXTS: tuple[bytes, ...] = (
    *BAD_FIELDS, b"NaN", b"Infinity", b"1e999", b"", b"'x'", b"[", b"}", b'"', b"\x00", b"0x10", b"01", b"-",
)  # fmt: skip


def profile(share: float = 1.0) -> settings:
    """Settings for a fuzzer that draws this share of the usual number of examples."""
    return settings(
        max_examples=max(1, round(EXAMPLES * share)),
        derandomize=not IS_LONG,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


class InLoop(Generic[T]):
    """What a context manager makes, in a loop of its own, so that hypothesis can call in between."""

    def __init__(self, making: AbstractAsyncContextManager[T]) -> None:
        self._runner, self._making = asyncio.Runner(), making
        self.made = self.run(making.__aenter__())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(work)

    def close(self) -> None:
        self.run(self._making.__aexit__(None, None, None))
        self._runner.close()


@contextmanager
def no_faults_logged() -> Iterator[None]:
    """Nothing is logged meanwhile as an error or with a traceback."""
    with capture_logs() as logs:
        yield
    faults = [entry for entry in logs if entry.get("exc_info") or entry["log_level"] in ("error", "critical")]
    assert not faults, faults[-3:]


def unfolded(text: str) -> bytes:
    r"""«a*3» is aaa, \xNN is a byte."""
    expanded = re.sub(r"«(.+?)\*(\d+)»", lambda found: found[1] * int(found[2]), text).encode()
    return re.sub(rb"\\x(..)", lambda found: bytes([int(found[1], 16)]), expanded)


def replaced(value: Any, spot: Spot, text: bytes) -> bytes:
    """The value as JSON with this text at one spot."""
    return orjson.dumps(_put(value, spot, _MARK)).replace(orjson.dumps(_MARK), text, 1)


def dropped(value: Any, spot: Spot) -> bytes:
    """The value as JSON without what stands at a spot, which is not the value itself."""
    kept = _at(value, spot[:-1])
    if isinstance(kept, dict):
        kept = {key: inner for key, inner in kept.items() if key != spot[-1]}
    else:
        kept = [inner for position, inner in enumerate(kept) if position != spot[-1]]
    return orjson.dumps(_put(value, spot[:-1], kept))


def every_field_wrong(value: Any, texts: tuple[bytes, ...], share: int, first: int = 0) -> list[bytes]:
    """The value with every field replaced by bad texts, and with every field left out. `share`: every so many of the
    texts in place of each field, others for the next field; `first`: 1 leaves out the value itself."""
    found = []
    for number, spot in enumerate(spots(value)[first:]):
        found += [replaced(value, spot, text) for text in texts[number % share :: share]]
        found += [dropped(value, spot)] if spot else []
    return found


@st.composite
def damaged(draw: st.DrawFn, value: Any, texts: tuple[bytes, ...] = BAD_TEXTS) -> bytes:
    """The value as JSON with a field replaced or missing, or with some of its bytes changed."""
    spot = draw(st.sampled_from(spots(value)[1:]))
    match draw(st.integers(0, 3)):
        case 0:
            return dropped(value, spot)
        case 1:
            return draw(mutated(orjson.dumps(value)))
        case _:
            return replaced(value, spot, draw(st.sampled_from(texts)))


@st.composite
def mutated(draw: st.DrawFn, text: bytes) -> bytes:
    """The text with a few parts removed, repeated, moved or overwritten."""
    for _ in range(draw(st.integers(1, 3))):
        start, length = draw(st.integers(0, len(text))), draw(st.integers(0, 12))
        piece = text[start : start + length]
        new = draw(
            st.one_of(
                st.just(b""), st.just(piece * 2), st.just(piece[::-1]), st.binary(max_size=4), st.sampled_from(_TOKENS)
            )
        )
        text = text[:start] + new + text[start + length :]
    return text


_MARK = "\x00here"
_TOKENS = [
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"null", b'"":', b"\r\n", b"\n", b" ", b"\x00", b"\xff", b'],"',
]  # fmt: skip


def _at(value: Any, spot: Spot) -> Any:
    for step in spot:
        value = value[step]
    return value


def _put(value: Any, spot: Spot, new: Any) -> Any:
    """A copy that shares all parts that do not contain the spot."""
    if not spot:
        return new
    copy = value.copy()
    copy[spot[0]] = _put(value[spot[0]], spot[1:], new)
    return copy


BODIES: dict[str, Json] = yaml.safe_load((CASES / "bodies.yaml").read_text())
