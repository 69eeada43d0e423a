"""The sentence in which a scheduler says why a pod waits: its parts, and the sentence without the names in it.

kube-scheduler writes "0/9 nodes are available: 6 Insufficient cpu, 3 node(s) didn't match pod anti-affinity rules.
preemption: ...".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from extender.api.reasons import Code

_HEAD = re.compile(r"[0-9]+/[0-9]+ nodes (are )?available(: )?")
_NEXT, _COUNT = re.compile(r", (?=[0-9]+ )"), re.compile(r"[0-9]+ ")
_OF_ONE_POD = re.compile(r'"[^"]*"|[0-9]+')  # names and numbers that pods with one reason do not share
_INSUFFICIENT = "Insufficient "  # before a resource
_LOOKED_AT = (  # texts of kube-scheduler, and those of Berth that do not begin with a name
    _INSUFFICIENT,
    "Too many pods",
    "cannot allocate all claims",
    "node(s) had untolerated taint",
    "node(s) didn't match Pod's node affinity",
    "node(s) were unschedulable",
    *(code.text.partition("{")[0] for code in Code if not code.text.startswith("{")),
)
_OTHERS = (  # beginnings of texts of kube-scheduler's other plugins, without names
    "node(s) didn't have free ports for the requested pod ports",
    "node(s) didn't match pod affinity rules",
    "node(s) didn't match pod anti-affinity rules",
    "node(s) didn't satisfy existing pods anti-affinity rules",
    "node(s) didn't match pod topology spread constraints",
    "node(s) had volume node affinity conflict",
    "node(s) exceed max volume count",
    "node(s) had no available volume zone",
    "node(s) had no available disk",
    "node(s) didn't find available persistent volumes to bind",
    "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
    "node(s) did not have enough free storage",
    "pod has unbound immediate PersistentVolumeClaims",
    "persistentvolumeclaim",
    "waiting for ephemeral volume controller to create the persistentvolumeclaim",
    "waiting for resource claim",
)
_LEFT_OUT = "a reason with names, which this file does not have"


def other_reason(told: str) -> str:
    """The part of a scheduler's sentence that is about no node's room, devices, labels or taints; '' without one."""
    return ", ".join(_others(told))


def key_of_others(told: str) -> frozenset[str]:
    """What pods with one other reason have in common."""
    return frozenset(_OF_ONE_POD.sub("", part) for part in _others(told))


def without_names(told: str, resource: Callable[[str], str]) -> str:
    """The sentence with only the texts that are known here. `resource` gives the text for the name of a resource."""
    head, parts = _split(told)
    known = []
    for part in parts:
        count = _COUNT.match(part)
        text = part[count.end() :] if count else part
        found = next((one for one in (*_LOOKED_AT, *_OTHERS) if text.startswith(one)), _LEFT_OUT)
        if found.endswith(" "):  # a name follows
            found += resource(text.removeprefix(found)) if found == _INSUFFICIENT else "…"
        known.append((count[0] if count else "") + found)
    return head + ", ".join(known)


def _others(told: str) -> Iterator[str]:
    parts = (_COUNT.sub("", part, count=1) for part in _split(told)[1])
    return (part for part in parts if not part.startswith(_LOOKED_AT))


def _split(told: str) -> tuple[str, list[str]]:
    """The beginning that counts nodes, and the parts, with their counts."""
    told = told.partition(" preemption: ")[0].rstrip(".")
    head = _HEAD.match(told)
    rest = told[head.end() :] if head else told
    return head[0] if head else "", [part for part in _NEXT.split(rest) if part]
