"""Checks the fields of one object as `kubectl apply` does, and the annotations by which pods talk to Berth."""

from __future__ import annotations

from collections.abc import Iterator

from extender.api.fields import Json
from extender.api.object_meta import is_subdomain
from extender.api.pod_annotations import ANNOTATION_PREFIX, ANNOTATION_READERS
from extender.api.pod_groups import OWN_ANNOTATIONS
from extender.api.pods import DECISION_ANNOTATION
from extender.api.resource_claims import GROUP_ANNOTATION
from extender.api_schema import (
    FieldFault,
    did_you_mean,
    faults_of_value,
    field_faults,
    has_schema,
    kinds_like,
    rule_faults,
)
from extender.base.berth_errors import WireError
from extender.base.text_limits import shown
from extender.lint.finding import LintFinding
from extender.manifests import PodTemplate

_SECRET = ("Secret", "ConfigMap")  # no message may quote their values
_OF_PODS = [*ANNOTATION_READERS, GROUP_ANNOTATION, *OWN_ANNOTATIONS]
_OF_EXAMPLES = f"{ANNOTATION_PREFIX}expect-"  # what `berth run` compares its decisions with


def field_findings(obj: Json, templates: list[PodTemplate]) -> Iterator[LintFinding]:
    """Yield unknown fields and wrong types of an object; if the kind has no schema, of its pod templates."""
    kind = str(obj.get("kind"))
    if kind in _SECRET:
        return
    if has_schema(obj):
        yield from _name(obj.get("metadata") or {})
        wrong = list(map(_finding, field_faults({k: v for k, v in obj.items() if k != "status"})))
        yield from wrong
        if str(obj.get("apiVersion")).startswith("resource.k8s.io/"):
            try:
                yield from map(_finding, rule_faults(obj))
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
                yield from map(_finding, faults_of_value(inner, type_, f"{template.path}.{field}"))


def _name(metadata: Json) -> Iterator[LintFinding]:
    name = metadata.get("name")
    if isinstance(name, str) and name and not is_subdomain(name):
        problem = f"the name {shown(name)} must have lower-case letters, digits, '-' and '.' only"
        yield LintFinding("error", "metadata.name", problem, "fill in the variable" if "$" in name else "rename it")


def _finding(fault: FieldFault) -> LintFinding:
    return LintFinding(fault.severity, fault.path, fault.problem, fault.correction)


def annotation_findings(obj: Json, templates: list[PodTemplate]) -> Iterator[LintFinding]:
    """Yield what is wrong with Berth's annotations of an object that creates pods. Values of groups come elsewhere."""
    for template in templates:
        path = f"{template.path}.metadata" if template.path else "metadata"
        metadata = template.pod.get("metadata") or {}
        yield from _of_pod(metadata.get("annotations") or {}, f"{path}.annotations")
        for name in _ours(metadata.get("labels") or {}):
            problem = f"Berth reads {name} as an annotation, not as a label"
            yield LintFinding("error", f"{path}.labels", problem, f"move it to {path}.annotations")
    if templates and templates[0].path:
        for name in _ours((obj.get("metadata") or {}).get("annotations") or {}):
            yield LintFinding(
                "error",
                "metadata.annotations",
                f"{name} has no effect here: pods get their annotations from the template",
                f"move it to {templates[0].path}.metadata.annotations",
            )


def _ours(keys: Json) -> list[str]:
    return [name for name in keys if name in _OF_PODS]


def _of_pod(annotations: Json, where: str) -> Iterator[LintFinding]:
    for name in annotations:
        known = name in _OF_PODS or name == DECISION_ANNOTATION or name.startswith(_OF_EXAMPLES)
        if name.startswith(ANNOTATION_PREFIX) and not known:
            yield LintFinding("error", where, f"Berth knows no annotation {name}", did_you_mean(name, _OF_PODS))
    for read in ANNOTATION_READERS.values():
        try:
            read({name: value for name, value in annotations.items() if isinstance(value, str)})
        except ValueError as error:
            yield LintFinding("error", where, str(error).removeprefix("pod annotation "))
