"""What kube-apiserver refuses in the metadata of every object, in the spec of a pod, and in a change of that.

Source: apimachinery, pkg/api/validation/objectmeta.go and pkg/util/validation; pkg/apis/core/validation. The sandbox
has the rules that matter for the place of a pod. It runs no containers, and has none about their ports, environments
and mounts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence

from extender.api.fields import Json, get, objects, quantity, string
from extender.api.object_meta import MAX_LABEL, MAX_SUBDOMAIN, is_label, is_label_value, is_subdomain
from extender.base.text_limits import cut, shown

_WITH_LABELS_AS_NAMES = ("Namespace", "Service")
Faults = Iterator[tuple[str, str]]  # the field, and what is wrong with it
POLICIES = ("Always", "OnFailure", "Never")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_UNSATISFIABLE = ("DoNotSchedule", "ScheduleAnyway")
_WITH_VALUES, _WITHOUT_VALUES, _NUMERIC = ("In", "NotIn"), ("Exists", "DoesNotExist"), ("Gt", "Lt")
_NATIVE = ("cpu", "memory", "ephemeral-storage")
_CHANGEABLE = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "schedulingGates")
_OF_GATED = ("nodeSelector", "affinity")  # may be narrowed while a gate is left
_MUTABLE = (
    "pod updates may change only `spec.containers[*].image`, `spec.initContainers[*].image`, "
    "`spec.activeDeadlineSeconds`, `spec.tolerations` (additions) and `spec.terminationGracePeriodSeconds`"
)


def quoted(value: object) -> str:
    """A value as the API's messages have it: as JSON, of bounded length."""
    return cut(json.dumps(value, ensure_ascii=False))


def invalid_value(value: object, why: str) -> str:
    """The words for a value that breaks a rule."""
    return f"Invalid value: {quoted(value)}: {why}"


def of_metadata(kind: str, metadata: Json, path: str = "metadata") -> Faults:
    """Yield the faults of an object's metadata. Raises WireError for a value of a wrong type."""
    name = string(metadata, "name", path)
    if name and kind in _WITH_LABELS_AS_NAMES:
        yield from of_label_name(name, f"{path}.name")
    elif name:
        yield from of_subdomain(name, f"{path}.name")
    yield from of_labels(get(metadata, "labels", dict, path, {}), f"{path}.labels")
    for key in get(metadata, "annotations", dict, path, {}):
        yield from of_label_key(key, f"{path}.annotations", key.lower())


def of_labels(labels: Json, path: str) -> Faults:
    """The faults of labels, or of a selector by labels."""
    for key, value in labels.items():
        yield from of_label_key(key, path)
        yield from of_label_value(value, path)


def of_label_key(key: str, path: str, checked: str | None = None) -> Faults:
    """The faults of a qualified name, as NAME or DOMAIN/NAME.

    `checked` stands for that of an annotation, of which case does not matter.
    """
    domain, slash, name = (key if checked is None else checked).rpartition("/")
    if "/" in domain:
        yield path, invalid_value(key, "a valid label key is NAME or DOMAIN/NAME")
    elif slash and not is_subdomain(domain):
        yield path, invalid_value(key, "prefix part must be a lowercase RFC 1123 subdomain")
    elif not name:
        yield path, invalid_value(key, "name part must be non-empty")
    elif len(name) > MAX_LABEL:
        yield path, invalid_value(key, f"name part must be no more than {MAX_LABEL} bytes")
    elif not is_label_value(name):
        why = "name part must consist of letters, digits, '-', '_' or '.', and start and end with a letter or digit"
        yield path, invalid_value(key, why)


def of_label_value(value: object, path: str) -> Faults:
    """The faults of a label's value; values of another type than text are the schema's."""
    if isinstance(value, str) and value:
        why = "a valid label must consist of letters, digits, '-', '_' or '.', and start and end with a letter or digit"
        yield from _of_text(value, path, f"{MAX_LABEL} bytes", is_label_value, why)


def of_label_name(name: str, path: str) -> Faults:
    """The faults of a name that must be a DNS label."""
    why = "a lowercase RFC 1123 label must have lower case letters, digits and '-' only"
    yield from _of_text(name, path, f"{MAX_LABEL} characters", is_label, why)


def of_subdomain(name: str, path: str) -> Faults:
    """The faults of a name that must be a DNS subdomain."""
    why = "a lowercase RFC 1123 subdomain must have lower case letters, digits, '-' and '.' only"
    yield from _of_text(name, path, f"{MAX_SUBDOMAIN} characters", is_subdomain, why)


def _of_text(text: str, path: str, most: str, is_valid: Callable[[str], bool], why: str) -> Faults:
    if len(text) > int(most.split(maxsplit=1)[0]):
        yield path, invalid_value(text, f"must be no more than {most}")
    elif not is_valid(text):
        yield path, invalid_value(text, why)


# -- pods --------------------------------------------------------------------------------------------------------


