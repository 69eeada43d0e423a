"""Bodies of the extender's verbs, made wrong: the answer is one of the protocol or a 4xx with one sentence, no fault of
Berth's own shows, and nothing stays held. `make fuzz` runs it for long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given

from tests.worlds.fuzzing import (
    BAD_TEXTS,
    BODIES,
    CRASHES,
    IS_LONG,
    InLoop,
    Json,
    damaged,
    every_field_wrong,
    no_faults_logged,
    profile,
    replaced,
    unfolded,
)
from tests.worlds.running_berth import berthing, claim

QUESTIONS = [(verb, name) for name, one in BODIES.items() for verb in one["verbs"]]
SHARE = 1 if IS_LONG else 2  # every so many texts in place of each field, others for the next field
MAX_TOLD_BYTES = 1000  # bytes of an error


class World:
    """A Berth on an embedded cluster."""

    def __init__(self) -> None:
        self._loop = InLoop(berthing({"n1": "t4-4", "n2": "dgx1-v100"}))
        self.berth, self.close = self._loop.made, self._loop.close
        self._loop.run(self.berth.create(claim("c"), claim("d", 2)))

    def ask(self, verb: str, body: bytes) -> tuple[int, bytes]:
        found: tuple[int, bytes] = self._loop.run(self._ask(f"/{verb}", body))
        return found

    async def _ask(self, path: str, body: bytes) -> tuple[int, bytes]:
        sent: list[Json] = []
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "query_string": b"",
            "headers": [(b"content-type", b"application/json"), (b"host", b"localhost")],
        }

        async def receive() -> Json:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Json) -> None:
            sent.append(message)

        await self.berth.app(scope, receive, send)
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])

    def check(self, verb: str, body: bytes) -> None:
        status, answer = self.ask(verb, body)
        if status == 200:
            if verb == "filter" and answer == PASSED % names_in(body):
                return  # Berth repeats the names of a pod that it does not filter and reads none of them
            PROTOCOL[verb](orjson.loads(answer))
            assert b"berth failed" not in answer, answer
            return
        assert 400 <= status < 500, (status, answer)
        problem = orjson.loads(answer)["error"]
        assert problem, problem
        assert problem.isprintable(), problem
        assert len(problem.encode()) <= MAX_TOLD_BYTES, problem

    def nothing_is_held(self) -> None:
        """Assert that no hold is left after all deadlines."""
        service = self.berth.app.service
        service.cache.expire(service.clock() + 3600)
        assert service.cache.reservations.holds == 0
        assert not service.cache.reservations.in_flight


def names_in(body: bytes) -> bytes:
    return body[body.find(NAMES) + len(NAMES) : body.rfind(b"]") + 1]


NAMES = b',"Nodes":null,"NodeNames":'
PASSED = b'{"NodeNames":%b,"Nodes":null,"FailedNodes":{},"FailedAndUnresolvableNodes":{},"Error":""}'


def _filter_result(found: Any) -> None:
    assert set(found) == {"NodeNames", "Nodes", "FailedNodes", "FailedAndUnresolvableNodes", "Error"}
    assert found["NodeNames"] is None or all(type(name) is str for name in found["NodeNames"])
    assert found["Nodes"] is None or all(type(node) is dict for node in found["Nodes"]["items"])
    assert all(type(text) is str for text in found["FailedAndUnresolvableNodes"].values())
    assert found["FailedNodes"] == {}
    assert type(found["Error"]) is str
    assert found["Error"] or (found["NodeNames"] is None) != (found["Nodes"] is None)


def _scores(found: Any) -> None:
    assert all(set(one) == {"Host", "Score"} and type(one["Host"]) is str for one in found)
    assert all(type(one["Score"]) is int and 0 <= one["Score"] <= 10 for one in found)


def _binding_result(found: Any) -> None:
    assert list(found) == ["Error"]
    assert type(found["Error"]) is str


def _preemption_result(found: Any) -> None:
    assert list(found) == ["NodeNameToMetaVictims"]
    for victims in found["NodeNameToMetaVictims"].values():
        assert set(victims) == {"Pods", "NumPDBViolations"}
        assert type(victims["NumPDBViolations"]) is int
        assert all(list(one) == ["UID"] and type(one["UID"]) is str for one in victims["Pods"])


PROTOCOL = {"filter": _filter_result, "prioritize": _scores, "bind": _binding_result, "preempt": _preemption_result}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World()
    yield made
    made.nothing_is_held()
    made.close()


@pytest.fixture(autouse=True)
def no_bug() -> Iterator[None]:
    with no_faults_logged():
        yield


@pytest.mark.parametrize(("verb", "name"), QUESTIONS)
def test_every_field_made_wrong(world: World, verb: str, name: str) -> None:
    for body in every_field_wrong(BODIES[name]["body"], BAD_TEXTS, SHARE):
        world.check(verb, body)


@pytest.mark.parametrize(("verb", "name"), QUESTIONS)
def test_some_fields_and_bytes_made_wrong(world: World, verb: str, name: str) -> None:
    @profile(2)
    @given(damaged(BODIES[name]["body"]))
    def one(body: bytes) -> None:
        world.check(verb, body)

    one()


@pytest.mark.parametrize("case", CRASHES["verbs"], ids=lambda case: f"{case['body']} {case['spot'][-1]}")
def test_former_crashes_stay_fixed(world: World, case: Json) -> None:
    one = BODIES[case["body"]]
    for verb in one["verbs"]:
        world.check(verb, replaced(one["body"], tuple(case["spot"]), unfolded(case["text"])))


def test_unharmed_bodies_are_answered(world: World) -> None:
    """The bodies that the fuzzers start from are valid."""
    for verb, name in QUESTIONS:
        status, answer = world.ask(verb, orjson.dumps(BODIES[name]["body"]))
        assert status == 200, answer
    assert orjson.loads(world.ask("filter", orjson.dumps(BODIES["whole nodes"]["body"]))[1])["Nodes"]["items"]
