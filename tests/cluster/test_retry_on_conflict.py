"""`retry_on_conflict`: which object each try gets, how long the pauses are, and which error it ends with."""

from __future__ import annotations

import asyncio

import pytest

from extender.cluster import ClusterError, Conflict, Forbidden, NotFound, TooMany, Unavailable, retry_on_conflict
from tests.worlds.skipping_loop import in_virtual_time

CONFLICT, NO_ANSWER, BUSY = Conflict("it changed"), Unavailable("no answer"), TooMany("busy", 2.0)


class Server:
    """It has one object; each read shows the next version. Its first answers to writes are `errors`."""

    def __init__(self, *errors: ClusterError, unreadable: tuple[ClusterError, ...] = ()) -> None:
        self.errors, self.unreadable = list(errors), list(unreadable)
        self.version = 0
        self.writes: list[tuple[float, int]] = []  # (when, what)

    async def read(self) -> int:
        if self.unreadable:
            raise self.unreadable.pop(0)
        self.version += 1
        return self.version

    async def write(self, known: int) -> str:
        self.writes.append((round(asyncio.get_running_loop().time(), 3), known))
        if self.errors:
            raise self.errors.pop(0)
        return f"stored {known}"


def written(server: Server, known: int | None = None) -> str:
    return in_virtual_time(retry_on_conflict(server.write, server.read, known))


@pytest.mark.parametrize(
    ("errors", "writes"),
    [
        ((), [(0.0, 0)]),
        ((CONFLICT,), [(0.0, 0), (0.0, 1)]),
        ((CONFLICT, NO_ANSWER, CONFLICT, CONFLICT), [(0.0, 0), (0.0, 1), (0.1, 2), (0.3, 3), (0.6, 4)]),
        ((BUSY, CONFLICT), [(0.0, 0), (2.0, 1), (2.1, 2)]),
    ],
    ids=["at once", "one conflict", "four failures", "busy"],
)
def test_a_write_is_repeated_on_what_was_read_since(
    errors: tuple[ClusterError, ...], writes: list[tuple[float, int]]
) -> None:
    server = Server(*errors)
    assert written(server, 0) == f"stored {writes[-1][1]}"
    assert server.writes == writes


def test_without_a_known_object_the_first_try_reads_it() -> None:
    server = Server(CONFLICT)
    assert written(server) == "stored 2"


@pytest.mark.parametrize("error", [CONFLICT, NO_ANSWER, BUSY])
def test_the_error_of_the_fifth_try_is_raised(error: ClusterError) -> None:
    server = Server(*[CONFLICT] * 4, error)
    with pytest.raises(type(error), match=str(error)):
        written(server)
    assert len(server.writes) == 5


@pytest.mark.parametrize("error", [NotFound("it is gone"), Forbidden("no right")])
def test_an_error_that_a_new_read_does_not_mend_is_raised_at_once(error: ClusterError) -> None:
    server = Server(error)
    with pytest.raises(type(error)):
        written(server, 0)
    assert len(server.writes) == 1


def test_a_read_that_fails_is_a_try() -> None:
    server = Server(CONFLICT, unreadable=(NO_ANSWER, NO_ANSWER))
    assert written(server, 0) == "stored 1"
    assert server.writes == [(0.0, 0), (0.3, 1)]
    with pytest.raises(Unavailable):
        written(Server(CONFLICT, unreadable=(NO_ANSWER,) * 4), 0)
