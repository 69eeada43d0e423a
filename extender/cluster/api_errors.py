"""What the API server can answer, as far as somebody handles it.

ClusterError(BerthError)
 ├─ Conflict         409: the object changed, or the pod is bound already
 ├─ NotFound         404
 ├─ Gone             410: the watch must list again
 ├─ Forbidden        401, 403, and 422 for rights on subresources
 ├─ Invalid          400, 422: the server refuses the content
 ├─ TooMany          429: ask again after `retry_after` seconds, a few at most
 ├─ Unavailable      network, time-out, 408, 5xx: the same request may succeed later
 └─ Unexpected       every other status, such as 3xx, 405 or 415: repeating the request does not help

The HTTP library's own exceptions never leave this room; they are chained as causes.
"""

from __future__ import annotations

from extender.model import BerthError


class ClusterError(BerthError):
    """The API server could not do what was asked."""


class Conflict(ClusterError):
    pass


class NotFound(ClusterError):
    pass


class Gone(ClusterError):
    pass


class Forbidden(ClusterError):
    pass


class Invalid(ClusterError):
    pass


class Unavailable(ClusterError):
    pass


class Unexpected(ClusterError):
    pass


class TooMany(ClusterError):
    """`retry_after` is in seconds and capped: a claim stays assumed while a bind waits; a proxy may ask for hours."""

    def __init__(self, message: str, retry_after: float) -> None:
        self.retry_after = min(max(0.0, retry_after), _LONGEST_RETRY_AFTER)
        super().__init__(message)


_LONGEST_RETRY_AFTER = 5.0  # seconds; a bind tries five times within the 30 s that kube-scheduler gives it
_BY_STATUS: dict[int, type[ClusterError]] = {
    400: Invalid,
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    408: Unavailable,
    409: Conflict,
    410: Gone,
    422: Invalid,
}


def error_for(status: int, message: str, retry_after: float) -> ClusterError:
    """The error of an HTTP status."""
    if status == 429:  # noqa: PLR2004 - Too Many Requests
        return TooMany(message, retry_after)
    if status == 422 and "orbidden" in message:  # noqa: PLR2004 - granular authorisation answers so (1.36)
        return Forbidden(message)
    if status in _BY_STATUS:
        return _BY_STATUS[status](message)
    if status >= 500:  # noqa: PLR2004 - server errors
        return Unavailable(message)
    return Unexpected(f"unexpected HTTP status {status}: {message}")
