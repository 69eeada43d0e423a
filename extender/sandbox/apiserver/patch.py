"""JSON merge patch, a part of JSON patch, and strategic merge patch with the merge keys of the sandbox's objects."""

from __future__ import annotations

from typing import Any

from extender.sandbox.apiserver.status_errors import ApiError
from extender.wire import Json

# The lists that a strategic merge patch merges, with the field that identifies an item (patchMergeKey in the Go types).
# A list of strings has none. All other lists are replaced.
_MERGE_KEYS = {
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "finalizers": "",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "ports": "containerPort",
    "reservedFor": "uid",
    "resourceClaimStatuses": "name",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "taints": "key",
    "topologySpreadConstraints": "topologyKey",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
_DELETED_STRINGS, _ORDER, _KEPT = "$deleteFromPrimitiveList/", "$setElementOrder/", "$retainKeys"


def merge(target: Any, patch: Any) -> Any:
    """Return the target after a JSON merge patch (RFC 7396). As the API server's, it drops nulls within lists, too."""
    if not isinstance(patch, dict):
        return [merge(None, item) if item is not None else None for item in patch] if type(patch) is list else patch
    base = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            base.pop(key, None)
        else:
            base[key] = merge(base.get(key), value)
    return base


def operations(target: Json, changes: list[Json]) -> Json:
    """Return the target after a JSON patch (RFC 6902) that sets members of objects. Raises ApiError for any other."""
    for change in changes:
        try:
            names = change["path"].split("/")[1:] if change["op"] in ("add", "replace") else ()
            target = _with(target, *names, value=change["value"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            problem = "the sandbox applies JSON patches that add or replace members of objects"
            raise ApiError(415, "UnsupportedMediaType", problem) from error
    return target


def _with(target: Any, name: str, *names: str, value: Any) -> Any:
    return {**target, name: _with(target.get(name, {}), *names, value=value) if names else value}


def strategic(target: Any, patch: Any) -> Any:
    """Return the target after a strategic merge patch. New items of a list come last."""
    if not isinstance(patch, dict):
        return patch
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    base = dict(target) if isinstance(target, dict) else {}
    if _KEPT in patch:
        base = {key: value for key, value in base.items() if key in patch[_KEPT]}
    for key, value in patch.items():
        if key.startswith(_DELETED_STRINGS):
            field = key.removeprefix(_DELETED_STRINGS)
            base[field] = [item for item in base.get(field) or [] if item not in value]
        elif key == _KEPT or key.startswith(_ORDER):
            continue
        elif value is None:
            base.pop(key, None)
        elif isinstance(value, list) and key in _MERGE_KEYS:
            base[key] = _merged_list(base.get(key) or [], value, _MERGE_KEYS[key])
        else:
            base[key] = strategic(base.get(key), value)
    return base


def _merged_list(items: list[Any], changes: list[Any], merge_key: str) -> list[Any]:
    if not merge_key:
        return list(dict.fromkeys([*items, *changes]))
    if any(change.get("$patch") == "replace" for change in changes):
        return [change for change in changes if "$patch" not in change]
    found = {item.get(merge_key): item for item in items}
    for change in changes:
        identity = change.get(merge_key)
        if change.get("$patch") == "delete":
            found.pop(identity, None)
        else:
            found[identity] = strategic(found.get(identity), change)
    return list(found.values())