def of_pod(spec: Json, path: str) -> Faults:
    """Yield the faults of a pod's spec, or of that of a template. Raises WireError for a value of a wrong type."""
    containers = objects(spec, "containers", path)
    if not containers:
        yield f"{path}.containers", "Required value"
    claims = objects(spec, "resourceClaims", path)
    yield from _of_claims(claims)
    known = {entry.get("name") for entry, _ in claims}
    yield from _names(containers)
    for container, where in (*containers, *objects(spec, "initContainers", path)):
        yield from _of_container(container, where, known)
    yield from one_of(spec, "restartPolicy", POLICIES, path)
    yield from of_labels(get(spec, "nodeSelector", dict, path, {}), f"{path}.nodeSelector")
    for toleration, where in objects(spec, "tolerations", path):
        yield from _of_toleration(toleration, where)
    yield from _of_gates(spec, path)
    yield from _of_affinity(get(spec, "affinity", dict, path, {}), f"{path}.affinity")
    for constraint, where in objects(spec, "topologySpreadConstraints", path):
        yield from _of_spread(constraint, where)


def of_pod_change(old: Json, new: Json) -> Faults:
    """Yield what a write may not change in the spec of a pod that exists."""
    gates = [{gate.get("name") for gate, _ in objects(spec, "schedulingGates", "spec")} for spec in (old, new)]
    if added := sorted(map(str, gates[1] - gates[0])):
        why = f"Forbidden: only deletion is allowed, but found new scheduling gate '{added[0]}'"
        yield "spec.schedulingGates[0].name", why
    before, after = old.get("tolerations") or [], new.get("tolerations") or []
    if any(toleration not in after for toleration in before):
        yield "spec.tolerations", "Forbidden: existing toleration can not be modified except its tolerationSeconds"
    free = (*_CHANGEABLE, *(_OF_GATED if gates[0] else ()))
    kept = [_immutable(spec, free) for spec in (old, new)]
    changed = sorted(field for field in kept[0].keys() | kept[1].keys() if kept[0].get(field) != kept[1].get(field))
    if changed:
        yield "spec", f"Forbidden: {_MUTABLE}, not {', '.join(f'`spec.{field}`' for field in changed)}"


def _immutable(spec: Json, free: Sequence[str]) -> Json:
    kept = {field: value for field, value in spec.items() if field not in free}
    for field in ("containers", "initContainers"):
        found = objects(spec, field, "spec")
        kept[field] = [{key: value for key, value in one.items() if key != "image"} for one, _ in found]
    return kept


def _of_claims(claims: list[tuple[Json, str]]) -> Faults:
    for entry, where in claims:
        fields = ("resourceClaimName", "resourceClaimTemplateName")
        given = [field for field in fields if entry.get(field)]
        if len(given) != 1:
            yield where, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
        for field in given:
            yield from of_subdomain(string(entry, field, where), f"{where}.{field}")
    yield from _names(claims)


def _of_gates(spec: Json, path: str) -> Faults:
    gates = [(string(gate, "name", where), where) for gate, where in objects(spec, "schedulingGates", path)]
    for name, where in gates:
        yield from of_label_key(name, where)
    yield from _repeated(gates)
    if gates and spec.get("nodeName"):
        yield f"{path}.nodeName", "Forbidden: cannot be set until all schedulingGates have been cleared"


def _of_container(container: Json, path: str, known: set[object]) -> Faults:
    if not string(container, "image", path):
        yield f"{path}.image", "Required value"
    where = f"{path}.resources"
    resources = get(container, "resources", dict, path, {})
    seen: set[object] = set()
    for claim, at in objects(resources, "claims", where):
        if claim.get("name") not in known:
            yield at, f"Not found: {shown(claim.get('name'))}: must be one of the names in pod.spec.resourceClaims"
        identity = claim.get("name"), claim.get("request")
        if identity in seen:
            yield at, f"Duplicate value: {quoted(claim.get('name'))}"
        seen.add(identity)
    yield from _of_resources(resources, where)


def _of_resources(resources: Json, path: str) -> Faults:
    limits, requests = (get(resources, field, dict, path, {}) for field in ("limits", "requests"))
    for field, amounts in (("limits", limits), ("requests", requests)):
        for name, value in amounts.items():
            yield from _of_amount(name, value, f"{path}.{field}[{name}]")
    for name, wanted in requests.items():
        limit = limits.get(name)
        if limit is None:
            if "/" in name:
                problem = f"Required value: Limit must be set for non overcommitable resources ({name})"
                yield f"{path}.limits", problem
            continue
        asked, most = quantity(wanted, f"{path}.requests[{name}]"), quantity(limit, f"{path}.limits[{name}]")
        if "/" in name and asked.nanos != most.nanos:
            yield f"{path}.requests", invalid_value(str(wanted), f"must be equal to {name} limit of {limit}")
        elif asked.nanos > most.nanos:
            why = f"must be less than or equal to {name} limit of {limit}"
            yield f"{path}.requests", invalid_value(str(wanted), why)


