"""Work in pieces gives what work at once gives, and lets others in between."""

from __future__ import annotations

import pytest

from extender.model.pieces import breathe, in_pieces


def halves(number: int) -> int:
    """Recursive, as the search is: breathes at every depth."""
    breathe()
    return 0 if number == 0 else 1 + halves(number // 2)


def run(pieces: object) -> tuple[int, object]:
    count = 0
    while True:
        try:
            next(pieces)  # type: ignore[call-overload] # a generator
        except StopIteration as end:
            return count, end.value
        count += 1


def test_pieces_end_with_the_value() -> None:
    assert halves(1000) == 10
    assert run(in_pieces(lambda: halves(1000))) == (11, 10)
    assert run(in_pieces(lambda: None)) == (0, None)


def test_several_take_turns_and_may_nest() -> None:
    first, second = in_pieces(lambda: halves(8)), in_pieces(lambda: run(in_pieces(lambda: halves(8)))[1])
    next(first), next(first)
    assert run(second) == (0, 4)  # the inner pieces stop at whoever runs them
    assert run(first) == (3, 4)


def test_errors_reach_who_runs_it() -> None:
    def fails() -> None:
        breathe()
        raise ValueError("no")

    pieces = in_pieces(fails)
    next(pieces)
    with pytest.raises(ValueError, match="no"):
        next(pieces)


def test_work_that_is_dropped_ends() -> None:
    ended = []

    def work() -> None:
        try:
            breathe()
        finally:
            ended.append(True)

    pieces = in_pieces(work)
    next(pieces)
    pieces.close()
    assert ended
