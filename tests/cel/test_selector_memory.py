"""Compiled selectors, their errors and the texts of masks take no more memory than the bounds of Masks say."""

from __future__ import annotations

import gc
import inspect
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from extender.api.resource_slices import SliceDecoder
from extender.base.deadline import Deadline, DeadlineExceeded
from extender.cel.dra import Masks
from extender.cel.dra import masks as masks_module
from extender.sandbox import carried_machines
from extender.sandbox.machines import gpu_slice

DOCS = Path(__file__).parents[2] / "docs"
_LIMIT = 100_000
ALL_MASK_BYTES = f"{masks_module.__name__}.ALL_MASK_BYTES"
_SLICE = SliceDecoder().decode(gpu_slice("n", carried_machines()["t4-4"]))
_BAD = "&&".join([r'"".matches("\\pL\\pL\\pL\\pL\\pL\\pL\\pL\\pL\\pL\\pL\\pL\\pL\\pL\\pL\\pL\\pL")'] * 30)

FORMS: dict[str, Callable[[int], str]] = {
    "literals": lambda i: f'"{i}"!=""||' + "[[]]==[[]]||" * 7 + "true",
    "methods": lambda i: f'"{i}"!=""||' + 'dyn("a").trim()==""||' * 7 + "true",
    "loops": lambda i: f'"{i}"!=""||[1]{".map(a,a)" * 20}==[]',
    "optional items": lambda i: f'"{i}"!=""||[{"?optional.none()," * 15}1]==[1]',
    "terms": lambda i: f'"{i}"!=""&&' + "true&&" * 20 + "true",
    "wide text": lambda i: f'"{i}\U0001f600{"x" * 2000}"!=""',
    "refused after the check": lambda i: f'"{i}"!=""||{_BAD}',
    "refused by the check": lambda i: f'"{i}"!=""||' + '1+""||' * 50 + "true",
    "refused by the parser": lambda i: f'"{i}"!=""||' + "[[]]==[[]]||" * 20 + "(",
    "nested too deeply": lambda i: f'"{i}"!=""||{"[" * 260}{"]" * 260}==[]',
}


@pytest.mark.parametrize("form", FORMS)
def test_selectors_take_no_more_memory_than_their_bound(form: str) -> None:
    """Selectors once took 11 to 14 times what was counted: 2 MiB each."""
    masks, make = Masks(selector_bytes=_LIMIT), FORMS[form]
    masks.selector(make(-1))
    tracemalloc.start()
    try:
        number = 0
        while masks.remembered()["selectors"] > number:  # until one had to go
            number += 1
            masks.selector(make(number))
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert number > 1
    assert kept <= _LIMIT


@pytest.mark.parametrize("spent", [False, True], ids=["with masks", "without masks"])
def test_the_texts_of_masks_count(spent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a text of 10 KB with an emoji, which takes 40 KB, nothing was counted."""
    masks, limit = Masks(selector_bytes=1), 200_000
    monkeypatch.setattr(ALL_MASK_BYTES, limit)
    deadline = Deadline(0 if spent else 1, lambda: 0.0)
    tracemalloc.start()
    try:
        for number in range(40):
            try:
                masks.of(f'"{number}\U0001f600{"x" * 5000}"!=""', _SLICE, deadline)
            except DeadlineExceeded:
                assert spent
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 100_000 < kept <= limit + 10_000
    assert masks.remembered()["mask_bytes"] <= limit


def test_the_bounds_of_a_process_are_those_of_the_documents() -> None:
    said = " ".join((DOCS / "decisions" / "0027-waking-and-memory.md").read_text().split())
    selectors = inspect.signature(Masks).parameters["selector_bytes"].default
    all_masks = masks_module.ALL_MASK_BYTES
    assert f"{selectors >> 20} MiB of compiled selectors, {all_masks >> 20} MiB of their masks." in said


class CountedName(str):
    """The name of a slice that counts its look-ups in tables."""

    __slots__ = ()
    looks: ClassVar[Counter[str]] = Counter()

    def __hash__(self) -> int:
        self.looks["all"] += 1
        return super().__hash__()


def test_an_event_of_a_slice_looks_only_at_the_expressions_with_masks_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A namespace evaluated 60,000 short expressions in two minutes. Then each event of any slice, such as the report
    of an agent, took 40 to 600 ms."""
    monkeypatch.setattr(ALL_MASK_BYTES, 40_000)
    masks, machine = Masks(), carried_machines()["t4-4"]
    first, second = (SliceDecoder().decode(gpu_slice(name, machine)) for name in ("n1", "n2"))
    for number in range(100):
        masks.of(f"{number} >= 0", first)
    masks.of("1 >= 0", second)
    before = masks.remembered()
    masks.forget(CountedName("n3"))
    assert CountedName.looks["all"] < 5
    assert masks.remembered() == before
    masks.forget(second.name)
    assert masks.remembered()["masks"] == before["masks"] - 1
    masks.forget(first.name)
    assert masks.remembered()["mask_bytes"] == 0


def test_a_slice_whose_evaluation_never_began_can_be_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The selector was compiled again, and the deadline was spent; then the masks of the expression had to go."""
    monkeypatch.setattr(ALL_MASK_BYTES, 5000)
    masks, machine = Masks(selector_bytes=1), carried_machines()["t4-4"]
    first, second = (SliceDecoder().decode(gpu_slice(name, machine)) for name in ("n1", "n2"))
    masks.of("true", first)
    with pytest.raises(DeadlineExceeded):
        masks.of("true", second, Deadline(0, lambda: 0.0))
    for number in range(100):
        masks.of(f"{number} >= 0", first)
    masks.forget(second.name)
    masks.forget(first.name)
    assert masks.remembered()["mask_bytes"] == 0
