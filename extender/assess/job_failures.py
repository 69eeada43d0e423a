"""What restarts do to Jobs: the Job controller counts a pod that is deleted as failed, and creates it again late.

`kubectl delete` sets no condition DisruptionTarget, so a podFailurePolicy that ignores disruptions does not help.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from extender.api.fields import Json, inner, integer
from extender.api.object_meta import ObjectKey, key_of
from extender.base.text_limits import counted, first_few

JOB = "Job"
_DEFAULT_LIMIT = 6  # failures, if a Job does not say how many
_MAX_NAMED = 3  # Jobs in a sentence


class JobLimit(NamedTuple):
    """How many pods of a Job may fail, and how many did. `is_known`: nothing else decides, such as its indexes."""

    limit: int
    failed: int
    is_known: bool


def job_limit(obj: Json) -> tuple[ObjectKey, JobLimit]:
    """The limit of a Job. Raises WireError."""
    spec, failed = inner(obj, "spec", ""), integer(inner(obj, "status", ""), "failed", "status")
    limit = integer(spec, "backoffLimit", "spec") if "backoffLimit" in spec else _DEFAULT_LIMIT
    is_known = not spec.keys() & {"podFailurePolicy", "backoffLimitPerIndex"}
    return key_of(inner(obj, "metadata", "")), JobLimit(limit, failed, is_known)


def job_failures(deleted: Iterable[ObjectKey], limits: Mapping[ObjectKey, JobLimit]) -> str:
    """What is said of Jobs, of which each is given once for each pod that is deleted; '' without Jobs."""
    pods = Counter(deleted)
    if not pods:
        return ""
    fails, unknown = list[str](), list[str]()
    for key, count in sorted(pods.items()):
        of = limits.get(key)
        if of is None or not of.is_known:
            unknown.append(f"{JOB} {key}")
        elif of.failed + count > of.limit:
            fails.append(f"{JOB} {key} (backoffLimit {of.limit}, {counted(of.failed, 'pod')} failed before)")
    said = [f"{first_few(fails, _MAX_NAMED)} {'fails' if len(fails) == 1 else 'fail'} then"] * bool(fails)
    said += [f"{first_few(unknown, _MAX_NAMED)} may fail, look at backoffLimit"] * bool(unknown)
    told = f": {'; '.join(said)}" if said else ""
    return (
        f"a Job creates deleted pods again some seconds later, when others may have their places, and counts them as "
        f"failed{told}"
    )
