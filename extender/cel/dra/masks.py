"""Match masks: one expression over one slice gives two integers, bit i for device i.

An entry is valid for the slice object that it was made from: only a slice that changed is evaluated again.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from operator import attrgetter
from typing import NamedTuple, TypeVar

from cachetools import LRUCache

from extender.api.resource_slices import Device, Slice
from extender.base.deadline import NO_DEADLINE, Deadline, DeadlineExceeded
from extender.cel.cost import COMPILE_LIMIT, Work
from extender.cel.dra.selector import COST_LIMIT, STORED, Dialect, Selector, compile_selector
from extender.cel.errors import BudgetExceeded, CelError, CompileError

Result = TypeVar("Result")

# Estimated bytes, measured with tracemalloc.
_ERROR_BYTES = 1024  # of a compile error beside its texts
_EXPRESSION_BYTES = 512  # of the masks of an expression beside its text and the masks
_MASK_BYTES = 320  # of the masks of one slice, with its place in the index
_SELECTOR_BYTES = 32 << 20  # of all selectors: 5,000 usual ones, or 8 of 10 KiB with a node for every second character
ALL_MASK_BYTES = 48 << 20  # of all masks
_UNIT_SECONDS = 50e-9
_LONGEST_MATCH = COST_LIMIT * _UNIT_SECONDS  # seconds


class Mask(NamedTuple):
    """The devices that match, and the devices on which the expression has no value; bit i is devices[i].

    `least_memory` is what the expression demands of each device, in bytes; 0 for nothing.
    """

    match: int
    error: int
    least_memory: int = 0


class _Compiled(NamedTuple):
    """A selector or its compile error, with the estimated bytes that it takes."""

    selector: Selector | CompileError
    size: int


_SliceMask = tuple[Slice | None, Mask, Slice, int]
"""The slice if all its devices are evaluated, the masks of its first devices, the slice, the number of these devices.

