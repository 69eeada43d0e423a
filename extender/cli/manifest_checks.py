"""The checks of manifests that need no cluster: older forms, fields, annotations and groups.

`berth lint` prints what they find. `berth explain -f` and `berth allocate` run them before they use the objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from extender.cli.annotation_findings import annotation_findings
from extender.cli.gang_findings import gang_findings
from extender.cli.lint_finding import LintFinding
from extender.cli.old_manifests import corrected
from extender.model import WireError
from extender.wire import Json, pod_templates


class CheckedManifests(NamedTuple):
    """The objects, corrected where the meaning is clear, and the findings about them as they were given."""

    objects: list[Json]
    findings: list[LintFinding]


def check_manifests(given: list[tuple[str, Json]]) -> CheckedManifests:
    """Check objects. `given` has (place, object) for each: the place names the document."""
    made: list[Json] = []
    found: list[LintFinding] = []
    named: list[tuple[str, Json]] = []
    for where, obj in given:
        place = f"{where}: {_name(obj)}"
        fixed, problems = _corrected(obj)
        made.append(fixed)
        named.append((place, fixed))
        with suppress(WireError):  # the decoders name the wrong fields of pods
            problems += annotation_findings(fixed, pod_templates(fixed))
        found += [problem.within(place) for problem in problems]
    found += _collisions(given)
    found += gang_findings(named)
    return CheckedManifests(made, found)


def _corrected(obj: Json) -> tuple[Json, list[LintFinding]]:
    try:
        return corrected(obj)
    except WireError as error:
        return obj, [LintFinding("error", error.path.lstrip("."), error.problem)]


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
