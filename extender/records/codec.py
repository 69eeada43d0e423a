"""Batches as JSON. `encode` cuts texts to the limits that `decode` enforces; `decode` validates every field.

A batch is `{"version": 1, "replica", "epoch", "sequence", "lost", "policy", "mix", "records": [{"kind": …}, …]}`.
Quantities are strings, and infinity is null.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import singledispatch
from typing import Annotated, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, FailFast, Field, PlainValidator, ValidationError, model_validator

from extender.model import (
    USER_BYTES,
    DeviceId,
    ObjectKey,
    Quantity,
    RequestMix,
    RequestShape,
    ReservationState,
    Result,
    WireError,
    cut,
    one_line,
    parse_quantity,
    shown,
)
from extender.policy import in_plain_words
from extender.records.schema import Attempted, Batch, Bound, PolicyState, Record, Released, Reserved
from extender.scheduling import Attempt, Decision, ScoredNode
from extender.scoring import ScorePart
from extender.wire import Json

VERSION = 1
MAX_BODY = 1024 * 1024  # bytes of a batch
MAX_FRAME = 128 * 1024  # bytes of a batch without its records
MAX_RECORDS = 512
MAX_DEVICES = 1024  # devices or results of one record
_MAX_NAME = 256  # bytes of an API name; the API server allows 253
_MAX_SENTENCE = 1024  # bytes of a sentence
_MAX_DEVICE = 3 * _MAX_NAME  # bytes of driver/pool/device
_MAX_QUANTITY = 512  # characters; a quantity with a large exponent is written with hundreds of zeros
_MAX_LIST = 64  # reasons, parts of a score, shapes of a mix, capacities
_MAX_MIX = 100 * 1024  # bytes; a shape with 64 models of 256 bytes has less, also where JSON escapes them
_MAX_HOLD = 86_400.0  # seconds; a policy allows at most 300
_MAX_INT = 2**63 - 1


class UnknownVersion(WireError):
    """This process does not support the version of the batch."""

    def __init__(self, version: object) -> None:
        super().__init__("version", f"{_shown(version)} is not known here: this Berth reads version {VERSION}")


# -- encode ---------------------------------------------------------------------------------------------------------


def encode(batch: Batch) -> bytes:
    """The batch as JSON. Raises TypeError for a record with a number above 64 bits or a string that is not Unicode."""
    return encode_parts(batch, [encode_record(record) for record in batch.records])


def encode_record(record: Record) -> bytes:
    """One record as JSON. Raises TypeError as `encode` does."""
    return orjson.dumps(_encoded(record))


def encode_parts(batch: Batch, records: Iterable[bytes]) -> bytes:
    """Like `encode`, with records that the caller encoded. `decode` rejects no replica, policy or mix."""
    return orjson.dumps(
        {
            "version": VERSION,
            "replica": _unicode(batch.replica, _MAX_NAME) or "?",
            "epoch": batch.epoch,
            "sequence": batch.sequence,
            "lost": batch.lost,
            "policy": {
                "generation": _count(batch.policy.generation),
                "digest": _unicode(batch.policy.digest),
                "problem": _unicode(batch.policy.problem, _MAX_SENTENCE),
            },
            "mix": orjson.Fragment(_mix(batch.mix)),
            "records": [orjson.Fragment(record) for record in records],
        }
    )


def _mix(mix: RequestMix) -> bytes:
    """The mix as JSON of at most _MAX_MIX bytes; if it is larger, it omits the last shapes."""
    shapes = [_share(*pair) for pair in mix[:_MAX_LIST]]
    while len(found := orjson.dumps(shapes)) > _MAX_MIX:
        shapes = shapes[: len(shapes) // 2]
    return found


def _share(shape: RequestShape, share: float) -> Json:
    cpu, memory, gpus, milli = map(_count, shape[:4])
    models = sorted(_unicode(name, _MAX_NAME) for name in shape.models)[:_MAX_LIST]
    bounded = min(max(0.0, share), 1.0)  # in this order, NaN becomes 0
    return {"cpu": cpu, "memory": memory, "gpus": gpus, "milli": milli, "models": models, "share": bounded}


def _count(number: int) -> int:
    return min(max(number, 0), _MAX_INT)


def _unicode(text: str, most: int = USER_BYTES) -> str:
    """The text in at most `most` bytes. A '?' replaces each lone surrogate, which has no JSON."""
    return _cut(text.encode(errors="replace").decode(), most)


def _cut(text: str, most: int = USER_BYTES) -> str:
    return text if len(text) <= most and text.isascii() else cut(text, most)


@singledispatch
def _encoded(record: Record) -> Json:
    raise TypeError(f"{type(record).__name__} is not a record type")


@_encoded.register
def _attempted(record: Attempted) -> Json:
    attempt = record.attempt
    return {
        "kind": "attempted",
        **_pod(record.pod, record.uid),
        "at": _cut(attempt.at),
        "fitting": attempt.fitting,
        "asked": attempt.asked,
        "reasons": [{"text": _cut(text, _MAX_SENTENCE), "nodes": nodes} for text, nodes in attempt.reasons[:_MAX_LIST]],
    }


@_encoded.register
def _bound(record: Bound) -> Json:
    decision, chosen = record.decision, record.decision.chosen
    return {
        "kind": "bound",
        **_pod(record.pod, record.uid),
        "at": _cut(decision.at),
        "runner_up": _cut(decision.runner_up, _MAX_NAME),
        "margin": decision.margin,
        "node": _cut(chosen.node, _MAX_NAME),
        "score": chosen.score,
        "devices": [_cut(device, _MAX_DEVICE) for device in chosen.devices[:MAX_DEVICES]],
        "reused": [_cut(device, _MAX_DEVICE) for device in chosen.reused[: max(MAX_DEVICES - len(chosen.devices), 0)]],
        "ring_gbps": chosen.ring_gbps,
        "best_gbps": chosen.best_gbps,
        "source": _cut(chosen.source),
        "parts": [
            {"name": _cut(part.name), "value": part.value, "sentence": _cut(part.sentence, _MAX_SENTENCE)}
            for part in chosen.parts[:_MAX_LIST]
        ],
    }


@_encoded.register
def _reserved(record: Reserved) -> Json:
    return {
        "kind": "reserved",
        "claim_uid": _cut(record.claim_uid),
        "pod_uid": _cut(record.pod_uid),
        "node": _cut(record.node, _MAX_NAME),
        "results": [_result(result) for result in record.results[:MAX_DEVICES]],
        "state": record.state.value,
        "seconds": None if math.isinf(record.seconds) else min(max(record.seconds, 0.0), _MAX_HOLD),
    }


@_encoded.register
def _released(record: Released) -> Json:
    return {"kind": "released", "claim_uid": _cut(record.claim_uid)}


def _pod(pod: ObjectKey, uid: str) -> Json:
    return {"namespace": _cut(pod.namespace, _MAX_NAME), "name": _cut(pod.name, _MAX_NAME), "uid": _cut(uid)}


def _result(result: Result) -> Json:
    found: Json = {
        "request": _cut(result.request, _MAX_NAME),
        "driver": _cut(result.device.driver, _MAX_NAME),
        "pool": _cut(result.device.pool, _MAX_NAME),
        "device": _cut(result.device.device, _MAX_NAME),
    }
    if result.admin_access:
        found["admin_access"] = True
    if result.share_id:
        found["share_id"] = _cut(result.share_id)
    if result.consumed is not None:
        found["consumed"] = {_cut(name, _MAX_NAME): str(n) for name, n in [*result.consumed.items()][:_MAX_LIST]}
    return found


# -- decode ---------------------------------------------------------------------------------------------------------


def decode(body: bytes) -> Batch:
    """The batch of a JSON body. Raises UnknownVersion, or WireError with the field and its value."""
    if len(body) > MAX_BODY:
        raise WireError("batch", f"is larger than {MAX_BODY} bytes")
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise WireError("batch", f"is no JSON: {one_line(str(error))}") from error
    if type(found) is not dict:
        raise WireError("batch", f"must be an object, is {_shown(found)}")
    version = found.get("version")
    if type(version) is not int or version != VERSION:
        raise UnknownVersion(version)
    try:
        return _Batch.model_validate(found).batch()
    except ValidationError as error:
        raise _fault(error) from error


def _fault(error: ValidationError) -> WireError:
    first = error.errors(include_url=False, include_context=False)[0]
    path = one_line(".".join(map(str, first["loc"])), _MAX_NAME)
    value = "" if first["type"] == "missing" else f" (is {_shown(first['input'])})"
    return WireError(path or "batch", one_line(in_plain_words(first["msg"]), _MAX_NAME) + value)


def _shown(value: object) -> str:
    """A value for an error message. Lists and objects show their size only: repr fails on deep nesting."""
    kind = "a list" if isinstance(value, list) else "an object"
    return f"{kind} of {len(value)}" if isinstance(value, list | dict) else shown(value)


class _Strict(BaseModel):
    """An object of the batch. It may have only the declared fields, in any order."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _limit_fields(cls, value: object) -> object:
        """Reject objects with too many fields early: pydantic creates one error per unknown field, which is slow."""
        if isinstance(value, dict) and len(value) > len(cls.model_fields):
            raise ValueError(f"has {len(value)} fields, {len(cls.model_fields)} are known")
        return value


