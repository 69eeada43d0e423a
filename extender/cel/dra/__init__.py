"""The binding of CEL to devices of Dynamic Resource Allocation: selectors, their terms and their match masks.

The search that reads the masks does not belong here. docs/cel.md describes the dialect and its limits.
"""

from extender.cel.dra.dialect import COST_LIMIT, STORED, Dialect
from extender.cel.dra.masks import Mask, Masks
from extender.cel.dra.selector import Selector, check_cost, check_selector, compile_selector, compile_value
from extender.cel.dra.terms import failed_term, observed_value, split_terms

__all__ = [
    "COST_LIMIT",
    "STORED",
    "Dialect",
    "Mask",
    "Masks",
    "Selector",
    "check_cost",
    "check_selector",
    "compile_selector",
    "compile_value",
    "failed_term",
    "observed_value",
    "split_terms",
]
