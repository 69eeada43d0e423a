"""Errors of API requests, as far as callers handle them differently.

ClusterError(BerthError)
 ├─ Conflict         409: the object changed, or the pod is bound already
 ├─ NotFound         404: the object does not exist
 ├─ Gone             410: the reflector must list again
 ├─ Forbidden        401, 403
 ├─ Invalid          400, 422: the server rejects the content; 422 also for a right on a part of it
 ├─ TooMany          429: the caller may retry after `retry_after` seconds, at most 5
 ├─ Unavailable      network error, time-out, 408, 5xx: the same request may succeed later
 │   ├─ NotServed    404 without the API server's Status: it does not serve the path, or a proxy answered
 │   └─ TooLong      the response is longer than the client reads
 └─ Unexpected       every other status, such as 3xx, 405 or 415: a retry does not help

Exceptions of the HTTP library do not leave this package; they are chained as causes.
"""

from __future__ import annotations

from extender.base.berth_errors import BerthError


class ClusterError(BerthError):
    """A request to the API server failed."""


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


class NotServed(Unavailable):
    """A 404 that does not prove that an object is absent: a load balancer may have answered."""


class TooLong(Unavailable):
    """The response has more bytes than the client reads. A page of a list may have fewer objects."""


class Unexpected(ClusterError):
    pass


class TooMany(ClusterError):
    """`retry_after` is in seconds, at most 5: a proxy may send hours, but a bind keeps its claim reserved."""

    def __init__(self, message: str, retry_after: float) -> None:
        self.retry_after = min(max(0.0, retry_after), _MAX_RETRY_AFTER)
        super().__init__(message)


_MAX_RETRY_AFTER = 5.0  # seconds; a bind tries 5 times within its time-out of 30 s in kube-scheduler
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
    """The error for an HTTP status other than success. The message may repeat what a user wrote: it decides nothing."""
    if status == 429:  # noqa: PLR2004 - Too Many Requests
        return TooMany(message, retry_after)
    if status in _BY_STATUS:
        return _BY_STATUS[status](message)
    if 500 <= status < 600:  # noqa: PLR2004 - server errors
        return Unavailable(message)
    return Unexpected(f"unexpected HTTP status {status}: {message}")
