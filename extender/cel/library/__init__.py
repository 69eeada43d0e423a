"""The functions of the language, one file for each family; each file exports OVERLOADS."""

from __future__ import annotations

from extender.cel.library import conversions, kubernetes, lists, operators, text, time
from extender.cel.types import Library, Overload, Version


def kubernetes_library(version: Version, *, includes: bool, all_versions: bool) -> Library:
    """The functions of a cluster of this version.

    `includes` adds the function of that name, which has a feature gate. `all_versions` is for stored expressions: a
    newer API server may have accepted them.
    """
    families = (operators, conversions, text, lists, time, kubernetes)
    overloads = [one for family in families for one in family.OVERLOADS if all_versions or one.since <= version]
    if includes:
        overloads += lists.INCLUDES
    found: dict[str, list[Overload]] = {}
    for overload in overloads:
        found.setdefault(overload.function, []).append(overload)
    return found
