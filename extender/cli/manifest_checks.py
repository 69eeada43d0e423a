"""The checks of manifests that need no cluster: older forms, fields, annotations and groups.

`berth lint` prints what they find. `berth explain -f` and `berth allocate` run them before they use the objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import orjson
import typer

from extender.cli.annotation_findings import annotation_findings
from extender.cli.field_findings import field_findings
from extender.cli.gang_findings import gang_findings
from extender.cli.lint_finding import LintFinding
from extender.cli.object_files import parts
from extender.cli.old_manifests import corrected
from extender.cli.output import say
from extender.cli.pod_findings import pod_findings
from extender.files import name_of
from extender.manifests import objects_or_faults, pod_templates
from extender.model import WireError, counted, one_line
from extender.wire import Json

_LINE_BYTES = 4096
_CUSTOM = ("JobSet", "LeaderWorkerSet")  # workloads without a schema here


class Manifests(NamedTuple):
    """The contents of files."""

    objects: list[tuple[str, Json]]  # (place, object)
    findings: list[LintFinding]  # about what is no Kubernetes object
    unreadable: list[WireError]  # a file or a document each


class CheckedManifests(NamedTuple):
    """The findings of the checks, and the objects, corrected where the meaning is clear."""

    objects: list[tuple[str, Json]]  # (place, object), as given
    findings: list[LintFinding]
    faulty: set[int]  # positions of the objects with an error that is not corrected

    @property
    def is_usable(self) -> bool:
        """Whether the corrected objects have no error."""
        return all(finding.fixed or finding.severity != "error" for finding in self.findings)


def checked_files(paths: Iterable[Path]) -> list[tuple[str, Json]]:
    """Return (place, object) of all objects of the files, corrected. Findings go to standard error.

    Raises WireError for a file that cannot be read, and typer.Exit(1) if an error needs the user.
    """
    read = read_manifests(paths)
    if read.unreadable:
        raise read.unreadable[0]
    checked = check_manifests(read.objects)
    if read.findings or checked.findings:
        print_findings(read.findings + checked.findings, "table", to_stderr=True)
    if read.findings or not checked.is_usable:
        raise typer.Exit(1)
    if any(finding.fixed for finding in checked.findings):
        say("berth: the answer is for the corrected objects, which berth lint --fix prints", err=True)
    return checked.objects


def print_findings(found: list[LintFinding], output: str, *, to_stderr: bool, fixing: bool = False) -> None:
    """Print findings and, in a table, their number without notes. `fixing` marks those that `--fix` corrects."""
    for finding in found:
        severity = "fixed" if fixing and finding.fixed else finding.severity
        line = (
            orjson.dumps(finding._asdict()).decode()
            if output == "json"
            else one_line(f"{severity}: {finding.where}: {finding.problem}", _LINE_BYTES)
        )
        say(line, err=to_stderr)
        if finding.correction and output == "table":
            say(one_line(f"  correction: {finding.correction}", _LINE_BYTES), err=to_stderr)
    if output == "table":
        count, fixed = sum(finding.severity != "note" for finding in found), sum(finding.fixed for finding in found)
        left = f", {fixed} fixed, {count - fixed} left" if fixing and count else ""
        say(counted(count, "finding") + left, err=to_stderr)


def read_manifests(paths: Iterable[Path]) -> Manifests:
    """Read files. A fault in one document hides no other document."""
    raw: list[tuple[str, Json]] = []
    found: list[LintFinding] = []
    unreadable: list[WireError] = []
    for path in paths:
        before = len(raw) + len(found) + len(unreadable)
        try:
            pieces = parts(path)
        except WireError as error:
            unreadable.append(error)
            continue
        for part in pieces:
            try:
                for item in objects_or_faults(part):
                    if isinstance(item, WireError):
                        found.append(LintFinding("error", item.path, item.problem))
                    else:
                        raw.append((part.where, item))
            except WireError as error:
                unreadable.append(error)
        if before == len(raw) + len(found) + len(unreadable):
            unreadable.append(WireError(name_of(path), "holds no Kubernetes objects"))
    return Manifests(raw, found, unreadable)


def check_manifests(given: list[tuple[str, Json]], supply: Sequence[Json] = ()) -> CheckedManifests:
    """Check objects. `given` has (location, object) for each: the location names the document.

    `supply` has the classes and slices of the cluster, if they are known.
    """
    checked = CheckedManifests([], [], set())
    named: list[tuple[str, Json]] = []
    published = frozenset(name for obj in (*supply, *(obj for _, obj in given)) for name in _published(obj))
    for position, (where, obj) in enumerate(given):
        location = f"{where}: {_name(obj)}"
        made, problems = _of_object(obj, published)
        checked.objects.append((where, made))
        checked.findings.extend(problem.within(location) for problem in problems)
        named.append((location, made))
        if any(problem.severity == "error" and not problem.fixed for problem in problems):
            checked.faulty.add(position)
    checked.findings.extend(_collisions(given))
    checked.findings.extend(pod_findings(named, supply))
    checked.findings.extend(gang_findings(named))
    return checked


def _of_object(obj: Json, published: frozenset[str]) -> tuple[Json, list[LintFinding]]:
    try:
        made, found = corrected(obj, published)
        templates = pod_templates(made)
    except WireError as error:
        return obj, [LintFinding("error", error.path.lstrip("."), error.problem)]
    reported = tuple(finding.where for finding in found if not finding.fixed)
    found += [finding for finding in field_findings(made, templates) if finding.where not in reported]
    found += annotation_findings(made, templates)
    if _is_allocated(made):
        # The API server lets no client change the spec of a stored claim, and only its allocation counts.
        found = [one._replace(severity="warning") if one.where.startswith("spec") else one for one in found]
    if made.get("kind") in _CUSTOM and not any((one.pod.get("spec") or {}).get("containers") for one in templates):
        found.append(
            LintFinding("error", "spec", "has no pod template with containers", "check the names of its fields")
        )
    return made, found


def _is_allocated(obj: Json) -> bool:
    status = obj.get("status") if obj.get("kind") == "ResourceClaim" else None
    return isinstance(status, dict) and isinstance(status.get("allocation"), dict)


def _published(obj: Json) -> Iterator[str]:
    """The attributes that a slice publishes, as domain/name."""
    spec = obj.get("spec") if obj.get("kind") == "ResourceSlice" else None
    devices = spec.get("devices") if isinstance(spec, dict) else None
    driver = spec.get("driver") if isinstance(spec, dict) else None
    for device in devices if isinstance(devices, list) else ():
        basic = device.get("basic", device) if isinstance(device, dict) else None
        attributes = basic.get("attributes") if isinstance(basic, dict) else None
        for name in attributes if isinstance(attributes, dict) else ():
            yield name if "/" in name else f"{driver}/{name}"


def _name(obj: Json) -> str:
    metadata = obj.get("metadata") or {}
    name = metadata.get("name") or metadata.get("generateName") or "without name"
    return f"{obj.get('kind', 'object without kind')} {name}"


def _collisions(given: list[tuple[str, Json]]) -> Iterator[LintFinding]:
    """Yield the objects that overwrite another object of the files when they are applied."""
    seen: dict[tuple[str, ...], str] = {}
    for where, obj in given:
        metadata = obj.get("metadata") or {}
        group = str(obj.get("apiVersion") or "").rpartition("/")[0]
        key = (group, str(obj.get("kind")), str(metadata.get("namespace") or "default"), str(metadata.get("name")))
        if metadata.get("name") and key in seen:
            problem = f"has the same name as the one in {seen[key]}"
            yield LintFinding("error", f"{where}: {_name(obj)}", problem, "give it another name")
        seen[key] = where
