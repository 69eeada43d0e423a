"""Checks of the annotations by which pods talk to Berth: their names, their values and their places."""

from __future__ import annotations

from collections.abc import Iterator

from extender.cli.lint_finding import LintFinding, did_you_mean
from extender.manifests import PodTemplate
from extender.model import DECISION_ANNOTATION, GROUP_ANNOTATION
from extender.wire import ANNOTATION_PREFIX, ANNOTATION_READERS, OWN_ANNOTATIONS, Json

_OF_PODS = [*ANNOTATION_READERS, GROUP_ANNOTATION, *OWN_ANNOTATIONS]
_OF_EXAMPLES = f"{ANNOTATION_PREFIX}expect-"  # what `berth run` compares its decisions with


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
