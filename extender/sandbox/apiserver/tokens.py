"""TokenReview (authentication.k8s.io/v1) from a table of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from extender.wire import Json

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path, no password
_API = "https://kubernetes.default.svc"  # the default audience of tokens and of reviews


@dataclass(frozen=True, slots=True)
class TokenUser:
    """The account of a token, and the audiences that the token is for."""

    username: str
    audiences: tuple[str, ...] = (_API,)


def review(tokens: Mapping[str, TokenUser], body: Json) -> Json:
    """Return the TokenReview with its status, as kube-apiserver does."""
    spec = body.get("spec") or {}
    user = tokens.get(spec.get("token", ""))
    common = [] if user is None else [a for a in spec.get("audiences") or [_API] if a in user.audiences]
    status: Json = {"user": {}, "error": "[invalid bearer token, token lookup failed]"}
    if user is not None and common:
        status = {"authenticated": True, "user": {"username": user.username}, "audiences": common}
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec, "status": status}
