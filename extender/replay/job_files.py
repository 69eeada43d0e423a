"""Reads files of jobs: JSON Lines, CSV with the names of the fields of Job, and the traces that others published.

Every fault is one sentence that names the line.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import orjson
from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError

from extender.api.claim_specs import DeviceRequest
from extender.api.fields import Json
from extender.api.group_topology import NEARNESS, asked_topology, group_topology
from extender.api.pods import decode_pod
from extender.api.quantity import NANO, parse_quantity
from extender.api.resource_claims import Claim, decode_claim
from extender.api_schema import faults_of_value, refused_values
from extender.base.berth_errors import WireError
from extender.base.text_limits import one_line, shown
from extender.cel import CompileError
from extender.cel.dra import compile_selector
from extender.files import name_of, read_file
from extender.lint import one_sentence
from extender.policy import Policy
from extender.replay.jobs import JOB_FIELDS, MAX_GPUS, MAX_PODS, MAX_SECONDS, PRODUCT_WORDS, SPEC_FIELDS, Job, job_name
from extender.replay.published_traces import TRACES, Row, Trace, columns_of, job_of, philly_job, table_of

MAX_JOBS = 200_000
MAX_BYTES = 256 << 20
_PHILLY_START = 4096  # characters of a file in which the first job names its attempts
_CSV_FIELDS = tuple(name for name in JOB_FIELDS if name not in ("claim", "spec", "parts"))
_PART_FIELDS = tuple(name for name in JOB_FIELDS if name not in ("name", "arrival", "duration", "parts", *NEARNESS))
_MAX_PARTS = 256
_PRIORITIES = -(2**31), 2_000_001_000  # an int32; that of the class system-node-critical, the highest one
_HOW = (
    f"published traces that are read as they are: {', '.join(one.name for one in TRACES)}, Philly; for any other CSV "
    "file give --columns arrival=COLUMN,duration=COLUMN,gpus=COLUMN"
)
_OBJECTS = "has Kubernetes objects, not jobs: berth assess FILE --jobs JOBS makes jobs of pods"


@dataclass(frozen=True)
class JobFile:
    """The jobs of a file, by arrival, and the line of each, by name. Jobs of Philly have no lines."""

    where: str
    jobs: Sequence[Job]
    lines: Mapping[str, int]

    def named(self, job: str) -> str:
        """The name of a job, with its line if the name does not have it."""
        line = self.lines.get(job)
        return job if line is None or job == job_name(line) else f"{job} (line {line})"

    def check(self, classes: Container[str], policies: Iterable[Policy]) -> None:
        """Raises WireError for a class that a fleet of these `classes` lacks, or a level that a policy lacks."""
        levels = list({policy.group_levels: None for policy in policies})
        for job in self.jobs:
            if problem := _unknown_class(job, classes) or _unknown_level(job, levels):
                raise WireError(f"{self.where}: line {self.lines[job.name]}", problem)


def read_jobs(path: Path, traces: Sequence[Trace], columns: str, notes: Counter[str]) -> JobFile:
    """The jobs of a file, by arrival, the first one at 0 s. `columns` names those of a CSV file, see columns_of.

    `notes` gets what a replay has not as the trace has it, with the number of rows.

    Otherwise the columns of a CSV file tell which of `traces` it is, or whether it is of our own form. Raises WireError
    that names the line.
    """
    where = name_of(path)
    try:
        text = read_file(path, MAX_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise WireError(where, f"is not UTF-8 at byte {error.start}") from None
    if not text.strip():
        raise WireError(where, "is empty")
    reader = _Reader(where, notes)
    if columns:
        jobs = list(reader.of_trace(text, columns_of(columns)))
    elif text.lstrip()[:1] in ("{", "["):
        jobs = list(reader.of_json(text))
    else:
        jobs = list(reader.of_csv(text, traces))
    if not jobs:
        raise WireError(where, "has no jobs")
    first = jobs[0].arrival
    moved = [replace(job, arrival=job.arrival - first) for job in jobs]
    return JobFile(where, moved, {name: one.line for name, one in reader.placed.items()})


class _Placed(NamedTuple):
    line: int
    arrival: float


class _Reader:
    """Reads one file. `placed` gets the jobs with lines, by name."""

    def __init__(self, where: str, notes: Counter[str]) -> None:
        self._where = where
        self._notes = notes
        self.placed = dict[str, _Placed]()

    def of_json(self, text: str) -> Iterator[Job]:
        """The jobs of JSON Lines, or of Philly."""
        if text.startswith("[") and '"attempts"' in text[:_PHILLY_START]:
            yield from self._of_philly(text)
            return
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip():
                continue
            place = f"{self._where}: line {number}"
            try:
                row = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                if line.strip() in ("{", "["):
                    problem = "is part of a longer value: write each job in one line, as jq -c does"
                    raise WireError(place, problem) from None
                raise WireError(place, f"is not JSON: {error.msg} at character {error.pos + 1}") from error
            if not isinstance(row, dict):
                raise WireError(place, "must be a JSON object")
            if "kind" in row:
                raise WireError(place, _OBJECTS)
            yield self._checked(_job(row, number, place, JOB_FIELDS), number, place)

    def of_csv(self, text: str, traces: Sequence[Trace]) -> Iterator[Job]:
        """The jobs of a CSV file of one of the traces, or of our own form."""
        header, rows = table_of(text, self._where)
        trace = next((one for one in traces if not one.lacking(header)), None)
        if trace is not None:
            yield from self.of_trace(text, trace)
            return
        _check_columns(header, f"{self._where}: line 1", traces)
        for number, row, problem in rows:
            place = f"{self._where}: line {number}"
            if problem:
                raise WireError(place, problem)
            given = {name: value for name, value in row.items() if value}
            yield self._checked(_job(given, number, place, _CSV_FIELDS), number, place)

    def of_trace(self, text: str, trace: Trace) -> Iterator[Job]:
        """The jobs of a CSV file of this form."""
        header, rows = table_of(text, self._where)
        for name in trace.lacking(header):
            problem = f"has no column {shown(name)}, which --columns names: it has {one_line(', '.join(header), 256)}"
            raise WireError(f"{self._where}: line 1", problem)

        def job(row: Row, number: int, notes: Counter[str]) -> Job | None:
            if row.problem:
                raise ValueError(row.problem)
            return job_of(trace, row.values, number, notes)

        return self._converted(((row.line, row) for row in rows), job, "line")

    def _of_philly(self, text: str) -> Iterator[Job]:
        try:
            values = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise WireError(f"{self._where}: line {error.lineno}", f"is not JSON: {error.msg}") from error
        yield from self._converted(enumerate(values, 1), philly_job, "job")
        self.placed.clear()  # its jobs have no lines

    def _converted(
        self, rows: Iterable[tuple[int, Any]], convert: Callable[[Any, int, Counter[str]], Job | None], unit: str
    ) -> Iterator[Job]:
        """The jobs of rows in any order. `unit` and the number of a row are its place in the file.

        Traces of clusters have rows that are cut or wrong: these are left out, unless no other row is a job.
        """
        jobs, wrong, without = dict[str, Job](), list[tuple[str, str]](), list[str]()
        for number, row in rows:
            _check_number(number, f"{self._where}: {unit} {number}")
            try:
                job = convert(row, number, self._notes)
            except ValueError as error:
                wrong.append((f"{unit} {number}", str(error)))
                continue
            if job is not None:
                if not job.all_gpus:
                    without.append(f"{unit} {number}")
                name = job.name
                while name in jobs:  # such a name may be another job's, too
                    name = f"{name}-{number}"
                jobs[name] = replace(job, name=name)
                self.placed[name] = _Placed(number, job.arrival)
        if wrong:
            place, why = wrong[0]
            if not jobs:
                raise WireError(f"{self._where}: {place}", why)
            self._notes[f"rows left out that cannot be read, the first is {place}: {why}"] = len(wrong)
        if without:
            self._notes[f"jobs that ask for no GPU, the first is {without[0]}"] = len(without)
        if endless := sum(math.isinf(job.duration) for job in jobs.values()):
            self._notes["jobs that run until the end, since their end is missing"] = endless
        yield from sorted(jobs.values(), key=lambda job: job.arrival)

    def _checked(self, job: Job, line: int, place: str) -> Job:
        """The job, which becomes the last of those before. Raises WireError if it may not follow these."""
        if job.name in self.placed:
            raise WireError(place, f"has the name {shown(job.name)}, as line {self.placed[job.name].line} has")
        if self.placed and job.arrival < (last := self.placed[next(reversed(self.placed))].arrival):
            raise WireError(place, f"arrival {job.arrival:g} is before that of the job above, {last:g}")
        self.placed[job.name] = _Placed(line, job.arrival)
        return job


def _check_columns(header: Sequence[str], place: str, traces: Sequence[Trace]) -> None:
    known = f"the columns are {', '.join(_CSV_FIELDS)}; {_HOW}"
    for trace in traces:
        arrival = trace.columns["arrival"].name
        if trace.lacking(header) == [arrival]:
            raise WireError(place, f"has no column {arrival}, the arrival of a job of {trace.name}")
    for name in header:
        if name not in _CSV_FIELDS:
            raise WireError(place, f"has a column {shown(name)}; {known}")
        if header.count(name) > 1:
            raise WireError(place, f"has two columns {name}")
    if "arrival" not in header:
        raise WireError(place, f"has no column arrival; {known}")


def _check_number(number: int, place: str) -> None:
    if number > MAX_JOBS + 1:
        raise WireError(place, f"a replay takes at most {MAX_JOBS} jobs: cut the file, or take every n-th line")


def job_problem(line: Json, classes: Container[str] | None, levels: Sequence[str]) -> str:
    """Why a replay refuses a file with this line; '' if it does not.

    `classes` are those of the fleet, None if they are not known, and `levels` those of the policy.
    """
    try:
        job = _job(line, 1, "", JOB_FIELDS)
    except WireError as error:
        return error.problem
    return (_unknown_class(job, classes) if classes is not None else "") or _unknown_level(job, [levels])


# -- one job -------------------------------------------------------------------------------------------------------


def _job(row: Mapping[str, Any], number: int, place: str, known: Sequence[str]) -> Job:
    """The job of a line. Raises WireError that names the line and the field."""
    _check_number(number, place)
    if "arrival" not in row:
        raise WireError(place, "has no arrival")
    job = _template(row, job_name(number), place, known)
    if not row.get("parts"):
        return job
    parts = enumerate(row["parts"], 1)
    made = tuple(_template(one, job.name, f"{place}, part {i}", _PART_FIELDS) for i, one in parts)
    job = replace(job, parts=made)
    if job.all_pods > MAX_PODS:
        raise WireError(place, f"has {job.all_pods} pods with those of its parts, of at most {MAX_PODS}")
    return job


def _template(row: Mapping[str, Any], name: str, place: str, known: Sequence[str]) -> Job:
    """The pods of a line without its parts, or of one of these. `name` is that of a job without a name."""
    for field in row:
        if field not in known:
            raise WireError(place, f"has a field {shown(field)}; the fields are {', '.join(known)}")
    found = dict[str, Any]()
    for field, value in row.items():
        if value is not None:
            try:
                found[field] = _READERS[field].validate_python(value)
            except ValidationError:
                raise WireError(place, f"{field} must be {_FIELDS[field][1]}, is {shown(value)}") from None
    job = Job(**{"name": name, "arrival": 0.0, **found, "parts": ()})
    if problem := _problem(job):
        raise WireError(place, problem)
    return job


def _problem(job: Job) -> str:
    """What is wrong with the fields of a job together; '' if nothing is."""
    if job.spec is not None:
        try:
            decode_pod(job.pod(job.name, job, plain=True))
        except WireError as error:
            return str(error)
        if problem := _refused("V1PodSpec", orjson.dumps(job.spec)):
            return problem
    if job.claim is not None:
        if job.gpus or job.nics or job.memory or job.product:
            return "has a claim and also gpus, nics, memory or product"
        if problem := _refused("V1ResourceClaimSpec", orjson.dumps(job.claim)):
            return problem
        claim = decode_claim(job.claim_object(job.name))
        if not claim.problem and not claim.spec.requests:
            return "claim has no requests: it asks for nothing"
        return claim.problem or _wrong_selector(claim)
    if not (job.gpus or job.nics or job.cpu or job.ram):
        return "asks for nothing: give gpus, nics, claim, cpu or ram"
    if 0 < job.gpus < 1 and job.memory:
        return "has memory and a share of a GPU: a share counts no bytes"
    return ""


@lru_cache
def _refused(kind: str, text: bytes) -> str:
    """Why the API server refuses the claim or the spec of a job, as JSON; '' if it takes it. See _compile_error."""
    spec, field = orjson.loads(text), "spec" if kind == "V1PodSpec" else "claim"
    try:
        found = list(faults_of_value(spec, kind, field)) or list(refused_values(spec, kind, field))
    except WireError as error:
        return str(error)
    for _, path, problem, correction, *_ in found:
        return f"{path}: {problem}{f' ({correction})' if correction else ''}"
    return ""


def _wrong_selector(claim: Claim) -> str:
    for option in _options(claim):
        for number, expression in enumerate(option.selectors):
            if problem := _compile_error(expression):
                return f"claim, request {shown(option.name)}, selectors[{number}]: {problem}"
    return ""


@lru_cache
def _compile_error(expression: str) -> str:
    """Why a selector does not compile; '' if it does. The jobs of a file have few different ones."""
    try:
        compile_selector(expression)
    except CompileError as error:
        return one_sentence(error)
    return ""


def _unknown_class(job: Job, classes: Container[str]) -> str:
    """The first request for a class that is not one of these; '' if there is none."""
    for one in job.templates:
        for option in _options(decode_claim(one.claim_object(job.name))) if one.claim is not None else ():
            if option.class_name not in classes:
                name = shown(option.class_name)
                return f"claim, request {shown(option.name)}: the fleet has no DeviceClass {name}"
    return ""


def _unknown_level(job: Job, policies: Iterable[Sequence[str]]) -> str:
    """Why a level of a gang is none, with one of these lists of levels; '' if all have it."""
    if not (job.is_gang and (job.group_required or job.group_preferred)):
        return ""
    asked = asked_topology(job.pod(job.name, job, plain=False)["metadata"]["annotations"])
    found = (group_topology(asked, "", levels).problem for levels in policies)
    problem = next(filter(None, found), "")
    for name, annotation in NEARNESS.items():
        problem = problem.replace(f"pod annotation {annotation}", name)
    return f"{problem}, or give the --policy that has it" if problem else ""


def _options(claim: Claim) -> Iterator[DeviceRequest]:
    return (option for request in claim.spec.requests for option in request.alternatives)


def _no_bool(value: object) -> object:
    """Reject booleans, which pydantic reads as 0 and 1."""
    if isinstance(value, bool):
        raise ValueError("is no number")  # noqa: TRY004 - pydantic reports ValueErrors
    return value


def _whole(value: float) -> int:
    if value != int(value):
        raise ValueError("is not whole")
    return int(value)


def _share_or_whole(value: float) -> float:
    return value if value <= 1 else float(_whole(value))


def _amount(factor: int) -> Any:
    """A quantity of Kubernetes, as a multiple of 1/factor."""
    read = BeforeValidator(lambda value: parse_quantity(str(value)).nanos * factor // NANO)
    return Annotated[int, read, Field(ge=0, lt=1 << 62)]


def _number(most: float, *more: Any) -> Any:
    return Annotated[float, BeforeValidator(_no_bool), Field(ge=0, le=most, allow_inf_nan=False), *more]


def _text(pattern: str) -> Any:
    return Annotated[str, Field(pattern=f"^(?:{pattern})$")]


def _only_nodes(spec: Json) -> Json:
    """What limits the nodes of a pod, and its priority. Affinity to other pods is left out: a replay has no labels."""
    affinity, priority = spec.get("affinity") or {}, spec.get("priority") or 0
    if not (spec.keys() <= set(SPEC_FIELDS) and isinstance(affinity, dict) and affinity.keys() <= {"nodeAffinity"}):
        raise ValueError("has other fields")
    if type(priority) is not int or not _PRIORITIES[0] <= priority <= _PRIORITIES[1]:
        raise ValueError("has a priority that no pod can have")
    return spec


_BYTES, _LEVEL = _amount(1), _text("[A-Za-z0-9][A-Za-z0-9._/-]{0,315}")
_DEVICES, _GBPS = _number(MAX_GPUS, AfterValidator(_share_or_whole)), _number(10**12)
_SPEC = "nodeSelector, affinity.nodeAffinity, tolerations or priority"
_FIELDS: dict[str, tuple[Any, str]] = {  # the type of each field, and what it must be in words
    "name": (_text("[a-z0-9](?:[-a-z0-9.]{0,180}[a-z0-9])?"), "lower-case letters, digits, '-' and '.'"),
    "arrival": (_number(MAX_SECONDS), "a number of seconds, 0 or more"),
    "duration": (_number(MAX_SECONDS, Field(gt=0)), "a number of seconds above 0"),
    "pods": (_number(MAX_PODS, Field(ge=1), AfterValidator(_whole)), f"a whole number from 1 to {MAX_PODS}"),
    "gpus": (_DEVICES, f"a whole number up to {MAX_GPUS}, or a share of one GPU such as 0.5"),
    "nics": (_DEVICES, f"a whole number up to {MAX_GPUS}, or a share of one NIC such as 0.25"),
    "memory": (_BYTES, "a quantity such as 40Gi"),
    "product": (_text(PRODUCT_WORDS.pattern), "words of a product's name, separated by |"),
    "cpu": (_amount(1000), "a quantity such as 8 or 500m"),
    "ram": (_BYTES, "a quantity such as 64Gi"),
    "topology": (Literal["required", "preferred", "product", "none"], "required, preferred, product or none"),
    "bandwidth": (_GBPS, "a number of GB/s, 0 or more"),
    "min_bandwidth_gbps": (_GBPS, "a number of GB/s, 0 or more"),
    "expected_memory": (_BYTES, "a quantity such as 40Gi"),
    "group_topology": (Literal["required", "preferred", "none"], "required, preferred or none"),
    "group_required": (_LEVEL, "a level, such as rack or clique, or a node label"),
    "group_preferred": (_LEVEL, "a level, such as rack or clique, or a node label"),
    "claim": (Json, "an object: the spec of a ResourceClaim"),
    "spec": (
        Annotated[Json, AfterValidator(_only_nodes)],
        f"an object with {_SPEC}, of the spec of a Pod; its priority is a whole number up to {_PRIORITIES[1]}",
    ),
    "parts": (
        Annotated[list[Json], Field(max_length=_MAX_PARTS)],
        f"a list of up to {_MAX_PARTS} objects with pods, and what each of these asks for",
    ),
}
_READERS = {field: TypeAdapter[Any](kind) for field, (kind, _) in _FIELDS.items()}
