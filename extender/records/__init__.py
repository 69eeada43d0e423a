"""Records that `berth serve` sends to `berth console`, and their JSON. This package has no HTTP, task or clock."""

from extender.records.decoding import UnknownVersion, decode
from extender.records.encoding import encode_parts, encode_record
from extender.records.limits import MAX_BODY, MAX_FRAME
from extender.records.schema import Attempted, Batch, Bound, PolicyState, Record, Released, Reserved, shortened

__all__ = [
    "MAX_BODY",
    "MAX_FRAME",
    "Attempted",
    "Batch",
    "Bound",
    "PolicyState",
    "Record",
    "Released",
    "Reserved",
    "UnknownVersion",
    "decode",
    "encode_parts",
    "encode_record",
    "shortened",
]
