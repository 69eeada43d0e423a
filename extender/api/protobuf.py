"""A claim as protobuf, which keeps the bytes of opaque parameters, where JSON of the API server does not.

A change needs the numbers of the changed fields alone (generated.proto of meta/v1 and resource/v1); all other fields,
also of later versions of the API, stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from extender.api.fields import Json
from extender.base.berth_errors import WireError

PROTOBUF = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\0"  # before a message runtime.Unknown, whose field 2 is the object
_RAW, _METADATA, _STATUS = 2, 1, 3
_UID, _RESOURCE_VERSION, _ANNOTATIONS, _FINALIZERS, _RESERVED_FOR = 5, 6, 12, 14, 2
_CONSUMER_FIELDS = {"apiGroup": 1, "resource": 3, "name": 4, "uid": 5}
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_FIXED_SIZE = {_FIXED_64: 8, _FIXED_32: 4}

Field = tuple[int, int, bytes]  # number, wire type, content: of a varint as encoded, of bytes without the length


def merged_claim(stored: bytes, patch: Json) -> bytes:
    """The claim after a merge patch of metadata.uid, resourceVersion, finalizers, annotations and status.reservedFor.

    Raises WireError if `stored` is not an object as protobuf.
    """
    if not stored.startswith(_MAGIC):
        raise WireError("", "the answer is not protobuf")
    metadata, status = patch.get("metadata") or {}, patch.get("status") or {}
    envelope = list(read_fields(stored[len(_MAGIC) :]))
    claim = list(read_fields(_inner(envelope, _RAW)))
    claim = _with(claim, _METADATA, [_merged_metadata(_inner(claim, _METADATA), metadata)])
    if "reservedFor" in status:
        kept = list(read_fields(_inner(claim, _STATUS)))
        found = [_consumer(entry) for entry in status["reservedFor"] or ()]
        claim = _with(claim, _STATUS, [write_fields(_with(kept, _RESERVED_FOR, found))])
    return _MAGIC + write_fields(_with(envelope, _RAW, [write_fields(claim)]))


def _merged_metadata(stored: bytes, patch: Json) -> bytes:
    fields = list(read_fields(stored))
    for number, name in ((_UID, "uid"), (_RESOURCE_VERSION, "resourceVersion")):
        fields = _with(fields, number, [patch[name].encode()])
    if "finalizers" in patch:
        fields = _with(fields, _FINALIZERS, [name.encode() for name in patch["finalizers"]])
    annotations = {_inner(list(read_fields(e)), 1): e for number, _, e in fields if number == _ANNOTATIONS}
    for name, value in (patch.get("annotations") or {}).items():
        annotations.pop(name.encode(), None)
        if value is not None:
            entry = [(1, _BYTES, name.encode()), (2, _BYTES, value.encode())]
            annotations[name.encode()] = write_fields(entry)
    return write_fields(_with(fields, _ANNOTATIONS, annotations.values()))


def _consumer(entry: Json) -> bytes:
    return write_fields((_CONSUMER_FIELDS[name], _BYTES, value.encode()) for name, value in entry.items())


def _inner(fields: Iterable[Field], number: int) -> bytes:
    return next((content for found, _, content in fields if found == number), b"")


def _with(fields: Iterable[Field], number: int, contents: Iterable[bytes]) -> list[Field]:
    """The fields with these contents in place of those with the number."""
    return [field for field in fields if field[0] != number] + [(number, _BYTES, content) for content in contents]


def read_fields(message: bytes) -> Iterator[Field]:
    """The fields of a message, in order. Raises WireError if it is cut, or has a group."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind, start = tag & 7, at
        if kind == _VARINT:
            _, at = _varint(message, at)
        elif kind == _BYTES:
            size, start = _varint(message, at)
            at = start + size
        elif kind in _FIXED_SIZE:
            at += _FIXED_SIZE[kind]
        else:
            raise WireError("", f"protobuf has no field of type {kind}")
        if at > len(message):
            raise WireError("", "protobuf is cut")
        yield tag >> 3, kind, message[start:at]


def write_fields(fields: Iterable[Field]) -> bytes:
    """The message with these fields."""
    found = bytearray()
    for number, kind, content in fields:
        found += _as_varint(number << 3 | kind)
        if kind == _BYTES:
            found += _as_varint(len(content))
        found += content
    return bytes(found)


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A number, and the position after it."""
    found = shift = 0
    for position in range(at, min(at + 10, len(message))):
        found |= (message[position] & 127) << shift
        if message[position] < 128:  # noqa: PLR2004 - the last byte has no highest bit
            return found, position + 1
        shift += 7
    raise WireError("", "protobuf is cut")


def _as_varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:  # noqa: PLR2004 - seven bits in each byte
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])
