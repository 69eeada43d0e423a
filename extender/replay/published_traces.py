"""Traces that others published, as jobs of a replay. The columns of a file say which trace it is.

* openb: Alibaba's cluster-trace-gpu-v2023 (FGD, USENIX ATC 2023), the pod lists.
* dlrm: Alibaba's cluster-trace-gpu-v2025 (Prism, NSDI 2025), instances of recommendation models with GPUs and RDMA.

The node lists of openb are fleets. They say the products of the GPUs, but not what joins them.

Pods that run when the trace begins arrive at 0 s; those that run when it ends have no end.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from extender.base.berth_errors import WireError
from extender.files import name_of, read_file
from extender.replay.job_files import Row, Trace
from extender.replay.jobs import Job
from extender.sandbox import MachineNode, unlinked_machine

_MIB, _GIB = 1 << 20, 1 << 30
_MOST = 1e12
_MOST_GPUS = 16  # of a node


def _openb(row: Row, number: int) -> Job | None:
    """`gpu_milli` is the share of a GPU, in thousandths, if the pod has one. `gpu_spec` names products."""
    gpus, milli = _number(row, "num_gpu"), _number(row, "gpu_milli")
    share = milli / 1000 if gpus == 1 and milli < 1000 else gpus  # noqa: PLR2004 - thousandths of a GPU
    return Job(
        _name(row["name"], number),
        *_times(row, "creation_time", "deletion_time"),
        gpus=share,
        product=row.get("gpu_spec", ""),
        cpu=round(_number(row, "cpu_milli")),
        ram=round(_number(row, "memory_mib") * _MIB),
    )


def _dlrm(row: Row, number: int) -> Job | None:
    """CN instances need no devices of a GPU node. `rdma_request` is a percentage of a NIC, which is one NIC here."""
    if row["role"] == "CN":
        return None
    return Job(
        _name(row["instance_sn"], number),
        *_times(row, "creation_time", "deletion_time"),
        gpus=_number(row, "gpu_request"),
        nics=int(_number(row, "rdma_request") > 0),
        cpu=round(_number(row, "cpu_request") * 1000),
        ram=round(_number(row, "memory_request") * _GIB),
    )


TRACES = (
    Trace("openb", frozenset({"name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "creation_time"}), _openb),
    Trace("dlrm", frozenset({"instance_sn", "role", "gpu_request", "rdma_request", "creation_time"}), _dlrm),
)


_NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_VRAM = 16 * _GIB  # of each GPU: openb does not say it
_MAX_NODE_BYTES = 16 << 20


def read_nodes(path: Path) -> list[MachineNode]:
    """The nodes of a node list of openb. Raises WireError that names the line."""
    where = name_of(path)
    lines = read_file(path, _MAX_NODE_BYTES).decode("utf-8", "replace").splitlines()
    if not lines or tuple(lines[0].split(",")) != _NODE_COLUMNS:
        raise WireError(f"{where}: line 1", f"must be {','.join(_NODE_COLUMNS)}: a node list of openb")
    return [_node(line, f"{where}: line {number}") for number, line in enumerate(lines[1:], 2) if line]


def _node(line: str, place: str) -> MachineNode:
    values = line.split(",")
    if len(values) != len(_NODE_COLUMNS):
        raise WireError(place, f"has {len(values)} values for {len(_NODE_COLUMNS)} columns")
    row = dict(zip(_NODE_COLUMNS, values, strict=True))
    try:
        cpu, ram, gpus = (int(_number(row, name)) for name in ("cpu_milli", "memory_mib", "gpu"))
    except ValueError as error:
        raise WireError(place, str(error)) from error
    if gpus > _MOST_GPUS:
        raise WireError(place, f"gpu must be at most {_MOST_GPUS}, is {gpus}")
    machine = unlinked_machine(row["model"], gpus, _VRAM)
    return MachineNode(_name(row["sn"], 0), machine, {}, {"cpu": f"{cpu}m", "memory": f"{ram}Mi"})


def _number(row: Row, name: str) -> float:
    """Raises ValueError that names the column and the value."""
    try:
        found = float(row[name])
    except (ValueError, KeyError):
        found = -1.0
    if not 0 <= found < _MOST:
        raise ValueError(f"{name} must be a number of at least 0, is {row.get(name, '')!r}")
    return found


def _times(row: Row, created: str, deleted: str) -> tuple[float, float]:
    """(arrival, duration) in seconds. Raises ValueError."""
    arrival = _number(row, created) if row[created] else 0.0
    if not row.get(deleted):
        return arrival, math.inf
    end = _number(row, deleted)
    if end < arrival:
        raise ValueError(f"{deleted} {end:g} is before {created} {arrival:g}")
    return arrival, max(end - arrival, 1.0)  # a pod that ended within the second of its creation


def _name(text: str, number: int) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")[:180] or f"job-{number}"