def _of_amount(name: str, value: object, path: str) -> Faults:
    found = quantity(value, path)
    if "/" not in name and name not in _NATIVE and not name.startswith("hugepages-"):
        yield path, invalid_value(name, "must be a standard resource type or fully qualified")
    if found.nanos < 0:
        yield path, invalid_value(str(value), "must be greater than or equal to 0")
    elif "/" in name and found.nanos % 10**9:
        yield path, invalid_value(str(value), "must be an integer")


def _of_toleration(toleration: Json, where: str) -> Faults:
    key, operator = string(toleration, "key", where), string(toleration, "operator", where)
    if key:
        yield from of_label_key(key, f"{where}.key")
    yield from one_of(toleration, "operator", ("Equal", "Exists"), where)
    yield from one_of(toleration, "effect", EFFECTS, where)
    value = string(toleration, "value", where)
    if operator == "Exists" and value:
        yield f"{where}.operator", invalid_value(value, "value must be empty when `operator` is 'Exists'")
    elif operator in ("", "Equal"):
        yield from of_label_value(value, f"{where}.value")
        if not key:
            yield f"{where}.operator", invalid_value(operator, "operator must be Exists when `key` is empty")
    effect = string(toleration, "effect", where)
    if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
        why = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        yield f"{where}.effect", invalid_value(effect, why)


def _of_affinity(affinity: Json, path: str) -> Faults:
    required, preferred = (f"{word}DuringSchedulingIgnoredDuringExecution" for word in ("required", "preferred"))
    at = f"{path}.nodeAffinity"
    nodes = get(affinity, "nodeAffinity", dict, path, {})
    if nodes.get(required) is not None:
        yield from of_node_selector(get(nodes, required, dict, at, {}), f"{at}.{required}")
    for term, where in objects(nodes, preferred, at):
        yield from _of_node_term(get(term, "preference", dict, where, {}), f"{where}.preference")
    for field in ("podAffinity", "podAntiAffinity"):
        at, pods = f"{path}.{field}", get(affinity, field, dict, path, {})
        weighted = [
            (get(term, "podAffinityTerm", dict, where, {}), f"{where}.podAffinityTerm")
            for term, where in objects(pods, preferred, at)
        ]
        for term, where in (*objects(pods, required, at), *weighted):
            yield from _of_topology_key(term, where)


def of_node_selector(selector: Json, path: str) -> Faults:
    """Yield the faults of a NodeSelector."""
    terms = objects(selector, "nodeSelectorTerms", path)
    if not terms:
        yield f"{path}.nodeSelectorTerms", "Required value: must have at least one node selector term"
    for term, where in terms:
        yield from _of_node_term(term, where)


def _of_node_term(term: Json, path: str) -> Faults:
    for expression, where in objects(term, "matchExpressions", path):
        yield from of_label_key(string(expression, "key", where), f"{where}.key")
        operator, count = expression.get("operator"), len(get(expression, "values", list, where, []))
        if operator in _WITH_VALUES and not count:
            yield f"{where}.values", "Required value: must be specified when `operator` is 'In' or 'NotIn'"
        elif operator in _WITHOUT_VALUES and count:
            why = "Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            yield f"{where}.values", why
        elif operator in _NUMERIC and count != 1:
            yield f"{where}.values", "Required value: must be specified single value when `operator` is 'Lt' or 'Gt'"
        elif operator not in (*_WITH_VALUES, *_WITHOUT_VALUES, *_NUMERIC):
            yield f"{where}.operator", invalid_value(operator, "not a valid selector operator")


def _of_spread(constraint: Json, where: str) -> Faults:
    skew = get(constraint, "maxSkew", int, where, 0)
    if skew < 1:
        yield f"{where}.maxSkew", invalid_value(skew, "must be greater than zero")
    yield from _of_topology_key(constraint, where)
    yield from one_of(constraint, "whenUnsatisfiable", _UNSATISFIABLE, where)


def _of_topology_key(obj: Json, where: str) -> Faults:
    key = string(obj, "topologyKey", where)
    if not key:
        yield f"{where}.topologyKey", "Required value: can not be empty"
    else:
        yield from of_label_key(key, f"{where}.topologyKey")


def _names(named: list[tuple[Json, str]]) -> Faults:
    names = [(string(item, "name", where), f"{where}.name") for item, where in named]
    for name, where in names:
        yield from of_label_name(name, where) if name else [(where, "Required value")]
    yield from _repeated((name, where) for name, where in names if name)


def _repeated(values: Iterable[tuple[str, str]]) -> Faults:
    """The values that came before, each with its path."""
    seen: set[str] = set()
    for value, where in values:
        if value in seen:
            yield where, f"Duplicate value: {quoted(value)}"
        seen.add(value)


def one_of(obj: Json, field: str, known: Sequence[str], path: str) -> Faults:
    """The fault of a field whose value is none of the known ones."""
    value = obj.get(field)
    if value and value not in known:
        supported = ", ".join(map(quoted, known))
        yield f"{path}.{field}", f"Unsupported value: {quoted(value)}: supported values: {supported}"
