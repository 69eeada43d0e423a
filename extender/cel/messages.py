"""Message literals: `google.protobuf.Timestamp{seconds: 1}`.

Every CEL environment has the well-known messages (cel-go, common/types/pb). A literal of one becomes the CEL value
that it stands for at once. A literal of one of Kubernetes' own types is a run-time error, as in the reference.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from extender.cel import types as t
from extender.cel.errors import EvalError
from extender.cel.library.time import format_duration, format_timestamp
from extender.cel.values import Duration, Empty, Timestamp, UInt, type_name

_MAX_EXACT = 2**53  # integers beyond this are strings in protobuf's JSON form
_JSON = t.map_of(t.STRING, t.DYN)


@dataclass(frozen=True, slots=True)
class Message:
    """A well-known message: the type of its literal, the types of its fields, and the function that makes the value."""

    type: t.Type
    fields: Mapping[str, t.Type]
    make: Callable[[dict[str, Any]], Any]


def make_message(name: str, fields: dict[str, Any]) -> Any:
    """The value of name{fields}. Raises EvalError."""
    message = MESSAGES.get(name)
    if message is None:
        raise EvalError(f"unknown type '{name}'")
    return message.make(fields)


def _integer(kind: type, low: int, high: int) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        number = _exactly(kind)(value)
        if not low <= number < high:
            raise EvalError("integer overflow")
        return number

    return check


def _float(value: Any) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", _exactly(float)(value)))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _exactly(kind: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise EvalError(f"unsupported conversion from '{type_name(value)}'")
        return value

    return check


def _wrapper(type_: t.Type, zero: Any, convert: Callable[[Any], Any]) -> Message:
    return Message(t.wrapper_of(type_), {"value": type_}, lambda fields: convert(fields.get("value", zero)))


def _seconds_and_nanos(kind: Callable[[int], Any]) -> Callable[[dict[str, Any]], Any]:
    return lambda fields: kind(_INT64(fields.get("seconds", 0)) * 10**9 + _INT32(fields.get("nanos", 0)))


def _json(value: Any) -> Any:
    """A value as google.protobuf.Value holds it."""
    if value is None or isinstance(value, bool | str | float):
        return value
    if isinstance(value, int):
        return float(value) if -_MAX_EXACT < value < _MAX_EXACT else str(int(value))
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Duration):
        return format_duration(value)
    if isinstance(value, Timestamp):
        return format_timestamp(value)
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]
    if isinstance(value, dict):
        return {_exactly(str)(key): _json(item) for key, item in value.items()}
    raise EvalError(f"unsupported conversion from '{type_name(value)}'")


def _value(fields: dict[str, Any]) -> Any:
    if len(fields) > 1:
        raise EvalError("google.protobuf.Value holds one kind of value")
    name, value = next(iter(fields.items()), ("null_value", None))
    return None if name == "null_value" else _json(value)


def _any(_: dict[str, Any]) -> Any:
    raise EvalError("conversion error: google.protobuf.Any holds bytes that nothing here can decode")


_INT32, _INT64 = _integer(int, -(2**31), 2**31), _integer(int, -(2**63), 2**63)
_TIMES = {"seconds": t.INT, "nanos": t.INT}
MESSAGES: dict[str, Message] = {
    f"google.protobuf.{name}": message
    for name, message in {
        "BoolValue": _wrapper(t.BOOL, False, _exactly(bool)),
        "BytesValue": _wrapper(t.BYTES, b"", _exactly(bytes)),
        "DoubleValue": _wrapper(t.DOUBLE, 0.0, _exactly(float)),
        "FloatValue": _wrapper(t.DOUBLE, 0.0, _float),
        "Int32Value": _wrapper(t.INT, 0, _INT32),
        "Int64Value": _wrapper(t.INT, 0, _INT64),
        "StringValue": _wrapper(t.STRING, "", _exactly(str)),
        "UInt32Value": _wrapper(t.UINT, UInt(0), _integer(UInt, 0, 2**32)),
        "UInt64Value": _wrapper(t.UINT, UInt(0), _integer(UInt, 0, 2**64)),
        "Duration": Message(t.DURATION, _TIMES, _seconds_and_nanos(Duration)),
        "Timestamp": Message(t.TIMESTAMP, _TIMES, _seconds_and_nanos(Timestamp)),
        "Any": Message(t.ANY, {"type_url": t.STRING, "value": t.BYTES}, _any),
        "Empty": Message(t.Type("struct", "google.protobuf.Empty"), {}, lambda _: Empty()),
        "Struct": Message(_JSON, {"fields": _JSON}, lambda fields: _json(fields.get("fields", {}))),
        "ListValue": Message(
            t.list_of(t.DYN), {"values": t.list_of(t.DYN)}, lambda fields: _json(fields.get("values", []))
        ),
        "Value": Message(
            t.DYN,
            {
                "null_value": t.INT,
                "bool_value": t.BOOL,
                "number_value": t.DOUBLE,
                "string_value": t.STRING,
                "struct_value": _JSON,
                "list_value": t.list_of(t.DYN),
            },
            _value,
        ),
    }.items()
}
