"""The policy's schema. Every field has a unit or range, a default and its effect; docs/policy.md is made from it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Literal

from cachetools import LRUCache
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator

from extender.model import BerthError, WireError, one_line, shown
from extender.wire import Places, one_value

MOST_POLICY = 16 * 1024  # bytes of a policy's text
MOST_EFFECTIVE = 256  # sets of overrides remembered: pods choose their classes, and with them any subset
_MOST_FAULTS = 5  # told in one message


class PolicyError(BerthError):
    """The policy does not fit the schema; the text names each field and value."""


class UnreadablePolicy(PolicyError):
    """The text is no policy at all: not UTF-8, no YAML, more than one document, beyond a limit."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_boolean(cls, value: object) -> object:
        """No setting is a boolean, and YAML's `yes` must not count as 1."""
        if isinstance(value, bool):
            raise ValueError("must not be true or false")  # noqa: TRY004 - pydantic reports ValueErrors
        return value


class Weights(_Strict):
    """How much each part of the score counts; only the ratios matter. 0 switches a part off."""

    link: float = Field(8, ge=0, le=100, description="predicted ring bandwidth over the best in the fleet")
    headroom: float = Field(5, ge=0, le=100, description="how well device memory fits what is asked")
    fragmentation: float = Field(3, ge=0, le=100, description="what is left whole for the next job")
    packing: float = Field(1, ge=0, le=100, description="prefer nodes that are in use already")
    health: float = Field(2, ge=0, le=100, description="avoid devices that report trouble")
    preference: float = Field(10, ge=0, le=100, description="rank of the alternative taken in firstAvailable")
    clique: float = Field(5, ge=0, le=100, description="same NVLink clique, rack or spine as the pod's group")


class Intent(_Strict):
    """What a pod wants of topology when its annotations say nothing."""

    topology: Literal["required", "preferred", "none"] = Field(
        "preferred", description="required filters nodes without an NVLink ring, preferred scores, none ignores"
    )


Headroom = Literal["tight", "roomy"]
Packing = Literal["pack", "spread"]
Drift = Literal["penalise", "filter", "ignore"]


class Override(_Strict):
    """What differs for pods of some namespaces or with claims of some classes. Both given: both must hold."""

    namespaces: tuple[str, ...] = Field((), description="namespaces it is for; none named: all")
    classes: tuple[str, ...] = Field(
        (), description="DeviceClasses, one of which a claim must ask for; none named: all"
    )
    weights: Weights | None = Field(None, description="weights that differ; those not named stay")
    defaults: Intent | None = Field(None, description="intent of pods without annotations")
    headroom: Headroom | None = Field(None, description="see headroom")
    packing: Packing | None = Field(None, description="see packing")
    drift: Drift | None = Field(None, description="see drift")

    def applies(self, namespace: str, classes: frozenset[str]) -> bool:
        """Whether it is for a pod."""
        return (not self.namespaces or namespace in self.namespaces) and (
            not self.classes or not classes.isdisjoint(self.classes)
        )


