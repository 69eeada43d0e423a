"""JSON merge patch, and the part of strategic merge patch that claims need: lists keyed by uid, $patch: delete."""

from __future__ import annotations

from typing import Any


def merge(target: Any, patch: Any) -> Any:
    """Return the target after a JSON merge patch (RFC 7396)."""
    return _merge(target, patch, lists_by_uid=False)


def strategic(target: Any, patch: Any) -> Any:
    """Return the target after a strategic merge patch: lists of objects that have a uid are merged by uid."""
    return _merge(target, patch, lists_by_uid=True)


def _merge(target: Any, patch: Any, *, lists_by_uid: bool) -> Any:
    if not isinstance(patch, dict):
        return patch
    base = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            base.pop(key, None)
        elif (
            lists_by_uid and isinstance(value, list) and all(isinstance(item, dict) and "uid" in item for item in value)
        ):
            base[key] = _by_uid(base.get(key) or [], value)
        else:
            base[key] = _merge(base.get(key), value, lists_by_uid=lists_by_uid)
    return base


def _by_uid(items: list[Any], changes: list[Any]) -> list[Any]:
    found = {item["uid"]: item for item in items}
    for change in changes:
        if change.get("$patch") == "delete":
            found.pop(change["uid"], None)
        else:
            found[change["uid"]] = {**found.get(change["uid"], {}), **change}
    return list(found.values())
