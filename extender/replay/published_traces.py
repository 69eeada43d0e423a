"""Traces that others published, as jobs of a replay. The columns of a file say which trace it is.

* openb: Alibaba's cluster-trace-gpu-v2023 (FGD, USENIX ATC 2023), the pod lists.
* dlrm: Alibaba's cluster-trace-gpu-v2025 (Prism, NSDI 2025), instances of recommendation models with GPUs and RDMA.

Pods that run when the trace begins arrive at 0 s; those that run when it ends have no end.
"""

from __future__ import annotations

import math
import re

from extender.replay.job_files import Row, Trace
from extender.replay.jobs import Job

_MIB, _GIB = 1 << 20, 1 << 30
_MOST = 1e12


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
