"""Hypothetical pods: the pods that users' manifests would create, with the claims from their templates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from extender.model import Claim, Pod, WireError, one_line
from extender.wire.core import decode_pod
from extender.wire.fields import Json, get
from extender.wire.object_lists import checked
from extender.wire.pod_templates import pod_templates
from extender.wire.resource_claims import decode_claim

_HYPOTHETICAL_UID = "imagined"


class HypotheticalPod(NamedTuple):
    """A pod that a manifest would create, and its claims."""

    pod: Pod
    claims: tuple[Claim, ...]


def hypothetical_pods(objects: Iterable[Json]) -> list[HypotheticalPod]:
    """The pods that these objects would create. Raises WireError if a claim template is missing or there is no pod."""
    known = [checked(obj, f"objects[{position}]") for position, obj in enumerate(objects)]
    templates = {_key(o): o for o in known if o.get("kind") == "ResourceClaimTemplate"}
    claims = {_key(o): decode_claim(_placed(o)) for o in known if o.get("kind") == "ResourceClaim"}
    found = [_hypothetical(pod, templates, claims) for o in known for pod in _pods(o)]
    if not found:
        kinds = ", ".join(sorted({str(obj.get("kind")) for obj in known}))
        raise WireError("kind", f"none of {one_line(kinds) or 'no objects'} creates pods")
    return found


def _pods(obj: Json) -> Iterator[Json]:
    namespace, name = _key(obj)
    for template in pod_templates(obj):
        made = f"{name}-{template.role}" if template.role else name
        metadata = {**(template.pod.get("metadata") or {}), "namespace": namespace, "name": made}
        yield {**template.pod, "metadata": metadata}


def _hypothetical(
    obj: Json, templates: dict[tuple[str, str], Json], claims: dict[tuple[str, str], Claim]
) -> HypotheticalPod:
    namespace, name = _key(obj)
    uid = f"{_HYPOTHETICAL_UID}/{namespace}/{name}"
    statuses, mine = [], []
    for entry in decode_pod(obj).claims:
        if not entry.template_name:
            mine += [claim for key, claim in claims.items() if key == (namespace, entry.claim_name)]
            continue
        template = templates.get((namespace, entry.template_name))
        if template is None:
            raise WireError(
                f"pod {namespace}/{name}: spec.resourceClaims",
                f"ResourceClaimTemplate {namespace}/{entry.template_name} is not among the given objects",
            )
        generated = f"{name}-{entry.name}"
        owner = [{"kind": "Pod", "name": name, "uid": uid, "controller": True}]
        metadata = {"namespace": namespace, "name": generated, "uid": f"{uid}/{entry.name}", "ownerReferences": owner}
        spec = get(get(template, "spec", dict, "", {}), "spec", dict, ".spec", {})
        mine.append(decode_claim({"metadata": metadata, "spec": spec}))
        statuses.append({"name": entry.name, "resourceClaimName": generated})
    made = {**obj, "metadata": {**obj["metadata"], "uid": uid}, "status": {"resourceClaimStatuses": statuses}}
    return HypotheticalPod(decode_pod(made), tuple(mine))


def _placed(obj: Json) -> Json:
    """The object with its name and namespace filled in (default: 'default')."""
    namespace, name = _key(obj)
    return {**obj, "metadata": {**(obj.get("metadata") or {}), "namespace": namespace, "name": name}}


def _key(obj: Json) -> tuple[str, str]:
    metadata = get(obj, "metadata", dict, "", {})
    return str(metadata.get("namespace") or "default"), str(metadata.get("name") or metadata.get("generateName") or "")
