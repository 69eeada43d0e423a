"""Nodes (core/v1), and how other objects name them: node selectors, taints, tolerations.

Selectors match as in k8s.io/component-helpers nodeaffinity. Devices have taints and tolerations of the same form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from sys import intern

from extender.api.fields import Json, flag, inner, many, need, present, string, strings
from extender.api.object_meta import labels_of
from extender.api.pod_amounts import allocatable_of, readable_cpu
from extender.api.quantity import NANO, parse_quantity
from extender.base.berth_errors import WireError

_NAME = "metadata.name"
_BLOCKING = ("NoSchedule", "NoExecute")
_MAX_TAINTS = 256  # distinct ones that are shared; a fleet has a few
_NO_NAMES = frozenset[str]()  # one for all nodes: a fleet has thousands
_NATIVE = ("cpu", "memory", "ephemeral-storage")


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a device or of a node. `effect` is NoSchedule, NoExecute, or None for a device."""

    key: str
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class Toleration:
    """A toleration of device taints (resource.k8s.io DeviceToleration) or of node taints (core/v1)."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on a label, or on a field of a node."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether labels, or fields, satisfy the condition."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                return _compares(self, value)
            case _:
                return False


@dataclass(frozen=True, slots=True)
class Term:
    """A term matches if all its requirements hold. An empty term matches no node."""

    expressions: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeSelector:
    """A selector matches if one of its terms matches."""

    terms: tuple[Term, ...]

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether the selector matches a node with this name and these labels."""
        return any(_term_matches(term, name, labels) for term in self.terms)

    @property
    def node(self) -> str | None:
        """The only node that the selector can match, by name; None if it does not name exactly one."""
        named = {_named(term) for term in self.terms}
        return named.pop() if len(named) == 1 else None


def only_node(name: str) -> NodeSelector:
    """A selector for the node of this name only."""
    return NodeSelector((Term(fields=(Requirement(_NAME, "In", (name,)),)),))


def lacks_label_or_has(key: str, value: str) -> NodeSelector:
    """A selector for the nodes without a label, or with this value of it."""
    return NodeSelector((Term((Requirement(key, "DoesNotExist"),)), Term((Requirement(key, "In", (value,)),))))


def _named(term: Term) -> str | None:
    names = (r.values[0] for r in term.fields if r.key == _NAME and r.operator == "In" and len(r.values) == 1)
    return next(names, None)


def _term_matches(term: Term, name: str, labels: Mapping[str, str]) -> bool:
    if not term.expressions and not term.fields:
        return False
    fields = {_NAME: name}
    return all(r.holds(labels) for r in term.expressions) and all(r.holds(fields) for r in term.fields)


def _compares(requirement: Requirement, value: str | None) -> bool:
    try:
        have, limit = int(value or ""), int(requirement.values[0])
    except (ValueError, IndexError):
        return False
    return have > limit if requirement.operator == "Gt" else have < limit


@dataclass(frozen=True, slots=True)
class NodeSelection:
    """The nodes that can use a slice or a device. Exactly one field is set in a valid object."""

    node_name: str = ""
    all_nodes: bool = False
    selector: NodeSelector | None = None

    @property
    def is_set(self) -> bool:
        return bool(self.node_name) or self.all_nodes or self.selector is not None


NO_SELECTION = NodeSelection()


def decode_node_selector(obj: Json, key: str, path: str) -> NodeSelector | None:
    """The core/v1 NodeSelector obj[key], or None if absent. Raises WireError."""
    if obj.get(key) is None:
        return None
    return NodeSelector(many(inner(obj, key, path), "nodeSelectorTerms", f"{path}.{key}", decode_term))


def decode_term(obj: Json, path: str) -> Term:
    """A term of a node selector. Raises WireError."""
    parts = (many(obj, name, path, decode_requirement) for name in ("matchExpressions", "matchFields"))
    return Term(*parts)


def decode_requirement(obj: Json, path: str) -> Requirement:
    """A condition of a selector of nodes, or of labels. Raises WireError."""
    return Requirement(need(obj, "key", path), need(obj, "operator", path), tuple(strings(obj, "values", path)))


