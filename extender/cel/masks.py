"""Match masks: one expression over one slice gives two integers, bit i for device i.

Only slices that changed are evaluated again: an entry is valid for the very slice object it was made from.
"""

from __future__ import annotations

from collections import OrderedDict
from operator import attrgetter
from typing import NamedTuple

from cachetools import LRUCache

from extender.cel.errors import BudgetExceeded, CelError, CompileError
from extender.cel.selector import STORED, Environment, Selector, compile_selector
from extender.model.device import Device, Slice

# Estimated bytes, measured with tracemalloc (docs/performance.md).
_EXPRESSION_BYTES, _CHARACTER_BYTES = 4096, 16  # of a selector, and of each character of its text
_MASK_BYTES = 256  # of the masks of one slice
_SELECTOR_BYTES = 16 << 20  # of all selectors: three thousand usual ones
_ALL_MASK_BYTES = 48 << 20


class Mask(NamedTuple):
    """Devices that match, and devices on which the expression has no value; bit i is devices[i]."""

    match: int
    error: int


class _Compiled(NamedTuple):
    """A selector, or why there is none, with the estimated bytes that it takes."""

    selector: Selector | CompileError
    size: int


class _OfSlices:
    """The masks of one expression."""

    __slots__ = ("by_name", "exhausted", "size")

    def __init__(self) -> None:
        self.by_name: dict[str, tuple[Slice, Mask]] = {}
        self.exhausted = False  # the expression is too costly to be evaluated again
        self.size = 0  # estimated bytes

    def put(self, slice_: Slice, mask: Mask) -> int:
        """Remember a mask; the answer is how many bytes that adds."""
        added = 0 if slice_.name in self.by_name else _MASK_BYTES + len(slice_.devices) // 4
        self.by_name[slice_.name] = slice_, mask
        self.size += added
        return added

    def forget(self, slice_name: str) -> int:
        """Drop a mask; the answer is how many bytes that frees."""
        known = self.by_name.pop(slice_name, None)
        freed = _MASK_BYTES + len(known[0].devices) // 4 if known is not None else 0
        self.size -= freed
        return freed


class Masks:
    """Selectors by expression and their masks, each bounded by estimated bytes; the least recently used expression
    goes first."""

    def __init__(
        self,
        environment: Environment = STORED,
        selector_bytes: int = _SELECTOR_BYTES,
        mask_bytes: int = _ALL_MASK_BYTES,
    ) -> None:
        self._environment = environment
        self._compiled: LRUCache[str, _Compiled] = LRUCache(selector_bytes, getsizeof=attrgetter("size"))
        self._masks: OrderedDict[str, _OfSlices] = OrderedDict()
        self._limit_bytes = mask_bytes
        self._bytes = 0

    def remembered(self) -> dict[str, int]:
        """How many selectors and masks are remembered, and the estimated bytes of the masks."""
        masks = sum(len(one.by_name) for one in self._masks.values())
        return {"selectors": len(self._compiled), "masks": masks, "mask_bytes": self._bytes}

    def selector(self, expression: str) -> Selector | CompileError:
        """The compiled expression, or why it cannot be."""
        known = self._compiled.get(expression)
        if known is not None:
            return known.selector
        try:
            found: Selector | CompileError = compile_selector(expression, self._environment)
        except CompileError as error:
            found = error
        size = _EXPRESSION_BYTES + _CHARACTER_BYTES * len(expression)
        if size <= self._compiled.maxsize:
            self._compiled[expression] = _Compiled(found, size)
        return found

    def of(self, expression: str, slice_: Slice) -> Mask:
        """The masks of an expression over a slice. A compile error is an error on every device."""
        masks = self._masks.get(expression)
        if masks is None:
            masks = self._masks[expression] = _OfSlices()
        else:
            self._masks.move_to_end(expression)
        known = masks.by_name.get(slice_.name)
        if known is not None and known[0] is slice_:
            return known[1]
        mask = self._evaluate(expression, slice_, masks)
        self._bytes += masks.put(slice_, mask)
        while self._bytes > self._limit_bytes and len(self._masks) > 1:
            _, oldest = self._masks.popitem(last=False)
            self._bytes -= oldest.size
        return mask

    def forget(self, slice_name: str) -> None:
        """Drop what is known about a slice that no longer exists."""
        for masks in self._masks.values():
            self._bytes -= masks.forget(slice_name)

    def error(self, expression: str, device: Device, driver: str) -> str:
        """Why the expression has no value for a device; '' where it has one. Text is made on demand only."""
        selector = self.selector(expression)
        if isinstance(selector, CompileError):
            return f"CEL compile error: {selector}"
        try:
            selector.match(device, driver)
        except CelError as error:
            return f"CEL runtime error: {error}"
        return ""

    def _evaluate(self, expression: str, slice_: Slice, known: _OfSlices) -> Mask:
        selector = self.selector(expression)
        everyone = (1 << len(slice_.devices)) - 1
        if isinstance(selector, CompileError) or known.exhausted:
            return Mask(0, everyone)
        match = error = 0
        driver = slice_.pool.driver
        for position, device in enumerate(slice_.devices):
            try:
                if selector.match(device, driver):
                    match |= 1 << position
            except BudgetExceeded:
                # One device has shown what the expression costs; forty thousand more would stop the scheduler.
                known.exhausted = True
                return Mask(0, everyone)
            except CelError:
                error |= 1 << position
        return Mask(match, error)
