"""The functions of the language, one file a family; each exports OVERLOADS."""

from __future__ import annotations

from extender.cel.functions import Library, Version
from extender.cel.library import conversions, lists, network, operators, optionals, resources, text, time


def library(version: Version, *, includes: bool, all_versions: bool) -> Library:
    """The functions that a cluster of this version knows; `all_versions` is for stored expressions."""
    families = (operators, conversions, text, lists, time, optionals, resources, network)
    overloads = [o for family in families for o in family.OVERLOADS if all_versions or o.since <= version]
    if includes:
        overloads.append(lists.INCLUDES)
    return Library(overloads)
