"""Case files of the allocator. A case has the objects of a cluster, claims for one node, and the recorded answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from extender.files import must_exist, name_of, read_file
from extender.model import Claim, DeviceClass, DeviceId, Node, Result, Slice, WireError
from extender.wire import (
    Json,
    SliceDecoder,
    decode_claim,
    decode_class,
    decode_node,
    get,
    json_value,
    many,
    need,
    quantities,
    strings,
)


@dataclass(frozen=True, slots=True)
class Case:
    """One decoded case. `shares` maps a device to its consumed capacity in nanos, by name."""

    name: str
    features: tuple[str, ...]
    node: Node
    slices: list[Slice]
    classes: dict[str, DeviceClass]
    claims: list[Claim]
    taken: list[DeviceId]
    shares: dict[DeviceId, dict[str, int]]
    expect: Json


@dataclass(frozen=True, slots=True)
class CaseError:
    """A case that cannot be read. `is_json` is False if its text is not a JSON object."""

    name: str
    message: str
    is_json: bool = True


def load_cases(folder: Path) -> Iterator[Case | CaseError]:
    """Yield the cases of a folder or of one file, in name order: one per .json file, one per line of a .jsonl file.

    Raises WireError for a path or a file without cases. A case that cannot be read is a CaseError.
    """
    must_exist(folder)
    paths = [folder] if folder.is_file() else sorted((*folder.glob("*.json"), *folder.glob("*.jsonl")))
    if not paths:
        raise WireError(name_of(folder), "holds no .json or .jsonl files")
    for path in paths:
        content = read_file(path)
        if not content.strip():
            raise WireError(name_of(path), "holds no case: it is empty")
        lines = content.splitlines() if path.suffix == ".jsonl" else [content]
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _read(line, f"{path.name}:{number}")


def _read(line: bytes, where: str) -> Case | CaseError:
    try:
        obj = json_value(line, where)
        if type(obj) is not dict:
            raise WireError("", "a case must be an object")
    except WireError as error:
        return CaseError(where, str(error), is_json=False)
    try:
        return decode_case(obj)
    except WireError as error:
        return CaseError(str(obj.get("name") or where), str(error))


def decode_case(obj: Json) -> Case:
    """Decode a case from its JSON object. Raises WireError."""
    decoder = SliceDecoder()
    slices = many(obj, "resourceSlices", "", lambda item, _: decoder.decode(item))
    classes = many(obj, "deviceClasses", "", lambda item, _: decode_class(item))
    shares: dict[DeviceId, dict[str, int]] = {d: {} for d in many(obj, "allocatedShares", "", _device)}
    for device, amounts in many(obj, "consumedCapacity", "", _consumed):
        known = shares.setdefault(device, {})
        for name, nanos in amounts.items():
            known[name] = known.get(name, 0) + nanos
    return Case(
        str(obj.get("name", "")),
        strings(obj, "features", ""),
        decode_node(get(obj, "node", dict, "", {})),
        list(slices),
        {c.name: c for c in classes},
        list(many(obj, "claims", "", lambda item, _: decode_claim(item))),
        list(many(obj, "allocatedDevices", "", _device)),
        shares,
        get(obj, "expect", dict, "", {}),
    )


def _device(obj: Json, path: str) -> DeviceId:
    return DeviceId(need(obj, "driver", path), need(obj, "pool", path), need(obj, "device", path))


def _consumed(obj: Json, path: str) -> tuple[DeviceId, dict[str, int]]:
    result = Result("", _device(obj, path), consumed=quantities(obj, "consumed", path))
    return result.device, result.amounts
