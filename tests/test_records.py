"""Records on their way: the decoder returns the records that were encoded and rejects the rest."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.model import (
    BINARY_SI,
    DEFAULT_MIX,
    NANO,
    DeviceId,
    ObjectKey,
    Quantity,
    RequestMix,
    RequestShape,
    ReservationState,
    Result,
    WireError,
)
from extender.model.quantity import DECIMAL_EXPONENT, DECIMAL_SI
from extender.records import (
    MAX_BODY,
    MAX_FRAME,
    Attempted,
    Batch,
    Bound,
    PolicyState,
    Record,
    Released,
    Reserved,
    UnknownVersion,
    decode,
    shortened,
)
from extender.records.encoding import encode
from extender.records.limits import MAX_RECORDS, MAX_RESULTS
from extender.scheduling import Attempt, Decision, ScoredNode
from extender.scoring import ScorePart

HELD_BY = ObjectKey("default", "p")
POLICY = PolicyState(3, "abc")
RESULT = Result("gpu", DeviceId("gpu.nvidia.com", "node-1", "gpu-0"))
NUMBERS = itertools.count(1)
HELD = Reserved("claim", "pod", "node-1", (RESULT,), ReservationState.HELD, 15.0)


def batch(
    sequence: int = 1, *records: Record, replica: str = "berth-0", epoch: str = "e1", policy: PolicyState = POLICY
) -> Batch:
    """Each batch has a new number, as from one process that sends them in the order in which a test makes them."""
    return Batch(replica, epoch, sequence, next(NUMBERS), 0, policy, DEFAULT_MIX, records)


# -- the JSON -------------------------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
long_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=3).map(lambda text: text * 700)
counts = st.integers(0, 2**63 - 1)
numbers = st.floats(allow_nan=False, allow_infinity=False)
quantities = st.builds(
    Quantity, st.integers(-(10**6) * NANO, 10**6 * NANO), st.sampled_from([BINARY_SI, DECIMAL_SI, DECIMAL_EXPONENT])
)
keys = st.builds(ObjectKey, texts, texts)


def records(words: st.SearchStrategy[str]) -> st.SearchStrategy[Record]:
    pods = st.builds(ObjectKey, words, words)
    reasons = st.lists(st.tuples(words, counts), max_size=3).map(tuple)
    parts = st.lists(st.builds(ScorePart, words, numbers, words), max_size=3).map(tuple)
    devices = st.lists(words, max_size=3).map(tuple)
    candidates = st.builds(ScoredNode, words, numbers, devices, numbers, numbers, words, parts, devices)
    consumed = st.none() | st.dictionaries(words, quantities, max_size=3)
    # All that is sent: `builds` would also draw the other fields.
    results = st.builds(
        lambda request, device, admin, share, amounts: Result(request, device, admin, (), share, amounts),
        words,
        st.builds(DeviceId, words, words, words),
        st.booleans(),
        words,
        consumed,
    )
    return st.one_of(
        st.builds(Attempted, pods, words, st.builds(Attempt, words, counts, counts, reasons)),
        st.builds(Bound, pods, words, st.builds(Decision, words, candidates, words, numbers)),
        st.builds(
            Reserved,
            words,
            words,
            words,
            st.lists(results, max_size=3).map(tuple),
            st.sampled_from([ReservationState.HELD, ReservationState.BINDING]),
            st.floats(0, 86_400) | st.just(math.inf),
        ),
        st.builds(Released, words),
    )


def batches(words: st.SearchStrategy[str]) -> st.SearchStrategy[Batch]:
    shapes = st.builds(RequestShape, counts, counts, counts, counts, st.frozensets(words, max_size=3))
    return st.builds(
        Batch,
        words.map(lambda text: text or "r"),
        texts.map(lambda text: text or "e"),
        st.integers(1, 2**63 - 1),
        st.integers(1, 2**63 - 1),
        counts,
        st.builds(PolicyState, counts, words, words),
        st.lists(st.tuples(shapes, st.floats(0, 1)), max_size=3).map(tuple),
        st.lists(records(words), max_size=5).map(tuple),
    )


@given(batches(texts))
def test_decoding_reverses_encoding(sent: Batch) -> None:
    assert decode(encode(sent)) == sent


@given(batches(texts | long_texts))
def test_the_console_decodes_every_batch_that_serve_encodes(sent: Batch) -> None:
    got = decode(encode(sent))
    assert (got.sequence, len(got.records)) == (sent.sequence, len(sent.records))


any_text = st.text(st.characters(), max_size=3).flatmap(lambda text: st.sampled_from([text, text * 700]))
any_count = st.integers() | st.sampled_from([2**63, 2**64, -(2**70)])
any_shape = st.builds(
    RequestShape, any_count, any_count, any_count, any_count, st.frozensets(any_text | st.integers().map(str))
)


@given(
    st.builds(PolicyState, any_count, any_text, any_text),
    st.lists(st.tuples(any_shape, st.floats())).map(tuple),
    any_text,
)
def test_no_policy_and_no_mix_makes_the_console_refuse_records(
    policy: PolicyState, mix: RequestMix, replica: str
) -> None:
    body = encode(Batch(replica, "e1", 1, 1, 0, policy, mix, (HELD,)))
    assert decode(body).records == (HELD,)


def test_the_largest_mix_leaves_room_for_the_records() -> None:
    names = frozenset(f"{number:03}" + "\0" * 253 for number in range(100))
    mix = ((RequestShape(2**70, -1, 2**64, 5, names), 2.0),) * 100
    most, policy = 2**63 - 1, PolicyState(2**70, "\0" * 999, "\0" * 9999)
    body = encode(Batch("\0" * 999, "e" * 128, most, most, 0, policy, mix))
    assert len(body) <= MAX_FRAME
    (shape, share), *_ = decode(body).mix
    assert (shape.cpu, shape.memory, shape.milli, len(shape.models), share) == (2**63 - 1, 0, 5, 64, 1.0)


def test_texts_of_users_are_cut() -> None:
    attempt = Attempt("now", 0, 1, (("é" * 5000, 1),))
    (got,) = decode(encode(batch(1, Attempted(ObjectKey("n" * 999, "p"), "u" * 999, attempt)))).records
    assert isinstance(got, Attempted)
    assert len(got.attempt.reasons[0][0].encode()) <= 1024
    assert len(got.pod.namespace) <= 256
    assert len(got.uid) <= 128


def test_devices_are_limited() -> None:
    (got,) = decode(encode(batch(1, Reserved("c", "p", "n", (RESULT,) * 2000, ReservationState.HELD, 1.0)))).records
    assert isinstance(got, Reserved)
    assert len(got.results) == MAX_RESULTS
    for new, kept in ((100, 28), (200, 0)):
        chosen = ScoredNode("n", 1.0, ("d",) * new, 0.0, 0.0, "", (), ("r",) * 1000)
        (bound,) = decode(encode(batch(1, Bound(HELD_BY, "p", Decision("", chosen))))).records
        assert isinstance(bound, Bound)
        assert len(bound.decision.chosen.reused) == kept, "one limit for both"


def test_a_decision_that_waits_for_the_console_has_the_devices_of_a_record() -> None:
    """2,048 records of pods that shared 64 claims with 32 devices each took 400 MB while no console ran."""
    chosen = ScoredNode("n", 1.0, ("d",) * 100, 0.0, 0.0, "", (), ("r",) * 1948)
    kept = shortened(Decision("", chosen, "other", 1.0))
    assert len(kept.chosen.all_devices) == 128
    assert kept == Decision("", replace(chosen, reused=("r",) * 28), "other", 1.0)


def test_consumed_capacities_are_limited() -> None:
    consumed = {f"c{number}": Quantity(number * NANO, DECIMAL_SI) for number in range(100)}
    result = Result("gpu", RESULT.device, consumed=consumed)
    (got,) = decode(encode(batch(1, Reserved("c", "p", "n", (result,), ReservationState.HELD, 1.0)))).records
    assert isinstance(got, Reserved)
    assert got.results[0].consumed == dict(list(consumed.items())[:64])


FIELDS = """
version replica epoch sequence number lost policy.generation policy.digest policy.problem
mix.cpu mix.memory mix.gpus mix.milli mix.models mix.share records.kind
records.namespace records.name records.uid records.at records.fitting records.asked
records.reasons.text records.reasons.nodes
records.runner_up records.margin records.node records.score records.devices records.reused records.ring_gbps
records.best_gbps records.source records.parts.name records.parts.value records.parts.sentence
records.claim_uid records.pod_uid records.state records.seconds
records.results.request records.results.driver records.results.pool records.results.device
records.results.admin_access records.results.share_id records.results.consumed.memory
"""


def fields(value: Any, path: str = "") -> set[str]:
    """The paths of all values in JSON; the elements of a list have the path of the list."""
    if isinstance(value, dict):
        return set().union(*(fields(one, f"{path}.{name}") for name, one in value.items()))
    inner = [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
    return set().union(*(fields(one, path) for one in inner)) if inner else {path.removeprefix(".")}


def test_other_fields_are_another_version() -> None:
    """The decoder refuses unknown and missing fields. A console of another release must name the version instead.
    So each change of this table needs a new VERSION in records/limits.py."""
    result = Result("gpu", RESULT.device, admin_access=True, share_id="s", consumed={"memory": Quantity(1, BINARY_SI)})
    chosen = ScoredNode("n", 1.0, ("d",), 1.0, 1.0, "s", (ScorePart("p", 1.0, "s"),), ("d",))
    one_of_each = (
        Attempted(HELD_BY, "u", Attempt("at", 0, 1, (("text", 1),))),
        Bound(HELD_BY, "u", Decision("at", chosen, "other", 1.0)),
        HELD._replace(results=(result,)),
        Released("claim"),
    )
    found = orjson.loads(encode(batch(1, *one_of_each)))
    assert fields(found) == set(FIELDS.split())
    assert found["version"] == 2


@pytest.mark.parametrize("version", [0, 1, 3, -1, True, 1.0, "1", None, [], 2**62, "x" * 10_000])
def test_the_error_for_another_version_names_the_known_version(version: Any) -> None:
    found = {**orjson.loads(encode(batch())), "version": version, "of the future": {}}
    with pytest.raises(UnknownVersion, match=r"version: .* is not known here: this Berth reads version 2"):
        decode(orjson.dumps(found))


def _with(**fields: Any) -> bytes:
    return orjson.dumps({**orjson.loads(encode(batch(1, HELD))), **fields})


def _with_record(**fields: Any) -> bytes:
    return _with(records=[{**orjson.loads(encode(batch(1, HELD)))["records"][0], **fields}])


def _with_result(**fields: Any) -> bytes:
    return _with_record(results=[{"request": "r", "driver": "d", "pool": "p", "device": "x", **fields}])


SHAPE = {"cpu": 1, "memory": 1, "gpus": 1, "milli": 1, "models": [], "share": 2}
SHORT = {"request": "", "driver": "", "pool": "", "device": ""}
_WORDS_OF_PYDANTIC = re.compile(
    r"Input (?:should|tag)|Field required|should |Value error|Unable to|discriminator|dictionary"
)
HOSTILE = [
    (b"", "batch: is no JSON"),
    (b"\xff\xfe", "batch: is no JSON"),
    (b"[]", "batch: must be an object, is a list of 0"),
    (b"[" * 200_000, "batch: is no JSON: depth"),
    (b'{"version": ' + b"[" * 1000 + b"]" * 1000 + b"}", "version: a list of 1 is not known here"),
    (_with(policy=None).replace(b"null", b"[" * 1000 + b"]" * 1000), r"policy: .* \(is a list of 1\)"),
    (b'{"version": 2, "a": ' + b"[" * 1000 + b"]" * 1000 + b"}", "replica: is missing$"),
    (b'{"version": 2, "sequence": ' + b"9" * 500_000 + b"}", "batch: is no JSON"),
    (b'{"version": 2, "replica": "\\ud800"}', "batch: is no JSON"),
    (b" " * (MAX_BODY + 1), "batch: is larger than 1048576 bytes"),
    (_with(sequence=0), r"sequence: .* \(is 0\)"),
    (_with(sequence=2**63), r"sequence: .* \(is 9223372036854775808\)"),
    (_with(sequence=True), r"sequence: .* \(is true\)"),
    (_with(sequence="1"), r"sequence: .* \(is '1'\)"),
    (_with(lost=-1), r"lost: .* \(is -1\)"),
    (_with(epoch=""), r"epoch: "),
    (_with(replica="r" * 257), r"replica: "),
    (_with(policy=None), r"policy: .* \(is null\)"),
    (_with(mix=[{}]), r"mix\.0\.cpu: is missing$"),
    (_with(mix=[SHAPE]), r"mix\.0\.share: .* \(is 2\)"),
    (_with(more=1), "batch: .*has 10 fields, 9 are known"),
    (_with(**{f"k{i}": 1 for i in range(50_000)}), "batch: .*fields, 9 are known"),
    (_with(records=[{"kind": "released", "claim_uid": "c"}] * (MAX_RECORDS + 1)), "records: .* at most 512 items"),
    (_with(records=[{"kind": "k" * 500_000}]), "records.0: kind must be one of 'attempted', .*, is 'kkkk"),
    (_with(records=[{}]), "records.0: has no kind"),
    (_with(records=[7]), "records.0: "),
    (_with_record(results=[SHORT] * (MAX_RESULTS + 1)), "results: .* at most 32 items"),
    (_with(records=[{"kind": "reserved", "results": [{}] * 1024}] * 200), "records.0.reserved"),
    (_with_record(seconds=-1), r"seconds: .* \(is -1\)"),
    (_with_record(seconds=1e300), r"seconds: .* \(is 1e\+300\)"),
    (_with_record(seconds="15"), r"seconds: .* \(is '15'\)"),
    (_with_record(state="none"), r"state: .* \(is 'none'\)"),
    (_with_record(forged=1), "batch|records.0.reserved: .*fields"),
    (_with_record(claim_uid="u" * 129), "claim_uid: "),
    (_with_result(consumed={"memory": 5}), "consumed: .*5 must be a string"),
    (_with_result(consumed={"memory": "lots"}), "consumed: .*'lots' is not a quantity"),
    (_with_result(consumed={"memory": "9" * 513}), "consumed: .*at most 512 characters"),
    (_with_result(consumed={"m" * 257: "1"}), "consumed: .*the name 'mmm"),
    (_with_result(consumed={str(i): "1" for i in range(65)}), "consumed: .*at most 64"),
    (_with_result(admin_access=1), r"admin_access: .* \(is 1\)"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "words"), HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_batch_is_refused_in_one_short_sentence(body: bytes, words: str) -> None:
    with pytest.raises(WireError, match=words) as caught:
        decode(body)
    assert len(str(caught.value)) < 1024
    assert not _WORDS_OF_PYDANTIC.search(str(caught.value))


@given(
    st.binary(max_size=100)
    | st.recursive(
        st.none() | st.integers() | texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=10
    )
)
def test_decoding_raises_nothing_but_wire_errors(odd: Any) -> None:
    body = odd if isinstance(odd, bytes) else _with(records=[odd], policy=odd) if not _too_big(odd) else b""
    with pytest.raises(WireError):
        decode(body)


def _too_big(odd: Any) -> bool:
    try:
        orjson.dumps(odd)
    except TypeError:
        return True
    return False
