"""Constraints of a pod on where other pods are (core/v1): pod affinity, pod anti-affinity and topology spread.

A gang's plan reads them of its members. Selectors match as in kube-scheduler's plugins InterPodAffinity and
PodTopologySpread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from extender.api.fields import Json, inner, integer, many, string, string_map, strings
from extender.api.nodes import Requirement

HOSTNAME = "kubernetes.io/hostname"
_REQUIRED, _PREFERRED = (f"{kind}DuringSchedulingIgnoredDuringExecution" for kind in ("required", "preferred"))


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """A selector of labels (meta/v1): it matches if all requirements hold, so an empty one matches everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(one.holds(labels) for one in self.requirements)


class PodTerm(NamedTuple):
    """A term of a pod affinity or anti-affinity."""

    topology_key: str  # of node labels: a domain has one value of it
    selector: LabelSelector | None  # of the other pods; None matches no pod
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    weight: int = 0  # 1 to 100 of a preferred term, 0 of a required one

    def matches(self, labels: Mapping[str, str], namespace: str, namespace_labels: Mapping[str, str]) -> bool:
        """Whether the term of a pod matches a pod with these labels in the same namespace."""
        if self.selector is None or not self.selector.matches(labels):
            return False
        if not self.namespaces and self.namespace_selector is None:
            return True
        chosen = self.namespace_selector is not None and self.namespace_selector.matches(namespace_labels)
        return chosen or namespace in self.namespaces


class SpreadConstraint(NamedTuple):
    """An entry of spec.topologySpreadConstraints."""

    topology_key: str
    selector: LabelSelector | None
    max_skew: int  # a domain has at most this many matching pods more than the domain with the fewest
    required: bool  # DoNotSchedule
    min_domains: int = 1  # with fewer domains, the fewest counts as 0
    honors_affinity: bool = True  # whether only the nodes that the pod selects count
    honors_taints: bool = False  # whether nodes with a taint that the pod does not tolerate do not count

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a pod of the same namespace counts."""
        return self.selector is not None and self.selector.matches(labels)


@dataclass(frozen=True, slots=True)
class PodConstraints:
    """All such constraints of a pod."""

    together: tuple[PodTerm, ...] = ()
    apart: tuple[PodTerm, ...] = ()
    spread: tuple[SpreadConstraint, ...] = ()

    @property
    def requires_spread(self) -> bool:
        """Whether the nodes that kube-scheduler offers change with each bound pod, even without a full node."""
        return any(one.required for one in self.spread)


NO_CONSTRAINTS = PodConstraints()  # of most pods


def decode_pod_constraints(spec: Json, labels: Mapping[str, str]) -> PodConstraints:
    """The constraints of a pod with these labels. Raises WireError if a field has the wrong type."""
    affinity = inner(spec, "affinity", "spec")
    if not affinity and not spec.get("topologySpreadConstraints"):
        return NO_CONSTRAINTS
    found = PodConstraints(
        _terms(affinity, "podAffinity", labels),
        _terms(affinity, "podAntiAffinity", labels),
        many(spec, "topologySpreadConstraints", "spec", lambda obj, path: _spread(obj, path, labels)),
    )
    return found if found != NO_CONSTRAINTS else NO_CONSTRAINTS


def _terms(affinity: Json, kind: str, labels: Mapping[str, str]) -> tuple[PodTerm, ...]:
    path, of = f"spec.affinity.{kind}", inner(affinity, kind, "spec.affinity")
    required = many(of, _REQUIRED, path, lambda obj, where: _term(obj, where, labels))
    return required + many(of, _PREFERRED, path, lambda obj, where: _weighted(obj, where, labels))


def _weighted(obj: Json, path: str, labels: Mapping[str, str]) -> PodTerm:
    term = _term(inner(obj, "podAffinityTerm", path), f"{path}.podAffinityTerm", labels)
    return term._replace(weight=integer(obj, "weight", path))


def _term(obj: Json, path: str, labels: Mapping[str, str]) -> PodTerm:
    # The API server adds these keys to the selector of a pod that it stores; a manifest does not have them there yet.
    same = _of_own(obj, "matchLabelKeys", path, "In", labels)
    other = _of_own(obj, "mismatchLabelKeys", path, "NotIn", labels)
    return PodTerm(
        string(obj, "topologyKey", path),
        label_selector(obj, "labelSelector", path, same + other),
        tuple(strings(obj, "namespaces", path)),
        label_selector(obj, "namespaceSelector", path),
    )


def _spread(obj: Json, path: str, labels: Mapping[str, str]) -> SpreadConstraint:
    return SpreadConstraint(
        string(obj, "topologyKey", path),
        label_selector(obj, "labelSelector", path, _of_own(obj, "matchLabelKeys", path, "In", labels)),
        integer(obj, "maxSkew", path),
        string(obj, "whenUnsatisfiable", path) == "DoNotSchedule",
        integer(obj, "minDomains", path) or 1,
        string(obj, "nodeAffinityPolicy", path) != "Ignore",
        string(obj, "nodeTaintsPolicy", path) == "Honor",
    )


def _of_own(obj: Json, key: str, path: str, operator: str, labels: Mapping[str, str]) -> tuple[Requirement, ...]:
    """The requirements that the labels of the pod itself make of a list of label keys."""
    return tuple(Requirement(name, operator, (labels[name],)) for name in strings(obj, key, path) if name in labels)


def label_selector(obj: Json, key: str, path: str, added: tuple[Requirement, ...] = ()) -> LabelSelector | None:
    """Decode a selector, with more requirements; None if the object has none. Raises WireError."""
    if obj.get(key) is None:
        return None
    own, where = inner(obj, key, path), f"{path}.{key}"
    equal = tuple(Requirement(name, "In", (value,)) for name, value in string_map(own, "matchLabels", where).items())
    listed = many(own, "matchExpressions", where, _requirement)
    return LabelSelector(tuple(dict.fromkeys(equal + listed + added)))


def _requirement(obj: Json, path: str) -> Requirement:
    return Requirement(string(obj, "key", path), string(obj, "operator", path), tuple(strings(obj, "values", path)))
