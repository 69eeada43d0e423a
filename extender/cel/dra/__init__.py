"""The binding of CEL to devices of Dynamic Resource Allocation: selectors, their terms and their match masks.

The search that reads the masks does not belong here. docs/cel.md describes the dialect and its limits.
Explanations import `extender.cel.dra.terms`, which `berth serve` does not load.
"""

from extender.cel.dra.masks import Masks, evaluated
from extender.cel.dra.selector import (
    COST_LIMIT,
    Dialect,
    Selector,
    check_cost,
    check_selector,
    compile_selector,
    compile_value,
)

__all__ = [
    "COST_LIMIT",
    "Dialect",
    "Masks",
    "Selector",
    "check_cost",
    "check_selector",
    "compile_selector",
    "compile_value",
    "evaluated",
]