def _capacities(value: object) -> Mapping[str, Quantity]:
    if not isinstance(value, dict) or len(value) > _MAX_LIST:
        raise ValueError(f"must be an object of at most {_MAX_LIST} quantities")
    return {_capacity_name(name): _quantity(amount) for name, amount in value.items()}


def _capacity_name(name: str) -> str:
    if len(name) > _MAX_NAME:
        raise ValueError(f"the name {shown(name)} is longer than {_MAX_NAME} characters")
    return name


def _quantity(amount: object) -> Quantity:
    if not isinstance(amount, str) or len(amount) > _MAX_QUANTITY:
        raise ValueError(f"{_shown(amount)} must be a string of at most {_MAX_QUANTITY} characters")
    return parse_quantity(amount)


_T = TypeVar("_T")
_Word = Annotated[str, Field(max_length=USER_BYTES)]
_Name = Annotated[str, Field(max_length=_MAX_NAME)]
_DeviceName = Annotated[str, Field(max_length=_MAX_DEVICE)]
_Sentence = Annotated[str, Field(max_length=_MAX_SENTENCE)]
_Count = Annotated[int, Field(ge=0, le=_MAX_INT)]
_List = Annotated[list[_T], Field(max_length=_MAX_LIST), FailFast()]
_Devices = Annotated[list[_T], Field(max_length=MAX_DEVICES), FailFast()]


