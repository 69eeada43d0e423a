"""The validation of fields that a client asks for by the parameter fieldValidation. Source: pkg/endpoints/handlers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from extender.api_schema import field_faults
from extender.sandbox.apiserver.registry import Resource
from extender.sandbox.apiserver.status_errors import ApiError
from extender.sandbox.apiserver.versioned_store import Json

_DIRECTIVE = "$"  # begins the names of the directives of a strategic merge patch


def check_fields(resource: Resource, body: Json, query: Mapping[str, str], *, is_patch: bool) -> list[str]:
    """Return the warnings about unknown fields of an object or patch of it, as header values.

    Raises ApiError for a value of a wrong type, and for an unknown field if the client wants Strict.
    """
    wanted = query.get("fieldValidation")
    if wanted not in ("Strict", "Warn"):
        return []
    body = _without_directives(body) if is_patch else body
    faults = list(field_faults({**body, "apiVersion": resource.api_version, "kind": resource.kind}))
    wrong = [f"{fault.path}: {fault.problem}" for fault in faults if fault.unknown is None]
    if wrong:
        raise _refused(resource, ", ".join(wrong), is_patch=is_patch)
    unknown = [f"unknown field {_quoted(fault.path)}" for fault in faults]
    if unknown and wanted == "Strict":
        raise _refused(resource, f"strict decoding error: {', '.join(unknown)}", is_patch=is_patch)
    return [f"299 - {_quoted(text)}" for text in unknown]


def _refused(resource: Resource, problem: str, *, is_patch: bool) -> ApiError:
    if is_patch:
        return ApiError(422, "Invalid", f' "" is invalid: patch: Invalid value: {problem}')
    decoded = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
    return ApiError(400, "BadRequest", f"{decoded}: {problem}")


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode()


def _without_directives(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_directives(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: _without_directives(inner) for key, inner in value.items() if not key.startswith(_DIRECTIVE)}
