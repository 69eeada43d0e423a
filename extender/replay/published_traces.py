"""Traces that others published, as jobs of a replay. TRACES is a table of their columns: a file's header tells which.

* PAI: Alibaba's cluster-trace-gpu-v2020 (NSDI 2022), the table of tasks, with its header file before it; and the jobs
  of its simulator, whose amounts are GPUs and cores.
* openb: Alibaba's cluster-trace-gpu-v2023 (FGD, USENIX ATC 2023), the lists of pods.
* DLRM: Alibaba's cluster-trace-gpu-v2025 (Prism, NSDI 2025), instances of recommendation models with GPUs and RDMA.
* spot: Alibaba's cluster-trace-v2026-spot-gpu (GFS, ASPLOS 2026), the jobs.
* Philly (ATC 2019, Microsoft): the list of jobs, which is JSON and so has a function in place of columns.
* Helios (SC 2021, SenseTime) and Acme (NSDI 2024, Shanghai AI Lab): the jobs of Slurm and of Kubernetes.

The lists of nodes of three of them are fleets. They name the products of the GPUs, but not what joins them: the
usual board of the product counts, if there is one. `table_of` reads CSV: the header shows what separates values.
"""

from __future__ import annotations

import contextlib
import csv
import datetime
import io
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from extender.api.quantity import NANO, parse_quantity
from extender.base.berth_errors import WireError
from extender.base.text_limits import shown
from extender.files import name_of, read_file
from extender.replay.jobs import MAX_GPUS, MAX_PODS, MAX_SECONDS, PRODUCT_WORDS, Job, job_name
from extender.sandbox import MachineNode, unlinked_machine

_MAX_VALUE = 1e18
_MORE_GPUS = "jobs with more GPUs than in the trace, since all pods of a job get the same"
LEFT_OUT = "rows left out because they have no time, or ask for nothing"
_MISSING = {"", "nan", "none", "null", "na", "n/a", r"\n"}
_NO_LIMIT = {*_MISSING, "-1"}
_SLURM = re.compile(r"(?:(\d{1,6})-)?(\d{1,6}):([0-5]\d):([0-5]\d(?:\.\d{1,9})?)")  # sacct's Elapsed


class Column(NamedTuple):
    """A column, and how many units of its field one of it is: seconds, GPUs, cores, bytes."""

    name: str
    unit: float = 1.0


@dataclass(frozen=True)
class Trace:
    """A form of traces: the columns by field. The fields are those of Job, and these.

    `end` is a time like `arrival`; `share` is the part of a GPU that a pod with one GPU has; `all_gpus` and `all_cpu`
    are those of all pods of the job.
    """

    name: str
    columns: Mapping[str, Column]
    only: tuple[str, str] | None = None  # the rows with this value in this column are jobs
    is_cut: bool = False  # a row without an arrival ran when the trace began, one without an end when it ended
    may_lack: Collection[str] = ("end", "product", "ram")  # fields whose columns some files of this form do not have
    dropped: Collection[str] = ()  # columns that limit where a pod may be, which a replay does not do

    def lacking(self, header: Collection[str]) -> list[str]:
        """The columns that a file of this form has, and this header has not."""
        needed = [one.name for field, one in self.columns.items() if field not in self.may_lack]
        return [name for name in needed if name not in header]


def _columns(text: str) -> dict[str, Column]:
    """The columns by field in the form of --columns: FIELD=COLUMN[*FACTOR],… Raises WireError."""
    found = dict[str, Column]()
    for part in text.split(","):
        field, equals, source = part.strip().partition("=")
        name, times, factor = source.partition("*")
        if not equals or not name or (times and not re.fullmatch(r"\d{1,12}(\.\d{1,12})?", factor)):
            raise WireError("--columns", f"must be FIELD=COLUMN or FIELD=COLUMN*FACTOR, with commas, is {shown(part)}")
        if field not in _GIVEN:
            raise WireError("--columns", f"{shown(field)} is no field; the fields are {', '.join(_GIVEN)}")
        found[field] = Column(name, float(factor or 1))
    return found


def columns_of(text: str) -> Trace:
    """The form that --columns names. Raises WireError."""
    found = _columns(text)
    if "arrival" not in found:
        raise WireError("--columns", "names no column for arrival")
    return Trace("--columns", found, is_cut=True, may_lack=())


