"""Runs the checks of `berth lint`. This is the only module that knows all of them.

First each object of the files is checked as it is written: older forms are corrected where the meaning is clear, then
OBJECT_CHECKS and FILE_CHECKS run on the result. `berth explain -f`, `allocate` and `select` do this much before they
use the objects. Then the objects are decoded, and DEVICE_CHECKS compare them with classes and slices.

To add a check, write a function that yields findings, and list it in one of the three tables at the end of this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from extender.allocation import Snapshot
from extender.api.fields import Json, inner, objects
from extender.api.object_meta import is_subdomain
from extender.api_schema import (
    LintFinding,
    did_you_mean,
    faults_of_value,
    field_faults,
    has_schema,
    kinds_like,
    rule_faults,
)
from extender.base.berth_errors import WireError
from extender.base.text_limits import shown
from extender.cel.dra import Dialect
from extender.lint.device_findings import (
    Given,
    admin_access,
    faulty_classes,
    faulty_pools,
    faulty_selectors,
    faulty_slices,
    impossible_pods,
    refused_pods,
    unknown_classes,
    unreadable_objects,
)
from extender.lint.gang_findings import gang_findings
from extender.lint.old_manifests import corrected
from extender.lint.pod_findings import annotation_findings, pod_findings
from extender.manifests import HypotheticalPod, PodTemplate, decoded_objects, hypothetical, pod_templates

Placed = tuple[str, Json]  # an object, and the document that has it or the name of the object in the document
_SECRET = ("Secret", "ConfigMap")  # no message may quote their values
_CUSTOM = ("JobSet", "LeaderWorkerSet")  # workloads without a schema here


class CheckedManifests(NamedTuple):
    """The findings about objects as they are written, and the objects, corrected where the meaning is clear."""

    objects: list[Placed]  # as given
    findings: list[LintFinding]
    faulty: set[int]  # positions of the objects with an error that is not corrected

    @property
    def is_usable(self) -> bool:
        """Whether the corrected objects have no error."""
        return all(finding.fixed or finding.severity != "error" for finding in self.findings)


def check_manifests(given: list[Placed], supply: Sequence[Json] = ()) -> CheckedManifests:
    """Check and correct (document, object) pairs. `supply` has the classes and slices of the cluster, if known."""
    checked = CheckedManifests([], [], set())
    named: list[Placed] = []
    published = frozenset(name for obj in (*supply, *(obj for _, obj in given)) for name in _published(obj))
    for position, (document, obj) in enumerate(given):
        location = f"{document}: {_named(obj)}"
        made, found = _of_object(obj, published)
        checked.objects.append((document, made))
        checked.findings.extend(finding.within(location) for finding in found)
        named.append((location, made))
        if any(finding.severity == "error" and not finding.fixed for finding in found):
            checked.faulty.add(position)
    checked.findings.extend(_collisions(given))
    for check in FILE_CHECKS:
        checked.findings.extend(check(named, supply))
    return checked


def check_devices(
    checked: CheckedManifests,
    supply: list[Placed],
    dialect: Dialect,
    snapshot: Snapshot | None,
    *,
    knows_nodes: bool,
) -> Iterator[LintFinding]:
    """Yield what the checked objects get wrong about classes and devices.

    `supply` has the classes and slices of the cluster; `snapshot` and `knows_nodes` are as in Given.
    """
    problems: dict[int, WireError] = {}
    decoded = decoded_objects(checked.objects + supply, problems)
    # An object with an error is often unreadable because of it.
    unreadable = [problem for position, problem in problems.items() if position not in checked.faulty]
    files, pods = [made for _, made in checked.objects], list[tuple[str, HypotheticalPod]]()
    with suppress(WireError):  # other checks name the faults of pods and templates
        for pod in hypothetical(files).pods:
            document, made = checked.objects[pod.made_by]
            pods.append((f"{document}: {_named(made)}", pod))
    given = Given(decoded, unreadable, files, pods, dialect, snapshot, knows_nodes)
    for check in DEVICE_CHECKS:
        yield from check(given)


def _of_object(obj: Json, published: frozenset[str]) -> tuple[Json, list[LintFinding]]:
    try:
        made, found = corrected(obj, published)
        templates = pod_templates(made)
    except WireError as error:
        return obj, [LintFinding("error", error.path.lstrip("."), error.problem)]
    reported = {finding.where for finding in found if not finding.fixed}
    for check in OBJECT_CHECKS:
        found += [finding for finding in check(made, templates) if finding.where not in reported]
    if made.get("kind") == "ResourceClaim" and isinstance(inner(made, "status", "").get("allocation"), dict):
        # The API server lets no client change the spec of a stored claim, and only its allocation counts.
        found = [one._replace(severity="warning") if one.where.startswith("spec") else one for one in found]
    return made, found


def _published(obj: Json) -> Iterator[str]:
    """The attributes that a slice publishes, as domain/name."""
    with suppress(WireError):  # other checks name the wrong fields
        spec = inner(obj, "spec", "") if obj.get("kind") == "ResourceSlice" else {}
        for device, _ in objects(spec, "devices", ""):
            for name in inner(inner(device, "basic", "") or device, "attributes", ""):
                yield name if "/" in name else f"{spec.get('driver')}/{name}"


def _named(obj: Json) -> str:
    metadata = obj.get("metadata") or {}
    name = metadata.get("name") or metadata.get("generateName") or "without name"
    return f"{obj.get('kind', 'object without kind')} {name}"


def _fields(obj: Json, templates: list[PodTemplate]) -> Iterator[LintFinding]:
    """Yield unknown fields and wrong types of an object; if the kind has no schema, of its pod templates."""
    kind = str(obj.get("kind"))
    if kind in _SECRET:
        return
    if has_schema(obj):
        yield from _name(obj.get("metadata") or {})
        wrong = list(field_faults({k: v for k, v in obj.items() if k != "status"}))
        yield from wrong
        if str(obj.get("apiVersion")).startswith("resource.k8s.io/"):
            try:
                yield from rule_faults(obj)
            except WireError as error:  # a wrong type
                if error.path not in (one.where for one in wrong):
                    yield LintFinding("error", error.path, error.problem)
    elif obj.get("apiVersion") == "resource.k8s.io/v1":
        hint = did_you_mean(kind, kinds_like("v1"))
        yield LintFinding("error", "kind", f"resource.k8s.io/v1 has no kind {shown(kind)}", hint)
    else:
        for template in templates:
            for field, type_ in (("metadata", "V1ObjectMeta"), ("spec", "V1PodSpec")):
                inner = template.pod.get(field) or {}
                yield from faults_of_value(inner, type_, f"{template.path}.{field}")


def _name(metadata: Json) -> Iterator[LintFinding]:
    name = metadata.get("name")
    if isinstance(name, str) and name and not is_subdomain(name):
        problem = f"the name {shown(name)} must have lower-case letters, digits, '-' and '.' only"
        yield LintFinding("error", "metadata.name", problem, "fill in the variable" if "$" in name else "rename it")


def _without_template(obj: Json, templates: list[PodTemplate]) -> Iterator[LintFinding]:
    if obj.get("kind") in _CUSTOM and not any((one.pod.get("spec") or {}).get("containers") for one in templates):
        yield LintFinding("error", "spec", "has no pod template with containers", "check the names of its fields")


def _collisions(given: list[Placed]) -> Iterator[LintFinding]:
    """The objects, as given, that overwrite another object of the files when they are applied."""
    seen: dict[tuple[str, ...], str] = {}
    for document, obj in given:
        metadata = obj.get("metadata") or {}
        group = str(obj.get("apiVersion") or "").rpartition("/")[0]
        key = (group, str(obj.get("kind")), str(metadata.get("namespace") or "default"), str(metadata.get("name")))
        if metadata.get("name") and key in seen:
            problem = f"has the same name as the one in {seen[key]}"
            yield LintFinding("error", f"{document}: {_named(obj)}", problem, "give it another name")
        seen[key] = document


# A check of one object gets its pod templates, too; `where` of its findings is the field.
OBJECT_CHECKS: tuple[Callable[[Json, list[PodTemplate]], Iterator[LintFinding]], ...] = (
    _fields,
    annotation_findings,
    _without_template,
)
# A check of all objects of the files gets (place and name, object) pairs, and what the cluster supplies.
FILE_CHECKS: tuple[Callable[[list[Placed], Iterable[Json]], Iterator[LintFinding]], ...] = (
    pod_findings,
    gang_findings,
)
# A check of decoded objects gets all that is known of the files and of the cluster.
DEVICE_CHECKS: tuple[Callable[[Given], Iterator[LintFinding]], ...] = (
    faulty_slices,
    faulty_pools,
    faulty_classes,
    faulty_selectors,
    unknown_classes,
    unreadable_objects,
    admin_access,
    refused_pods,
    impossible_pods,
)