def encode_node_selector(selector: NodeSelector) -> Json:
    """A core/v1 NodeSelector as JSON."""

    def encoded(part: tuple[Requirement, ...]) -> list[Json]:
        return [{"key": one.key, "operator": one.operator} | present({"values": list(one.values)}) for one in part]

    terms = [
        {"matchExpressions": encoded(one.expressions), "matchFields": encoded(one.fields)} for one in selector.terms
    ]
    return {"nodeSelectorTerms": [present(term) for term in terms]}


def decode_selection(obj: Json, path: str) -> NodeSelection:
    """The nodes of a slice or device: nodeName, allNodes or nodeSelector. Raises WireError."""
    selector = decode_node_selector(obj, "nodeSelector", path)
    if selector is not None and len(selector.terms) > 1:
        raise WireError(f"{path}.nodeSelector", f"must have one term, has {len(selector.terms)}")
    found = NodeSelection(intern(string(obj, "nodeName", path)), flag(obj, "allNodes", path), selector)
    return found if found.is_set else NO_SELECTION  # most devices set no field


def decode_taint(obj: Json, path: str) -> Taint:
    """A taint of a device or a node. Raises WireError."""
    return _one_taint(need(obj, "key", path), string(obj, "value", path), string(obj, "effect", path))


_one_taint = lru_cache(_MAX_TAINTS)(Taint)  # each device that an agent publishes has the same one


def decode_toleration(obj: Json, path: str) -> Toleration:
    """A toleration of taints of devices or nodes. Raises WireError."""
    seconds = obj.get("tolerationSeconds")
    return Toleration(
        string(obj, "key", path),
        string(obj, "operator", path),
        string(obj, "value", path),
        string(obj, "effect", path),
        seconds if isinstance(seconds, int) else None,
    )


def encode_toleration(toleration: Toleration) -> Json:
    """A toleration as JSON."""
    found: Json = {} if toleration.seconds is None else {"tolerationSeconds": toleration.seconds}
    texts = {"key": toleration.key, "operator": toleration.operator, "value": toleration.value}
    return present(texts | {"effect": toleration.effect}) | found


CORDONED = Taint("node.kubernetes.io/unschedulable", effect="NoSchedule")


@dataclass(frozen=True, slots=True)
class Node:
    """A node: name, labels, the names of the extended resources that its kubelet offers, and taints."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    allocatable: frozenset[str] = frozenset()  # names of resources whose amount is above zero
    taints: tuple[Taint, ...] = ()  # with effect NoSchedule or NoExecute; also spec.unschedulable
    soft_taints: tuple[Taint, ...] = ()  # with effect PreferNoSchedule
    cpu: int = 0  # that pods can get, in thousandths of a core; 0 if the node does not say it


def decode_node(obj: Json) -> Node:
    """Decode a Node. Raises WireError if a field that it reads has the wrong type."""
    metadata, spec = inner(obj, "metadata", ""), inner(obj, "spec", "")
    offered = inner(inner(obj, "status", ""), "allocatable", "status")
    scalars = (
        frozenset(name for name, value in offered.items() if "/" in name and resource_units(name, value)) or _NO_NAMES
    )
    every = many(spec, "taints", "spec", decode_taint)
    taints = tuple(taint for taint in every if taint.effect in _BLOCKING)
    soft = tuple(dict.fromkeys(taint for taint in every if taint.effect == "PreferNoSchedule"))
    if flag(spec, "unschedulable", "spec"):
        taints += (CORDONED,)
    name, blocking = intern(need(metadata, "name", "metadata")), tuple(dict.fromkeys(taints))
    labels = {key: intern(value) for key, value in labels_of(metadata).items()}  # most nodes have equal ones
    return Node(name, labels, scalars, blocking, soft, readable_cpu(allocatable_of, obj))


def resource_units(name: str, value: object) -> int:
    """Whole units of an extended resource, rounded down; 0 for native resources, which Berth ignores."""
    if name in _NATIVE:
        return 0
    try:
        return parse_quantity(str(value)).nanos // NANO
    except ValueError:
        return 0