_GIVEN = (
    "name", "arrival", "duration", "end", "pods", "gpus", "all_gpus", "share", "nics", "memory", "product", "cpu",
    "all_cpu", "ram",
)  # fmt: skip
TRACES = (
    Trace(
        "PAI",
        _columns(
            "name=job_name, arrival=start_time, end=end_time, pods=inst_num, gpus=plan_gpu*0.01, cpu=plan_cpu*0.01, "
            f"ram=plan_mem*{1 << 30}, product=gpu_type"
        ),
    ),
    Trace(
        "PAI simulator",
        _columns(
            "name=job_id, arrival=submit_time, duration=duration, pods=num_inst, gpus=num_gpu, cpu=num_cpu, "
            "product=gpu_type"
        ),
    ),
    Trace(
        "openb",
        _columns(
            "name=name, arrival=creation_time, end=deletion_time, gpus=num_gpu, share=gpu_milli*0.001, "
            f"cpu=cpu_milli*0.001, ram=memory_mib*{1 << 20}, product=gpu_spec"
        ),
        is_cut=True,
    ),
    Trace(
        "DLRM",
        _columns(
            "name=instance_sn, arrival=creation_time, end=deletion_time, gpus=gpu_request, nics=rdma_request*0.01, "
            f"cpu=cpu_request, ram=memory_request*{1 << 30}"
        ),
        only=("role", "HN"),  # the others, CN, need no device of a GPU node
        is_cut=True,
        dropped=("max_instance_per_node",),
    ),
    Trace(
        "spot",
        _columns(
            "name=job_name, arrival=submit_time, duration=duration, pods=worker_num, gpus=gpu_request, "
            "cpu=cpu_request, product=gpu_model"
        ),
    ),
    Trace(
        "Helios, Acme",
        _columns(
            "name=job_id, arrival=submit_time, duration=duration, pods=node_num, all_gpus=gpu_num, all_cpu=cpu_num, "
            f"ram=mem_per_pod_GB*{1 << 30}"
        ),
    ),
)
_NODES = (
    _columns(f"name=machine, cpu=cap_cpu, ram=cap_mem*{1 << 30}, gpus=cap_gpu, product=gpu_type"),
    _columns(f"name=sn, cpu=cpu_milli*0.001, ram=memory_mib*{1 << 20}, gpus=gpu, product=model"),
    _columns("name=node_name, cpu=cpu_num, gpus=gpu_capacity_num, product=gpu_model"),
)
_GPU_BYTES = 16 << 30  # of each GPU: the lists do not say it
_MAX_NODE_BYTES = 16 << 20
_MAX_NODE_GPUS = 16


def job_of(trace: Trace, row: Mapping[str, str], number: int, notes: Counter[str]) -> Job | None:
    """The job of a row in line `number`; None if it is none. `notes` counts what is not as in the trace.

    Raises ValueError that names the column and the value.
    """
    if trace.only is not None and row[trace.only[0]] != trace.only[1]:
        notes[f"rows left out because {trace.only[0]} is not {trace.only[1]}"] += 1
        return None
    cells = _Cells(row, trace.columns)
    arrival, duration = _times(cells, is_cut=trace.is_cut)
    pods = max(cells.whole("pods", MAX_PODS), 1) if cells.has("pods") else 1
    gpus, nics, cpu = cells.amount("gpus"), cells.amount("nics"), cells.amount("cpu")
    if "all_gpus" in trace.columns:
        gpus = cells.amount("all_gpus") / pods
    if "all_cpu" in trace.columns:
        cpu = cells.amount("all_cpu") / pods
    if gpus and cells.has("share"):
        share = cells.share
        gpus = share if gpus == 1 else gpus
    if gpus > 1 and gpus != int(gpus):
        notes[_MORE_GPUS] += 1
    gpus = gpus if gpus < 1 else math.ceil(gpus)
    if gpus > MAX_GPUS:
        name = trace.columns["gpus" if "gpus" in trace.columns else "all_gpus"].name
        raise ValueError(f"{name} {shown(row[name])} is more than {MAX_GPUS} GPUs for a pod")
    job = Job(
        plain_name(cells.text("name")) or job_name(number),
        arrival,
        duration,
        pods=pods,
        gpus=gpus,
        nics=nics if nics < 1 else math.ceil(nics),
        memory=round(cells.amount("memory")),
        product=cells.product if gpus else "",
        cpu=round(cpu * 1000),
        ram=round(cells.amount("ram")),
    )
    if arrival >= 0 and (gpus or job.nics or job.cpu or job.ram):
        for column in trace.dropped:
            if row.get(column, "").lower() not in _NO_LIMIT:
                notes[f"jobs with a {column}, which the replay does not keep"] += 1
        return job
    notes[LEFT_OUT] += 1
    return None


