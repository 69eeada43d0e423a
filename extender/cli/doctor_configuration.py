"""The findings of `berth doctor` about the configuration of kube-scheduler."""

from __future__ import annotations

import re
from collections.abc import Iterator

from extender.cli.doctor_cluster import DoctorFinding
from extender.model import SCHEDULER, WireError, one_line
from extender.policy import Policy
from extender.wire import Json, get, many, one_value

_SHORT_SECONDS = 2.0  # doctor warns of a shorter httpTimeout for filter
_BIND_SECONDS = 10.0  # by which httpTimeout for bind exceeds binding_wait_seconds (docs/policy.md)
_COMPARE = "compare with scheduler-config/berth-scheduler.yaml"
_IN_TREE_POINTS = ("preFilter", "filter", "postFilter", "reserve", "preBind")  # of the plugin DynamicResources
_DURATION, _UNITS = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)"), {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
MOST_CONFIGURATION = 1024 * 1024  # bytes
_DEFAULT = Policy()


def checked(content: bytes | str, where: str) -> Json:
    """Return the KubeSchedulerConfiguration in `content`. Raises WireError if it is none."""
    config = one_value(content, where, MOST_CONFIGURATION)
    if type(config) is not dict or config.get("kind") != "KubeSchedulerConfiguration":
        raise WireError(where, "must be a KubeSchedulerConfiguration")
    return config


def configuration(
    content: bytes | str, where: str = "the scheduler configuration", policy: Policy = _DEFAULT
) -> Iterator[DoctorFinding]:
    """Yield the mistakes in a KubeSchedulerConfiguration beside this policy. Raises WireError if `content` is none."""
    config = checked(content, where)
    profiles = [p for p, _ in objects_of(config, "profiles", where) if p.get("schedulerName") == SCHEDULER]
    yield from _sampling(config, profiles)
    for profile in profiles:
        yield from _in_tree_plugin(profile, where)
    extenders = [one for one, _ in objects_of(config, "extenders", where)]
    if not any(e.get("filterVerb") for e in extenders) or not any(e.get("bindVerb") for e in extenders):
        yield DoctorFinding(
            "error",
            "no extender has filterVerb and bindVerb",
            "kube-scheduler sends Berth no filter or bind calls",
            _COMPARE,
        )
    for one in extenders:
        yield from _extender_fields(one)
        yield from _extender_timeouts(one, policy)


def _sampling(config: Json, profiles: list[Json]) -> Iterator[DoctorFinding]:
    """Yield an error if kube-scheduler looks for a feasible node among a sample of the nodes."""
    share = next(
        (p["percentageOfNodesToScore"] for p in profiles if "percentageOfNodesToScore" in p),
        config.get("percentageOfNodesToScore"),
    )
    if share != 100:  # noqa: PLR2004 - percent
        yield DoctorFinding(
            "error",
            f"percentageOfNodesToScore is {one_line(str(share))}",
            "kube-scheduler sends Berth a sample of the nodes, which may lack the nodes with the right GPUs",
            _COMPARE,
        )


def _in_tree_plugin(profile: Json, where: str) -> Iterator[DoctorFinding]:
    """Yield an error if a profile leaves the in-tree plugin on."""
    plugins = get(profile, "plugins", dict, f"{where}: profiles", {})
    names = {point: [d.get("name") for d in _disabled(plugins, point, where)] for point in plugins}
    off = {point for point, disabled in names.items() if "DynamicResources" in disabled or "*" in disabled}
    missing = [] if "multiPoint" in off else [point for point in _IN_TREE_POINTS if point not in off]
    if missing:
        yield DoctorFinding(
            "error",
            f"DynamicResources is on at {', '.join(missing)}",
            "the in-tree plugin would allocate the claims before Berth",
            _COMPARE,
        )


def _extender_fields(one: Json) -> Iterator[DoctorFinding]:
    """Yield the fields of an extender entry that have a wrong value, other than time-outs."""
    for field, wanted, why in (
        ("nodeCacheCapable", True, "kube-scheduler sends whole Node objects: bodies of tens of megabytes"),
        ("ignorable", False, "kube-scheduler binds pods without devices while Berth is down"),
    ):
        if one.get(field, False) is not wanted:
            yield DoctorFinding(
                "error", f"extender {_text(one, 'urlPrefix')}: {field} is {_text(one, field)}", why, _COMPARE
            )
    if one.get("filterVerb") and not one.get("prioritizeVerb"):
        yield DoctorFinding(
            "warning",
            f"extender {_text(one, 'urlPrefix')} has no prioritizeVerb",
            "kube-scheduler chooses among the nodes of Berth's short list by in-tree scores alone",
            _COMPARE,
        )
    if one.get("managedResources"):
        yield DoctorFinding(
            "error",
            f"extender {_text(one, 'urlPrefix')} has managedResources",
            "kube-scheduler does not call Berth for pods with claims, because they name no resource",
            _COMPARE,
        )


def _extender_timeouts(one: Json, policy: Policy) -> Iterator[DoctorFinding]:
    """Yield the time-outs of an extender entry that are too short for its verbs."""
    timeout = _seconds(one.get("httpTimeout"))
    problem = f"extender {_text(one, 'urlPrefix')}: httpTimeout is {_text(one, 'httpTimeout')}"
    if one.get("filterVerb") and timeout < _SHORT_SECONDS:
        yield DoctorFinding(
            "warning",
            problem,
            "the first filter call for new pod requirements takes longer on thousands of nodes; "
            "kube-scheduler then retries the pod",
            _COMPARE,
        )
    if one.get("bindVerb") and timeout < policy.binding_wait_seconds + _BIND_SECONDS:
        wanted_seconds = f"{policy.binding_wait_seconds + _BIND_SECONDS:g}s"
        yield DoctorFinding(
            "error",
            f"{problem}, shorter than {wanted_seconds}: binding_wait_seconds of the policy and 10 s",
            "kube-scheduler gives up a bind that Berth still carries out, and may give the node to other pods",
            f"set httpTimeout: {wanted_seconds} in the bind entry, or lower binding_wait_seconds",
        )


def objects_of(obj: Json, key: str, where: str) -> tuple[tuple[Json, str], ...]:
    """Return the objects of a list, each with its place. Raises WireError."""
    return many(obj, key, f"{where}: ", lambda item, path: (item, path))


def _disabled(plugins: Json, point: str, where: str) -> list[Json]:
    plan = get(plugins, point, dict, f"{where}: profiles.plugins", {})
    return [one for one, _ in objects_of(plan, "disabled", f"{where}: profiles.plugins.{point}")]


def _text(obj: Json, field: str) -> str:
    return one_line(str(obj.get(field)))


def _seconds(text: object) -> float:
    """Return a Go duration such as 1m30s in seconds; kube-scheduler's default, 5 s, for any other text."""
    parts = _DURATION.findall(str(text))
    is_duration = parts and "".join(number + unit for number, unit in parts) == text
    return sum(float(number) * _UNITS[unit] for number, unit in parts) if is_duration else 5.0