class _Reason(_Strict):
    text: _Sentence
    nodes: _Count


class _Attempted(_Strict):
    kind: Literal["attempted"]
    namespace: _Name
    name: _Name
    uid: _Word
    at: _Word
    fitting: _Count
    asked: _Count
    reasons: _List[_Reason]

    def record(self) -> Attempted:
        pod, reasons = ObjectKey(self.namespace, self.name), tuple((one.text, one.nodes) for one in self.reasons)
        return Attempted(pod, self.uid, Attempt(self.at, self.fitting, self.asked, reasons))


class _Part(_Strict):
    name: _Word
    value: float
    sentence: _Sentence


class _Bound(_Strict):
    kind: Literal["bound"]
    namespace: _Name
    name: _Name
    uid: _Word
    at: _Word
    runner_up: _Name
    margin: float
    node: _Name
    score: float
    devices: _Devices[_DeviceName]
    reused: _Devices[_DeviceName]
    ring_gbps: float
    best_gbps: float
    source: _Word
    parts: _List[_Part]

    def record(self) -> Bound:
        parts = tuple(ScorePart(part.name, part.value, part.sentence) for part in self.parts)
        devices, reused = tuple(self.devices), tuple(self.reused)
        chosen = ScoredNode(self.node, self.score, devices, self.ring_gbps, self.best_gbps, self.source, parts, reused)
        pod, decision = ObjectKey(self.namespace, self.name), Decision(self.at, chosen, self.runner_up, self.margin)
        return Bound(pod, self.uid, decision)


class _Result(_Strict):
    request: _Name
    driver: _Name
    pool: _Name
    device: _Name
    admin_access: bool = False
    share_id: _Word = ""
    consumed: Annotated[Mapping[str, Quantity], PlainValidator(_capacities)] | None = None

    def result(self) -> Result:
        device = DeviceId(self.driver, self.pool, self.device)
        return Result(self.request, device, self.admin_access, share_id=self.share_id, consumed=self.consumed)


class _Reserved(_Strict):
    kind: Literal["reserved"]
    claim_uid: _Word
    pod_uid: _Word
    node: _Name
    results: _Devices[_Result]
    state: Literal["held", "binding"]
    seconds: Annotated[float, Field(ge=0, le=_MAX_HOLD)] | None

    def record(self) -> Reserved:
        seconds = math.inf if self.seconds is None else self.seconds
        results = tuple(result.result() for result in self.results)
        return Reserved(self.claim_uid, self.pod_uid, self.node, results, ReservationState(self.state), seconds)


class _Released(_Strict):
    kind: Literal["released"]
    claim_uid: _Word

    def record(self) -> Released:
        return Released(self.claim_uid)


class _Policy(_Strict):
    generation: _Count
    digest: _Word
    problem: _Sentence


class _Share(_Strict):
    cpu: _Count
    memory: _Count
    gpus: _Count
    milli: _Count
    models: _List[_Name]
    share: Annotated[float, Field(ge=0, le=1)]

    def pair(self) -> tuple[RequestShape, float]:
        return RequestShape(self.cpu, self.memory, self.gpus, self.milli, frozenset(self.models)), self.share


_AnyRecord = Annotated[_Attempted | _Bound | _Reserved | _Released, Field(discriminator="kind")]


class _Batch(_Strict):
    version: int
    replica: Annotated[str, Field(min_length=1, max_length=_MAX_NAME)]
    epoch: Annotated[str, Field(min_length=1, max_length=USER_BYTES)]
    sequence: Annotated[int, Field(ge=1, le=_MAX_INT)]
    lost: _Count
    policy: _Policy
    mix: _List[_Share]
    records: Annotated[list[_AnyRecord], Field(max_length=MAX_RECORDS), FailFast()]

    def batch(self) -> Batch:
        policy = PolicyState(self.policy.generation, self.policy.digest, self.policy.problem)
        mix: RequestMix = tuple(share.pair() for share in self.mix)
        records = tuple(record.record() for record in self.records)
        return Batch(self.replica, self.epoch, self.sequence, self.lost, policy, mix, records)