It is read for each slice of each call, and a NamedTuple takes twice as long.
"""


class _ExpressionMasks:
    """The masks of one expression, by the name of the slice."""

    __slots__ = ("by_name", "exhausted", "size")

    def __init__(self, expression: str) -> None:
        self.by_name: dict[str, _SliceMask] = {}
        self.exhausted = False  # the expression is too costly to be evaluated again
        self.size = _EXPRESSION_BYTES + sys.getsizeof(expression)  # estimated bytes

    def put(self, found: _SliceMask) -> int:
        """Keep the masks of a slice. Returns the bytes that they add."""
        name, size = found[2].name, _size_of(found)
        freed = self.forget(name)
        self.by_name[name] = found
        self.size += size
        return size - freed

    def forget(self, slice_name: str) -> int:
        """Drop the masks of a slice. Returns the bytes that this frees."""
        known = self.by_name.pop(slice_name, None)
        freed = _size_of(known) if known is not None else 0
        self.size -= freed
        return freed


def _size_of(found: _SliceMask) -> int:
    return _MASK_BYTES + len(found[2].devices) // 4


Compile = Callable[[str, Dialect, Work], Selector]


class Masks:
    """Selectors by expression and their masks, each bounded by estimated bytes; the least recently used expression
    goes first."""

    def __init__(self, dialect: Dialect = STORED, selector_bytes: int = _SELECTOR_BYTES) -> None:
        self.dialect = dialect
        self._compiled: LRUCache[tuple[Compile, str], _Compiled] = LRUCache(
            selector_bytes, getsizeof=attrgetter("size")
        )
        # Not an LRUCache: that takes the size of an entry when it is stored, and these entries grow and shrink.
        self._masks: OrderedDict[str, _ExpressionMasks] = OrderedDict()
        # Slice name to the expressions with masks of it: a tenant may have 60,000 expressions, and slices change often.
        self._expressions: dict[str, dict[str, None]] = {}
        self._bytes = 0

    def remembered(self) -> dict[str, int]:
        """The number of selectors and masks kept, and the estimated bytes of the masks."""
        masks = sum(len(one.by_name) for one in self._masks.values())
        return {"selectors": len(self._compiled), "masks": masks, "mask_bytes": self._bytes}

    def selector(self, expression: str, deadline: Deadline = NO_DEADLINE) -> Selector | CompileError:
        """The compiled expression, or its compile error. Raises DeadlineExceeded."""
        return self.compiled(compile_selector, expression, deadline)

    def compiled(self, compiling: Compile, text: str, deadline: Deadline = NO_DEADLINE) -> Selector | CompileError:
        """The result of a function that compiles a text, or its compile error. Raises DeadlineExceeded."""
        known = self._compiled.get((compiling, text))
        if known is not None:
            return known.selector
        work = Work(_units(deadline.check()))
        made = _made(compiling, text, self.dialect, work)
        if work.is_short:
            deadline.exceed()
        if made.size <= self._compiled.maxsize:
            self._compiled[compiling, text] = made
            deadline.progressed = True
        return made.selector

    def of(self, expression: str, slice_: Slice, deadline: Deadline = NO_DEADLINE) -> Mask:
        """The masks of an expression over a slice. A compile error is an error on every device. Raises
        DeadlineExceeded; the masks of the devices evaluated until then are kept."""
        masks = self._masks.get(expression)
        if masks is None:
            masks = self._masks[expression] = _ExpressionMasks(expression)
            self._bytes += masks.size
        else:
            self._masks.move_to_end(expression)
        known = masks.by_name.get(slice_.name)
        if known is not None and known[0] is slice_:
            return known[1]
        try:
            mask = self._evaluate(expression, slice_, masks, deadline)
            self._bytes += masks.put((slice_, mask, slice_, len(slice_.devices)))
        finally:
            if slice_.name in masks.by_name:
                self._expressions.setdefault(slice_.name, {})[expression] = None
            self._shrink()
        return mask

    def _shrink(self) -> None:
        while self._bytes > ALL_MASK_BYTES and len(self._masks) > 1:
            expression, oldest = self._masks.popitem(last=False)
            self._bytes -= oldest.size
            for slice_name in oldest.by_name:
                del self._expressions[slice_name][expression]
                if not self._expressions[slice_name]:
                    del self._expressions[slice_name]

    def forget(self, slice_name: str) -> None:
        """Drop the masks of a slice that no longer exists."""
        for expression in self._expressions.pop(slice_name, ()):
            masks = self._masks[expression]
            self._bytes -= masks.forget(slice_name)
            if not masks.by_name:
                self._bytes -= masks.size
                del self._masks[expression]

    def error(self, expression: str, device: Device, driver: str, deadline: Deadline = NO_DEADLINE) -> str:
        """The error of the expression on a device; '' where it has a value. Evaluates the expression again. Raises
        DeadlineExceeded."""
        selector = self.selector(expression, deadline)
        if isinstance(selector, CompileError):
            return f"CEL compile error: {selector}"
        try:
            evaluated(selector.match, device, driver, deadline)
        except CelError as error:
            return f"CEL runtime error: {error}"
        return ""

    def _evaluate(self, expression: str, slice_: Slice, known: _ExpressionMasks, deadline: Deadline) -> Mask:
        selector = self.selector(expression, deadline)
        all_devices = (1 << len(slice_.devices)) - 1
        if isinstance(selector, CompileError) or known.exhausted:
            return Mask(0, all_devices)
        _, (match, error, _), begun_slice, begun = known.by_name.get(slice_.name) or (None, Mask(0, 0), None, 0)
        if begun_slice is not slice_:
            match = error = begun = 0
        driver = slice_.pool.driver
        for position, device in enumerate(islice(slice_.devices, begun, None), begun):
            try:
                if evaluated(selector.match, device, driver, deadline):
                    match |= 1 << position
            except BudgetExceeded:
                # The expression is too costly on one device: on forty thousand it would stop the scheduler.
                known.exhausted = True
                return Mask(0, all_devices)
            except CelError:
                error |= 1 << position
            except DeadlineExceeded:
                self._bytes += known.put((None, Mask(match, error), slice_, position))
                raise
            deadline.progressed = True
        return Mask(match, error, selector.least_memory)


def evaluated(
    evaluate: Callable[[Device, str, int], Result],
    device: Device,
    driver: str,
    deadline: Deadline,
    limit: int = COST_LIMIT,
) -> Result:
    """The result of `match` or `value` of a selector on a device, with no more than `limit` units, and no more than the
    deadline leaves. Raises EvalError, BudgetExceeded, and DeadlineExceeded if the call does not suffice."""
    seconds = deadline.check()
    units = limit if seconds >= _LONGEST_MATCH else min(limit, _units(seconds))
    try:
        return evaluate(device, driver, units)
    except BudgetExceeded:
        if units < limit:
            deadline.exceed()
        raise


def _units(seconds: float) -> int:
    """The units that the next piece of work may take with so many seconds left."""
    return int(min(seconds / _UNIT_SECONDS, COMPILE_LIMIT))


def _made(compiling: Compile, text: str, dialect: Dialect, work: Work) -> _Compiled:
    try:
        selector = compiling(text, dialect, work)
    except CompileError as error:
        # Traceback and context hold the frames of the compiler, and with them the tree.
        error.__traceback__ = error.__context__ = error.__cause__ = None
        return _Compiled(error, _ERROR_BYTES + sys.getsizeof(text) + 2 * sys.getsizeof(str(error)))
    return _Compiled(selector, selector.most_bytes)
