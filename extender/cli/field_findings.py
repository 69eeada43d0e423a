"""Finds fields that the Kubernetes API does not have, and values of another type. `kubectl apply` refuses the same."""

from __future__ import annotations

from collections.abc import Iterator

from extender.api_schema import (
    FieldFault,
    faults_of_value,
    field_faults,
    has_schema,
    is_subdomain,
    kinds_like,
    rule_faults,
)
from extender.cli.lint_finding import LintFinding, did_you_mean
from extender.manifests import PodTemplate
from extender.model import WireError, shown
from extender.wire import Json

_SECRET = ("Secret", "ConfigMap")  # no message may quote their values
_FEW = 8  # fields of an object that a message lists


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
    correction = fault.correction if fault.unknown is None else _hint(fault.unknown, fault)
    return LintFinding(fault.severity, fault.path, fault.problem, correction)


def _hint(name: str, fault: FieldFault) -> str:
    """The field that the user may have meant: a field of the same object, or one inside of these."""
    if name == "$patch":
        return "this is a patch, not an object: check what kubectl kustomize prints"
    if name in ("name", "namespace", "labels", "annotations") and "metadata" in fault.known:
        return f"did you mean metadata.{name}?"
    found = did_you_mean(name, list(fault.known))
    for place in fault.inside:
        found = found or (f"did you mean {place}?" if did_you_mean(name, [place.partition(".")[2]]) else "")
    return found or (f"known here: {', '.join(sorted(fault.known))}" if len(fault.known) <= _FEW else "")
