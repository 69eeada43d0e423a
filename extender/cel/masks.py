"""Match masks: one expression over one slice gives two integers, bit i for device i.

Only slices that changed are evaluated again: an entry is valid for the very slice object it was made from.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from extender.cel.errors import BudgetExceeded, CelError, CompileError
from extender.cel.selector import STORED, Environment, Selector, compile_selector
from extender.model.device import Device, Slice


class Mask(NamedTuple):
    """Devices that match, and devices on which the expression has no value; bit i is devices[i]."""

    match: int
    error: int


class Masks:
    """A bounded memory of masks by expression; the least recently used expression goes first."""

    def __init__(self, environment: Environment = STORED, limit: int = 1024) -> None:
        self._environment = environment
        self._limit = limit
        self._compiled: OrderedDict[str, Selector | CompileError] = OrderedDict()
        self._masks: dict[str, dict[str, tuple[Slice, Mask]]] = {}
        self._exhausted: set[str] = set()

    def __len__(self) -> int:
        return len(self._compiled)

    def selector(self, expression: str) -> Selector | CompileError:
        """The compiled expression, or why it cannot be."""
        found = self._compiled.get(expression)
        if found is not None:
            self._compiled.move_to_end(expression)
            return found
        try:
            found = compile_selector(expression, self._environment)
        except CompileError as error:
            found = error
        self._compiled[expression] = found
        if len(self._compiled) > self._limit:
            oldest, _ = self._compiled.popitem(last=False)
            self._masks.pop(oldest, None)
            self._exhausted.discard(oldest)
        return found

    def of(self, expression: str, slice_: Slice) -> Mask:
        """The masks of an expression over a slice. A compile error is an error on every device."""
        known = self._masks.setdefault(expression, {}).get(slice_.name)
        if known is not None and known[0] is slice_:
            self._compiled.move_to_end(expression)
            return known[1]
        mask = self._evaluate(expression, slice_)
        self._masks.setdefault(expression, {})[slice_.name] = (slice_, mask)
        return mask

    def forget(self, slice_name: str) -> None:
        """Drop what is known about a slice that no longer exists."""
        for masks in self._masks.values():
            masks.pop(slice_name, None)

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

    def _evaluate(self, expression: str, slice_: Slice) -> Mask:
        selector = self.selector(expression)
        everyone = (1 << len(slice_.devices)) - 1
        if isinstance(selector, CompileError) or expression in self._exhausted:
            return Mask(0, everyone)
        match = error = 0
        driver = slice_.pool.driver
        for position, device in enumerate(slice_.devices):
            try:
                if selector.match(device, driver):
                    match |= 1 << position
            except BudgetExceeded:
                # One device has shown what the expression costs; forty thousand more would stop the scheduler.
                self._exhausted.add(expression)
                return Mask(0, everyone)
            except CelError:
                error |= 1 << position
        return Mask(match, error)
