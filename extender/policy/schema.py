"""The policy's schema. Every field has a unit or range, a default and its effect; docs/policy.md is made from it."""

from __future__ import annotations

from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from extender.model.errors import BerthError


class PolicyError(BerthError):
    """The policy does not fit the schema; the text names each field and value."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Weights(_Strict):
    """How much each part of the score counts; only the ratios matter. 0 switches a part off."""

    link: float = Field(5, ge=0, le=100, description="predicted ring bandwidth over the best in the fleet")
    headroom: float = Field(3, ge=0, le=100, description="how well device memory fits what is asked")
    fragmentation: float = Field(3, ge=0, le=100, description="what is left whole for the next job")
    packing: float = Field(1, ge=0, le=100, description="prefer nodes that are in use already")
    health: float = Field(2, ge=0, le=100, description="avoid devices that report trouble")
    preference: float = Field(10, ge=0, le=100, description="rank of the alternative taken in firstAvailable")


class Intent(_Strict):
    """What a pod wants of topology when its annotations say nothing."""

    topology: Literal["required", "preferred", "none"] = Field(
        "preferred", description="required filters nodes without an NVLink ring, preferred scores, none ignores"
    )


class Policy(_Strict):
    """The whole policy."""

    weights: Weights = Field(Weights(), description="parts of the score")
    defaults: Intent = Field(Intent(), description="intent of pods without annotations")
    candidates: int = Field(32, ge=1, le=512, description="nodes answered by filter, best first; 1 lets Berth decide alone")
    headroom: Literal["tight", "roomy"] = Field(
        "tight", description="tight prefers the smallest sufficient GPU, roomy the largest"
    )
    packing: Literal["pack", "spread"] = Field("pack", description="pack fills nodes in use first, spread empty ones")
    hold_seconds: float = Field(15, gt=0, le=300, description="seconds that filter holds its first choice in memory")
    search_steps: int = Field(20_000, ge=100, le=1_000_000, description="steps of one search on one node before it gives up")


def load_policy(text: str) -> Policy:
    """A policy from YAML. Raises PolicyError naming every field that is wrong."""
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise PolicyError(f"the policy is not YAML: {error}") from error
    if found is None:
        return Policy()
    if not isinstance(found, dict):
        raise PolicyError(f"the policy must be a mapping, is {type(found).__name__}")
    try:
        return Policy.model_validate(found)
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, item['loc']))}: {item['msg']} (is {item['input']!r})" for item in error.errors()]
        raise PolicyError("; ".join(lines)) from error