class Policy(_Strict):
    """The whole policy."""

    weights: Weights = Field(Weights(), description="parts of the score")
    defaults: Intent = Field(Intent(), description="intent of pods without annotations")
    candidates: int = Field(
        32, ge=1, le=512, description="nodes answered by filter, best first; 1 lets Berth decide alone"
    )
    headroom: Headroom = Field("tight", description="tight prefers the smallest sufficient GPU, roomy the largest")
    packing: Packing = Field("pack", description="pack fills nodes in use first, spread empty ones")
    hold_seconds: float = Field(15, gt=0, le=300, description="seconds that filter holds its first choice in memory")
    binding_timeout_seconds: float = Field(
        600, ge=1, le=86_400, description="seconds for binding conditions (in-tree: bindingTimeout)"
    )
    binding_wait_seconds: float = Field(
        20,
        ge=1,
        le=86_400,
        description="of these, seconds that one bind call waits: at least 10 below httpTimeout of the scheduler's bind entry",
    )
    search_steps: int = Field(
        20_000, ge=100, le=1_000_000, description="steps of one search on one node before it gives up"
    )
    evaluation_seconds: float = Field(
        0.1, ge=0.005, le=2, description="seconds that one call may evaluate claims; the rest is done in the background"
    )
    drift: Drift = Field(
        "penalise",
        description="GPUs in use that no claim holds: penalise lowers health, filter leaves them out, ignore",
    )
    live_memory_seconds: float = Field(
        900, ge=60, le=86_400, description="how old the agent's word on memory may be before it is ignored"
    )
    group_levels: tuple[str, ...] = Field(
        ("nvidia.com/gpu.clique", "topology.kubernetes.io/rack", "topology.kubernetes.io/spine"),
        max_length=8,
        description="node labels that say how near two nodes are, the nearest first",
    )
    overrides: tuple[Override, ...] = Field((), description="what differs by namespace or class; later ones win")
    _effective: LRUCache[tuple[int, ...], Policy] = PrivateAttr(default_factory=lambda: LRUCache(MOST_EFFECTIVE))

    @property
    def digest(self) -> str:
        """Equal policies have equal digests: 16 hexadecimal digits."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]

    def effective(self, namespace: str, classes: frozenset[str]) -> Policy:
        """The policy for a pod: the same object for the same overrides, for as long as it is remembered."""
        chosen = tuple(i for i, override in enumerate(self.overrides) if override.applies(namespace, classes))
        if not chosen:
            return self
        found = self._effective.get(chosen)
        if found is None:
            found = self
            for i in chosen:
                found = _overridden(found, self.overrides[i])
            self._effective[chosen] = found
        return found


def _overridden(policy: Policy, override: Override) -> Policy:
    changes: dict[str, object] = override.model_dump(include={"headroom", "packing", "drift"}, exclude_none=True)
    for name in ("weights", "defaults"):
        part: BaseModel | None = getattr(override, name)
        if part is not None:
            changes[name] = getattr(policy, name).model_copy(update=part.model_dump(exclude_unset=True))
    return policy.model_copy(update=changes)


def load_policy(content: str | bytes) -> Policy:
    """A policy from YAML. Raises PolicyError naming every field that is wrong, with its line and column."""
    places: Places = {}
    try:
        found = one_value(content, "the policy", MOST_POLICY, places)
    except WireError as error:
        raise UnreadablePolicy(str(error)) from error
    if not isinstance(found, dict):
        raise UnreadablePolicy(f"the policy must be a mapping, is {type(found).__name__}")
    if found and found.keys().isdisjoint(Policy.model_fields):
        raise UnreadablePolicy("the policy has none of a policy's fields: is it the right file?")
    try:
        return Policy.model_validate(found)
    except ValidationError as error:
        raise PolicyError(faults_of(error, places)) from error


def faults_of(error: ValidationError, places: Places) -> str:
    """What pydantic found, in one line: of each fault its place where known, the field, and the value."""
    faults = error.errors(include_url=False, include_context=False)
    told = [_fault(fault["loc"], fault["msg"], _value(fault), places) for fault in faults[:_MOST_FAULTS]]
    return "; ".join(told) + (f"; and {len(faults) - _MOST_FAULTS} more" if len(faults) > _MOST_FAULTS else "")


def _fault(loc: tuple[int | str, ...], problem: str, value: str, places: Places) -> str:
    line, column = places.get(loc) or places.get(loc[:-1]) or (0, 0)
    told = ", ".join(part for part in (value, f"line {line}, column {column}" if line else "") if part)
    return f"{one_line('.'.join(map(str, loc)))}: {problem}{f' ({told})' if told else ''}"


def _value(fault: Mapping[str, object]) -> str:
    """Of a missing field nothing: pydantic gives all that stands around it."""
    return "" if fault["type"] == "missing" else f"is {shown(fault['input'])}"
