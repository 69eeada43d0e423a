"""A sentence quotes only a part of a long text of a user, so no reply, log line, Event or annotation multiplies it."""

from __future__ import annotations

import json
import re

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from extender.api import extender_v1 as wire
from extender.api.extender_v1 import MAX_NAMES
from extender.api.object_meta import ObjectKey
from extender.api.quantity import parse_quantity
from extender.api.reasons import Code, Reason
from extender.base.berth_errors import WireError
from extender.base.text_limits import REASON_BYTES, USER_BYTES, cut, one_line, shown
from extender.cli.logs import set_up_logging
from extender.scheduling.decision import ScoredNode
from extender.topology.score_parts import ScorePart
from tests.worlds.eventually import eventually
from tests.worlds.explain_worlds import refused
from tests.worlds.running_berth import berthing, claim, pod

HUGE = "Ω" * 125_000  # 250,000 bytes; the API allows 256 KiB of annotations


@given(st.text() | st.sampled_from(["é" * (USER_BYTES // 2), "Ω" * 1000]), st.integers(3, USER_BYTES))
def test_cut_keeps_a_beginning_and_breaks_no_character(text: str, most: int) -> None:
    encoded, short = text.encode(errors="replace"), cut(text, most)
    assert len(short.encode(errors="replace")) <= most
    assert (short == text) == (len(encoded) <= most)
    assert short == text or (short.endswith("…") and encoded.decode().startswith(short[:-1]))
    line = one_line(text, most)
    assert len(line.encode()) <= most
    assert line.isprintable()
    assert line == short or not text.isprintable()


@pytest.mark.parametrize("code", Code)
def test_every_reason_is_short(code: Code) -> None:
    assert len(str(Reason(code, (HUGE, HUGE, HUGE))).encode()) <= REASON_BYTES


WITH_SENTENCES = (Code.INVALID, Code.POOL_INVALID, Code.GANG_BIND_FAILED)


@pytest.mark.parametrize("code", [code for code in Code if code not in WITH_SENTENCES])
def test_each_name_in_a_reason_is_short_and_printable(code: Code) -> None:
    """Attack: multiply a long text by thousands of nodes."""
    text = str(Reason(code, ("Ω" * 1000, "Ж" * 1000, "Ψ" * 1000)))
    assert all(len((letter * text.count(letter)).encode()) <= USER_BYTES for letter in "ΩЖΨ")
    assert str(Reason(code, ("\x1b[2J", "\u202e", "\n"))).isprintable()
    assert set("ΩЖΨ") & set(text) == set("ΩЖΨ") & set(str(Reason(code, tuple("ΩЖΨ")))), "a long name hides no other"


def test_errors_quote_only_the_wrong_value() -> None:
    text = f"{shown(HUGE)} is not a quantity: use forms such as 80Gi, 500m or 1e9"
    assert len(text.encode()) < 200
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        parse_quantity(HUGE)


@pytest.mark.parametrize("annotation", ["topology", "min-bandwidth-gbps", "expected-memory"])
async def test_a_huge_annotation_makes_a_small_reply_and_a_small_event(annotation: str) -> None:
    """A text of 250,000 bytes on 2,000 nodes once made a reply of 477 MB."""
    async with berthing({"n1": "t4-4"}) as b:
        await b.create(claim("one"), pod("p", "one", annotations={f"berth.dev/{annotation}": HUGE}))
        names = [f"node-{number}" for number in range(5000)]
        reply = await b.client.post("/filter", json={"Pod": b.pod("p"), "Nodes": None, "NodeNames": names})
        assert len(reply.content) < 5000 * (REASON_BYTES + 20)
        (reason,) = set(reply.json()["FailedAndUnresolvableNodes"].values())
        assert reason.startswith(f"pod annotation berth.dev/{annotation}: 'ΩΩ")
        assert " is not " in reason
        await refused(b, "p", "0/1 nodes are available: 1 invalid.")
        await eventually(lambda: b.cluster.store.all("events"))
        (event,) = b.cluster.store.all("events")
        assert len(event["note"].encode()) <= 1024
        reply = await b.client.get("/v1/explain/default/p")
        assert len(reply.content) < 8 * 1024


async def test_a_huge_name_of_a_group_is_cut_in_all_texts() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        await b.create(claim("one"), pod("p", "one", annotations={"berth.dev/group": HUGE}))
        reply = await b.client.post("/filter", json={"Pod": b.pod("p"), "Nodes": None, "NodeNames": ["n1"]})
        await refused(b, "p", "0/1 nodes are available: 1 invalid.")
        await eventually(lambda: b.cluster.store.all("events"))
        (event,) = b.cluster.store.all("events")
        explained = await b.client.get("/v1/explain/default/p")
        for text in (reply.text, await b.bind("p", "n1"), event["note"], explained.text):
            assert max(len(part.encode()) for part in re.findall("Ω+", text)) <= USER_BYTES


async def test_a_note_that_is_too_long_is_cut_before_it_is_sent() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        await b.console.event_recorder.policy_rejected(ObjectKey("default", "policy"), HUGE)
        (event,) = b.cluster.store.all("events")
    assert event["note"].startswith("the last good policy stays in force: Ω")
    assert len(event["note"].encode()) <= 1024


def test_reasons_of_more_nodes_than_any_cluster_has_share_a_limit() -> None:
    names = [f"n{number}" for number in range(100_000)]
    reason = "x" * REASON_BYTES
    args = wire.decode_args(json.dumps({"Pod": {"metadata": {"name": "p"}}, "NodeNames": names}).encode())
    assert len(wire.encode_filter(args, [], dict.fromkeys(names, reason))) < 12 * 1024 * 1024
    few = json.loads(wire.encode_filter(args, [], dict.fromkeys(names[:5000], reason)))
    assert set(few["FailedAndUnresolvableNodes"].values()) == {reason}


@pytest.mark.parametrize("extra", ["", '"Nodes":null,'])
def test_more_names_than_any_cluster_has_are_refused(extra: str) -> None:
    names = ",".join(['"n"'] * (MAX_NAMES + 1))
    with pytest.raises(WireError, match=f"NodeNames: has {MAX_NAMES + 1} names, of at most {MAX_NAMES}"):
        list(wire.decode_args(f'{{"Pod":{{"metadata":{{"name":"p"}}}},{extra}"NodeNames":[{names}]}}'.encode()).names)


def test_errors_in_replies_are_cut() -> None:
    assert len(wire.encode_filter_error(HUGE)) < 1024
    assert len(wire.encode_bind(HUGE)) < 1024


def test_the_annotation_on_a_bound_pod_is_cut() -> None:
    chosen = ScoredNode("n1", 0.5, (HUGE,), 300.0, 300.0, "agent", (ScorePart("link", 1.0, HUGE),))
    assert 4000 < len(chosen.annotation("", 0.0).encode()) <= 4096


def test_every_value_of_a_log_line_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("info", "json")
    try:
        raise ValueError(HUGE)
    except ValueError:
        structlog.get_logger("berth.web").exception("failed", pod=HUGE, names=[HUGE] * 100, count=3, ready=True)
    finally:
        structlog.reset_defaults()
    line = capsys.readouterr().err
    found = json.loads(line)
    assert len(line) < 64 * 1024
    assert found["count"] == 3
    assert found["ready"] is True
    assert found["pod"].startswith("ΩΩ")
    assert found["pod"].endswith("…")
    assert "ValueError" in found["exception"]
