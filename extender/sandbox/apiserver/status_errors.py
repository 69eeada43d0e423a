"""Errors with the messages of kube-apiserver."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """An HTTP status with a Kubernetes Status body."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        self.code = code
        self.reason = reason
        self.message = message
        super().__init__(message)

    def body(self) -> dict[str, Any]:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }


def not_found(resource: str, name: str) -> ApiError:
    return ApiError(404, "NotFound", f'{resource} "{name}" not found')


def conflict(resource: str, name: str, why: str) -> ApiError:
    return ApiError(409, "Conflict", f'Operation cannot be fulfilled on {resource} "{name}": {why}')


def invalid(resource: str, name: str, why: str) -> ApiError:
    return ApiError(422, "Invalid", f'{resource} "{name}" is invalid: {why}')


def gone(version: int) -> ApiError:
    return ApiError(410, "Expired", f"too old resource version: {version}")
