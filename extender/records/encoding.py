"""Encodes batches as JSON, with texts cut to the limits.

A batch is `{"version": 2, "replica", "epoch", "sequence", "number", "lost", "policy", "mix", "records": [{"kind": …},
…]}`. Quantities are strings, and infinity is null.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import orjson

from extender.model import USER_BYTES, ObjectKey, RequestMix, RequestShape, Result, cut
from extender.records.limits import (
    MAX_DEVICE,
    MAX_HOLD,
    MAX_INT,
    MAX_LIST,
    MAX_MIX,
    MAX_NAME,
    MAX_RESULTS,
    MAX_SENTENCE,
    VERSION,
)
from extender.records.schema import Attempted, Batch, Bound, Record, Released, Reserved, shortened
from extender.wire import Json


def encode(batch: Batch) -> bytes:
    """The batch as JSON. Raises TypeError for a record with a number above 64 bits or a string that is not Unicode."""
    return encode_parts(batch, [encode_record(record) for record in batch.records])


def encode_record(record: Record) -> bytes:
    """One record as JSON. Raises TypeError as `encode` does."""
    return orjson.dumps(_ENCODERS[type(record)](record))


def encode_parts(batch: Batch, records: Iterable[bytes]) -> bytes:
    """Like `encode`, with records that the caller encoded. `decode` rejects no replica, policy or mix."""
    return orjson.dumps(
        {
            "version": VERSION,
            "replica": _unicode(batch.replica, MAX_NAME) or "?",
            "epoch": batch.epoch,
            "sequence": batch.sequence,
            "number": batch.number,
            "lost": batch.lost,
            "policy": {
                "generation": _count(batch.policy.generation),
                "digest": _unicode(batch.policy.digest),
                "problem": _unicode(batch.policy.problem, MAX_SENTENCE),
            },
            "mix": orjson.Fragment(_mix(batch.mix)),
            "records": [orjson.Fragment(record) for record in records],
        }
    )


def _mix(mix: RequestMix) -> bytes:
    """The mix as JSON of at most MAX_MIX bytes; if it is larger, it omits the last shapes."""
    shapes = [_share(*pair) for pair in mix[:MAX_LIST]]
    while len(found := orjson.dumps(shapes)) > MAX_MIX:
        shapes = shapes[: len(shapes) // 2]
    return found


def _share(shape: RequestShape, share: float) -> Json:
    cpu, memory, gpus, milli = map(_count, shape[:4])
    models = sorted(_unicode(name, MAX_NAME) for name in shape.models)[:MAX_LIST]
    bounded = min(max(0.0, share), 1.0)  # in this order, NaN becomes 0
    return {"cpu": cpu, "memory": memory, "gpus": gpus, "milli": milli, "models": models, "share": bounded}


def _count(number: int) -> int:
    return min(max(number, 0), MAX_INT)


def _unicode(text: str, most: int = USER_BYTES) -> str:
    """The text in at most `most` bytes. A '?' replaces each lone surrogate, which has no JSON."""
    return _cut(text.encode(errors="replace").decode(), most)


def _cut(text: str, most: int = USER_BYTES) -> str:
    return text if len(text) <= most and text.isascii() else cut(text, most)


def _attempted(record: Attempted) -> Json:
    attempt = record.attempt
    return {
        "kind": "attempted",
        **_pod(record.pod, record.uid),
        "at": _cut(attempt.at),
        "fitting": attempt.fitting,
        "asked": attempt.asked,
        "reasons": [{"text": _cut(text, MAX_SENTENCE), "nodes": nodes} for text, nodes in attempt.reasons[:MAX_LIST]],
    }


def _bound(record: Bound) -> Json:
    decision = shortened(record.decision)
    chosen = decision.chosen
    return {
        "kind": "bound",
        **_pod(record.pod, record.uid),
        "at": _cut(decision.at),
        "runner_up": _cut(decision.runner_up, MAX_NAME),
        "margin": decision.margin,
        "node": _cut(chosen.node, MAX_NAME),
        "score": chosen.score,
        "devices": [_cut(device, MAX_DEVICE) for device in chosen.devices],
        "reused": [_cut(device, MAX_DEVICE) for device in chosen.reused],
        "ring_gbps": chosen.ring_gbps,
        "best_gbps": chosen.best_gbps,
        "source": _cut(chosen.source),
        "parts": [
            {"name": _cut(part.name), "value": part.value, "sentence": _cut(part.sentence, MAX_SENTENCE)}
            for part in chosen.parts[:MAX_LIST]
        ],
    }


def _reserved(record: Reserved) -> Json:
    return {
        "kind": "reserved",
        "claim_uid": _cut(record.claim_uid),
        "pod_uid": _cut(record.pod_uid),
        "node": _cut(record.node, MAX_NAME),
        "results": [_result(result) for result in record.results[:MAX_RESULTS]],
        "state": record.state.value,
        "seconds": None if math.isinf(record.seconds) else min(max(record.seconds, 0.0), MAX_HOLD),
    }


def _released(record: Released) -> Json:
    return {"kind": "released", "claim_uid": _cut(record.claim_uid)}


def _pod(pod: ObjectKey, uid: str) -> Json:
    return {"namespace": _cut(pod.namespace, MAX_NAME), "name": _cut(pod.name, MAX_NAME), "uid": _cut(uid)}


def _result(result: Result) -> Json:
    found: Json = {
        "request": _cut(result.request, MAX_NAME),
        "driver": _cut(result.device.driver, MAX_NAME),
        "pool": _cut(result.device.pool, MAX_NAME),
        "device": _cut(result.device.device, MAX_NAME),
    }
    if result.admin_access:
        found["admin_access"] = True
    if result.share_id:
        found["share_id"] = _cut(result.share_id)
    if result.consumed is not None:
        found["consumed"] = {_cut(name, MAX_NAME): str(n) for name, n in [*result.consumed.items()][:MAX_LIST]}
    return found


_ENCODERS: dict[type[Record], Callable[[Any], Json]] = {
    Attempted: _attempted,
    Bound: _bound,
    Reserved: _reserved,
    Released: _released,
}