def _times(cells: _Cells, *, is_cut: bool) -> tuple[float, float]:
    """(arrival, duration) in seconds; an arrival below 0 if the job never ran."""
    arrival = cells.time("arrival") if cells.has("arrival") else 0.0 if is_cut else -1.0
    if cells.has("duration"):
        duration = cells.duration
    elif cells.has("end"):
        end = cells.time("end")
        if end < arrival:
            texts = [f"{cells.column(field)} {shown(cells.text(field))}" for field in ("end", "arrival")]
            raise ValueError(" is before ".join(texts))
        duration = end - arrival
    else:
        return (arrival if is_cut else -1.0), math.inf
    return arrival, max(duration, 1.0)  # a pod that ended within the second of its creation


def philly_job(given: Any, number: int, notes: Counter[str]) -> Job | None:
    """A job of Philly (ATC 2019, Microsoft), of its JSON list of jobs; None if it never ran. Raises ValueError.

    It runs for the time of all its attempts, on as many servers as in the last one, with the most GPUs of one. A
    missing date may be the text None. `notes` counts the jobs that are left out, or get more GPUs.
    """
    try:
        attempts = [one for one in given["attempts"] if _has_date(one["start_time"]) and one["detail"]]
        if not attempts or not _has_date(given["submitted_time"]):
            notes[LEFT_OUT] += 1
            return None
        servers = attempts[-1]["detail"]
        spans = [_date(one["end_time"]) - _date(one["start_time"]) for one in attempts if _has_date(one["end_time"])]
        ends, gpus = _has_date(attempts[-1]["end_time"]), max(len(one["gpus"]) for one in servers)
        name, arrival = plain_name(given["jobid"]) or job_name(number), _date(given["submitted_time"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("has no jobid, submitted_time, and attempts with start_time, end_time and detail") from error
    if not 0 < gpus <= MAX_GPUS or len(servers) > MAX_PODS:
        raise ValueError(f"has {gpus} GPUs on each of {len(servers)} servers")
    if any(len(one["gpus"]) < gpus for one in servers):
        notes[_MORE_GPUS] += 1
    return Job(name, arrival, max(sum(spans), 1.0) if ends else math.inf, pods=len(servers), gpus=gpus)


def _has_date(value: object) -> bool:
    return value is not None and str(value).lower() not in _MISSING


def _date(text: str) -> float:
    """Seconds of a date and time without a zone. Raises ValueError."""
    return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC).timestamp()


class _Cells:
    """The values of a row by field. All raise ValueError that names the column and the value."""

    def __init__(self, row: Mapping[str, str], columns: Mapping[str, Column]) -> None:
        self._row = row
        self._columns = columns

    def column(self, field: str) -> str:
        return self._columns[field].name

    def text(self, field: str) -> str:
        """The text of a field; '' if the row has none."""
        value = self._row.get(self._columns[field].name, "") if field in self._columns else ""
        return "" if value.lower() in _MISSING else value

    @property
    def product(self) -> str:
        found = self.text("product")
        if found and not PRODUCT_WORDS.fullmatch(found):
            raise ValueError(f"{self.column('product')} must be words separated by |, is {shown(found)}")
        return found

    @property
    def share(self) -> float:
        """The part of a GPU that a pod with GPUs has of each."""
        found, unit = self.number("share"), self._columns["share"].unit
        if not 0 < found <= 1:
            text = shown(self.text("share"))
            raise ValueError(f"{self.column('share')} must be above 0 and at most {1 / unit:g}, is {text}")
        return found

    @property
    def duration(self) -> float:
        """Seconds, also of a time as Slurm writes it, whatever the unit of the column."""
        text = self.text("duration")
        if found := _SLURM.fullmatch(text):
            days, hours, minutes, seconds = (float(one or 0) for one in found.groups())
            return days * 86400 + hours * 3600 + minutes * 60 + seconds
        try:
            return self.number("duration", MAX_SECONDS)
        except ValueError:
            wanted = "a number of at least 0, or HH:MM:SS, or D-HH:MM:SS"
            raise ValueError(f"{self.column('duration')} must be {wanted}, is {shown(text)}") from None

    def has(self, field: str) -> bool:
        return bool(self.text(field))

    def amount(self, field: str) -> float:
        """A number or a quantity, 0 if the row has none."""
        return self.number(field) if self.has(field) else 0.0

    def number(self, field: str, most: float = _MAX_VALUE) -> float:
        name, unit = self._columns[field]
        try:
            found = parse_quantity(self._row[name]).nanos / NANO * unit
        except (ValueError, OverflowError):
            found = -1.0
        if not 0 <= found <= most:
            what = "a number of at least 0," if most == _MAX_VALUE else f"a time, or seconds up to {most / unit:g},"
            raise ValueError(f"{name} must be {what} is {shown(self._row[name])}")
        return found

    def whole(self, field: str, most: int) -> int:
        found = self.number(field)
        if found != int(found) or found > most:
            raise ValueError(f"{self.column(field)} must be a whole number up to {most}, is {shown(self.text(field))}")
        return int(found)

    def time(self, field: str) -> float:
        """Seconds, also of a date and time. One without a zone is UTC."""
        try:
            return self.number(field, MAX_SECONDS)
        except ValueError:
            with contextlib.suppress(ValueError):
                found = datetime.datetime.fromisoformat(self.text(field))
                return (found if found.tzinfo else found.replace(tzinfo=datetime.UTC)).timestamp()
            raise


def read_nodes(path: Path) -> list[MachineNode]:
    """The nodes of a published list. Raises WireError that names the line."""
    where = name_of(path)
    header, rows = table_of(read_file(path, _MAX_NODE_BYTES).decode("utf-8-sig", "replace"), where)
    columns = next((one for one in _NODES if {column.name for column in one.values()} <= set(header)), None)
    if columns is None:
        known = " or ".join(",".join(column.name for column in one.values()) for one in _NODES)
        raise WireError(f"{where}: line 1", f"a list of nodes must have the columns {known}")
    return list(_nodes(rows, columns, where))


def _nodes(rows: Iterator[Row], columns: Mapping[str, Column], where: str) -> Iterator[MachineNode]:
    lines = dict[str, int]()  # of the nodes before, by name
    for line, row, problem in rows:
        if problem:
            raise WireError(f"{where}: line {line}", problem)
        cells = _Cells(row, columns)
        try:
            gpus = cells.whole("gpus", _MAX_NODE_GPUS)
            cpu, ram = round(cells.amount("cpu") * 1000), round(cells.amount("ram"))
        except ValueError as error:
            raise WireError(f"{where}: line {line}", str(error)) from error
        offered = {"cpu": f"{cpu}m", **({"memory": str(ram)} if "ram" in columns else {})}
        name = plain_name(cells.text("name")) or f"node-{line}"
        if name in lines:
            raise WireError(f"{where}: line {line}", f"has the name {shown(name)}, as line {lines[name]} has")
        lines[name] = line
        yield MachineNode(name, unlinked_machine(cells.text("product"), gpus, _GPU_BYTES), {}, offered)


def plain_name(text: str) -> str:
    """A name for an object of Kubernetes; '' if no character can stay."""
    return re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")[:180]


_SEPARATORS = ",;\t|"  # Excel writes the second and the third one, sacct --parsable2 the last one


class Row(NamedTuple):
    """A row: its line in the file, and the stripped values by column; or why it has none."""

    line: int
    values: Mapping[str, str]
    problem: str = ""


def table_of(text: str, where: str) -> tuple[list[str], Iterator[Row]]:
    """The columns of a CSV text and its rows, without empty lines. Reading raises WireError that names the line."""
    first = text.lstrip("\r\n").partition("\n")[0]
    separator = max(_SEPARATORS, key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    lines = _lines(reader, where)
    _, header = next(lines, (1, []))
    columns = [name.strip() for name in header]
    return columns, _rows(lines, columns)


def _lines(reader: Iterator[list[str]], where: str) -> Iterator[tuple[int, list[str]]]:
    try:
        for values in reader:
            if values:
                yield getattr(reader, "line_num", 0), values
    except csv.Error as error:
        number = getattr(reader, "line_num", 0)
        raise WireError(f"{where}: line {number}", f"is not CSV: {error}") from error


def _rows(lines: Iterator[tuple[int, list[str]]], columns: Sequence[str]) -> Iterator[Row]:
    for number, values in lines:
        if len(values) != len(columns):
            yield Row(number, {}, f"has {len(values)} values for {len(columns)} columns")
            continue
        yield Row(number, {name: value.strip() for name, value in zip(columns, values, strict=True)})
