"""The pod or group that the words of `berth explain` name, such as POD, NAMESPACE/POD, pod/POD or group GROUP."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from extender.api.object_meta import ObjectKey
from extender.base.berth_errors import BerthError, WireError
from extender.base.text_limits import one_line, shown

_PODS = ("pod", "pods", "po")
_GROUPS = ("group", "groups", "gang", "gangs", "pg", "podgroup", "podgroups")
_WORKLOADS = (
    "deploy", "deployment", "deployments", "sts", "statefulset", "statefulsets", "rs", "replicaset", "replicasets",
    "ds", "daemonset", "daemonsets", "job", "jobs", "cj", "cronjob", "cronjobs", "jobset", "jobsets", "lws",
    "leaderworkerset", "leaderworkersets",
)  # fmt: skip
NODE_KINDS = ("node", "nodes", "no")
CLAIM_KINDS = ("claim", "claims", "resourceclaim", "resourceclaims", "resourceclaim.resource.k8s.io")
_OTHERS = (
    "svc", "service", "services", "ns", "namespace", "namespaces", "cm", "configmap", "configmaps", "secret", "secrets",
    "pvc", "persistentvolumeclaim", "pv", "persistentvolume", "sa", "serviceaccount", "ing", "ingress", "deviceclass",
    "resourceslice", "resourceclaimtemplate",
)  # fmt: skip
_KINDS = (*_WORKLOADS, *NODE_KINDS, *CLAIM_KINDS, *_OTHERS)


class Named(NamedTuple):
    """A pod or a group. Without a namespace its name is to be unique in the cluster."""

    is_group: bool
    namespace: str
    name: str
    kind: str = ""  # the part before the slash, if it may be a kind that explain does not take instead of a namespace

    @property
    def text(self) -> str:
        """NAMESPACE/NAME or NAME."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def group_key(self) -> ObjectKey:
        """The key of a group. Its namespace is '-', which the console knows, if none is given."""
        return ObjectKey(self.namespace or "-", self.name)

    def of_wrong_kind(self) -> BerthError | None:
        """What to name instead; None if the words can only name a pod or a group."""
        return _wrong_kind(self.kind, self.name) if self.kind else None


def explained(words: Sequence[str], namespace: str, *, has_file: bool) -> Named | None:
    """What exists and is to be explained; None if the pods come from a file. `namespace` is that of --namespace, or ''.

    Raises WireError or BerthError.
    """
    if not has_file:
        return _named(words, namespace)
    if words and words[0] == "group":
        raise WireError("explain group", "takes no -f, --policy or --narrate")
    if words and words != ["pod"]:
        raise WireError("NAMESPACE/NAME", f"does not go with -f FILE, is {shown(' '.join(words))}")
    return None


def _named(words: Sequence[str], namespace: str) -> Named:
    if not words:
        raise WireError("NAMESPACE/NAME", "is missing: name a pod, or give -f FILE")
    kind, *rest = words if len(words) > 1 or words[0] not in _PODS + _GROUPS else (words[0], "")
    given = shown(" ".join(words))
    if not rest:  # one word: NAME, NAMESPACE/NAME, KIND/NAME
        first, slash, last = kind.partition("/")
        kind, rest = (first, [last]) if slash and first in _PODS + _GROUPS else ("pod", [kind])
        if slash and "." in first and first not in CLAIM_KINDS:  # such as deployments.apps, and no namespace
            raise _wrong_kind(first, last)
    elif kind in _KINDS:
        raise _wrong_kind(kind, rest[0])
    is_group = kind in _GROUPS
    parts = rest[0].split("/")
    if kind not in _PODS + _GROUPS or len(rest) > 1 or len(parts) > 2 or not all(parts):  # noqa: PLR2004 - see Named
        raise WireError("NAMESPACE/NAME", f"must name one {'group' if is_group else 'pod'}, is {given}")
    if len(parts) == 1:
        return Named(is_group, namespace, parts[0])
    if namespace:
        raise WireError("--namespace", f"does not go with a name that has a namespace, is {shown(namespace)}")
    may_be_kind = parts[0] in _KINDS and not is_group
    return Named(is_group, parts[0], parts[1], parts[0] if may_be_kind else "")


def _wrong_kind(kind: str, name: str) -> BerthError:
    name = one_line(name)
    kind = one_line(kind)
    ways = "name one of its pods (kubectl get pods lists them), or give its manifest with -f FILE"
    if kind in _OTHERS:
        ways = "kubectl get pods lists the pods"
    if kind in NODE_KINDS:
        ways = f"berth nodes {name} shows the node"
    if kind in CLAIM_KINDS:
        ways = f"name a pod that uses the claim; berth claims {name} lists it"
    return BerthError(f"{kind} {name} is no pod and no group: {ways}")


def without_kind(name: str, kinds: Collection[str]) -> str:
    """The name of KIND/NAME for one of these kinds; anything else as it is."""
    kind, slash, rest = name.partition("/")
    return rest if slash and kind in kinds else name


def freed(names: Iterable[str], namespace: str) -> list[str]:
    """The pods of --free as NAMESPACE/NAME; a bare name or pod/NAME is a pod of this namespace, or of default."""
    found = (without_kind(name, _PODS) for name in names)
    return [name if "/" in name else f"{namespace or 'default'}/{name}" for name in found]
