"""The environment of device selectors: the type of `device`, and the functions that an API server version knows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from extender.cel import types as t
from extender.cel.dra.access import INPUTS
from extender.cel.environment import Environment
from extender.cel.estimator import Size
from extender.cel.library import kubernetes_library

COST_LIMIT = 1_000_000  # units of an estimate and of an evaluation: resource.k8s.io CELSelectorExpressionMaxCost
LATEST = (1, 37)
_DEVICE = t.Type("struct", "kubernetes.DRADevice")
# resource.k8s.io limits of a device: characters of names and values, entries of a map.
_DRIVER, _DOMAIN, _ID, _VALUE, _ENTRIES = 63, 63, 32, 64, 32


@dataclass(frozen=True, slots=True)
class Dialect:
    """The CEL of one kind of expressions: stored ones (scheduling, every function) or new ones on a version."""

    version: tuple[int, int] = LATEST
    stored: bool = True
    list_types: bool = True  # feature gate DRAListTypeAttributes: the type of an attribute is dyn, otherwise any
    consumable_capacity: bool = True  # feature gate DRAConsumableCapacity; it only matters for new expressions

    @property
    def effective(self) -> tuple[int, int]:
        """New expressions may use the functions of the version before, so that a roll-back can read them."""
        return self.version if self.stored else (self.version[0], self.version[1] - 1)

    @property
    def has_includes(self) -> bool:
        """Whether expressions may call includes()."""
        return self.version >= (1, 36) and (self.stored or self.list_types)


STORED = Dialect()


@lru_cache(maxsize=16)
def environment_of(dialect: Dialect) -> Environment:
    """The environment of device selectors in a dialect."""
    attribute = t.DYN if dialect.list_types else t.ANY
    fields = {
        "driver": t.STRING,
        "attributes": t.map_of(t.STRING, t.map_of(t.STRING, attribute)),
        "capacity": t.map_of(t.STRING, t.map_of(t.STRING, t.QUANTITY)),
    }
    if dialect.stored or (dialect.consumable_capacity and dialect.version >= (1, 34)):
        fields["allowMultipleAllocations"] = t.BOOL
    return Environment(
        kubernetes_library(dialect.effective, includes=dialect.has_includes, all_versions=dialect.stored),
        variables={"device": _DEVICE},
        inputs=INPUTS,
        budget=COST_LIMIT,
        structs={_DEVICE.name: fields},
        sizes={_DEVICE.name: _field_sizes()},
    )


def _field_sizes() -> dict[str, Size]:
    value = Size(_VALUE, item=Size(_VALUE))
    attributes = Size(_ENTRIES, value, Size(_ID))
    amounts = Size(_ENTRIES, Size(), Size(_ID))
    return {
        "driver": Size(_DRIVER),
        "attributes": Size(_ENTRIES, attributes, Size(_DOMAIN)),
        "capacity": Size(_ENTRIES, amounts, Size(_DOMAIN)),
        "allowMultipleAllocations": Size(1),
    }
