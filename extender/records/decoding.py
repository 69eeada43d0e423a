"""Decodes batches from JSON, and validates every field. encoding.py shows the form of a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
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
    one_line,
    parse_quantity,
    shown,
)
from extender.policy import in_plain_words
from extender.records.limits import (
    MAX_BODY,
    MAX_DEVICE,
    MAX_DEVICES,
    MAX_HOLD,
    MAX_INT,
    MAX_LIST,
    MAX_MIX,
    MAX_NAME,
    MAX_QUANTITY,
    MAX_RECORDS,
    MAX_RESULTS,
    MAX_SENTENCE,
    VERSION,
)
from extender.records.schema import Attempted, Batch, Bound, PolicyState, Released, Reserved
from extender.scheduling import Attempt, Decision, ScoredNode
from extender.scoring import ScorePart


class UnknownVersion(WireError):
    """This process does not support the version of the batch."""

    def __init__(self, version: object) -> None:
        super().__init__("version", f"{_shown(version)} is not known here: this Berth reads version {VERSION}")


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
        batch = _Batch.model_validate(found).batch()
    except ValidationError as error:
        raise _fault(error) from error
    if len(orjson.dumps(found["mix"])) > MAX_MIX:  # the console keeps the mix of each process
        raise WireError("mix", f"is larger than {MAX_MIX} bytes")
    return batch


def _fault(error: ValidationError) -> WireError:
    first = error.errors(include_url=False, include_context=False)[0]
    path = one_line(".".join(map(str, first["loc"])), MAX_NAME)
    value = "" if first["type"] == "missing" else f" (is {_shown(first['input'])})"
    return WireError(path or "batch", one_line(in_plain_words(first["msg"]), MAX_NAME) + value)


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
    if not isinstance(value, dict) or len(value) > MAX_LIST:
        raise ValueError(f"must be an object of at most {MAX_LIST} quantities")
    return {_capacity_name(name): _quantity(amount) for name, amount in value.items()}


def _capacity_name(name: str) -> str:
    if len(name) > MAX_NAME:
        raise ValueError(f"the name {shown(name)} is longer than {MAX_NAME} characters")
    return name


def _quantity(amount: object) -> Quantity:
    if not isinstance(amount, str) or len(amount) > MAX_QUANTITY:
        raise ValueError(f"{_shown(amount)} must be a string of at most {MAX_QUANTITY} characters")
    return parse_quantity(amount)


_T = TypeVar("_T")
_Word = Annotated[str, Field(max_length=USER_BYTES)]
_Name = Annotated[str, Field(max_length=MAX_NAME)]
_DeviceName = Annotated[str, Field(max_length=MAX_DEVICE)]
_Sentence = Annotated[str, Field(max_length=MAX_SENTENCE)]
_Count = Annotated[int, Field(ge=0, le=MAX_INT)]
_List = Annotated[list[_T], Field(max_length=MAX_LIST), FailFast()]
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
    results: Annotated[list[_Result], Field(max_length=MAX_RESULTS), FailFast()]
    state: Literal["held", "binding"]
    seconds: Annotated[float, Field(ge=0, le=MAX_HOLD)] | None

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
    replica: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    epoch: Annotated[str, Field(min_length=1, max_length=USER_BYTES)]
    sequence: Annotated[int, Field(ge=1, le=MAX_INT)]
    number: Annotated[int, Field(ge=1, le=MAX_INT)]
    lost: _Count
    policy: _Policy
    mix: _List[_Share]
    records: Annotated[list[_AnyRecord], Field(max_length=MAX_RECORDS), FailFast()]

    def batch(self) -> Batch:
        policy = PolicyState(self.policy.generation, self.policy.digest, self.policy.problem)
        mix: RequestMix = tuple(share.pair() for share in self.mix)
        records = tuple(record.record() for record in self.records)
        return Batch(self.replica, self.epoch, self.sequence, self.number, self.lost, policy, mix, records)
