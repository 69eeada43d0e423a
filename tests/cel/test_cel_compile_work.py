"""The work to compile a selector is proportional to its length, for every kind of nesting: nothing can interrupt it."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest

from extender.cel import CompileError
from extender.cel.dra import compile_selector
from tests.worlds.counted_work import lines_of

_LINES = 400  # of Python that run for each character


def doubled(levels: int) -> str:
    """A list with a type of 2^levels parts: {a: a} has keys and values of one type."""
    return "[{1:1}]" + "".join(f".map({name},{{{name}:{name}}})" for name in map(chr, range(97, 97 + levels)))


def with_open_types(levels: int) -> str:
    """Lists whose types are found out later: each is made of two of the one before."""
    names = [chr(97 + level) for level in range(levels)]
    pairs = pairwise(names)
    bound = "".join(f"cel.bind({name},[],[{name},[{{{known}:{known}}}]].size()>0&&" for known, name in pairs)
    return f"true||cel.bind(a,[],{bound}true{')' * levels}"


def of_deep_lists(used: str, times: int, operator: str = "||", item: str = "1", levels: int = 80) -> str:
    """One list of lists of lists, used many times."""
    return f"true||cel.bind(z,{'[' * levels}{item}{']' * levels},{operator.join([used] * times)})"


ABSURD = {
    "doubled": f"true||{doubled(14)}.size()>0",
    "doubled and used": f"true||cel.bind(z,{doubled(9)},{'&&'.join(['z in[z]'] * 150)})",
    "with open types": with_open_types(14),
    "open deep lists": of_deep_lists("z in[z]", 500, item="[]"),
    "overloads of unknown types": "[][0]<[][0]||" * 785 + "true",
    "sums of unknown types": "[]+[]==[]||" * 925 + "true",
    "open deep lists, mistaken": of_deep_lists("z-z", 800, item=""),
}
ACCEPTED = {
    "doubled a little": f"true||{doubled(6)}.size()>0",
    "long selections": "true||" + f"device.attributes.a{'.b' * 240}==1||" * 6 + "true",
    "nested loops": f"true||{'[1].all(a,' * 150}{'1<2||' * 500}true{')' * 150}",
    "deep lists": of_deep_lists("z in[z]", 500),
    "a list of deep lists": f"size({of_deep_lists('[z', 1).removeprefix('true||')[:-1]}{',z' * 1500}]))>0",
    "comparisons of empty lists": "[]+[]==[]||" * 300 + "true",
    "comparisons": "1<2||" * 700 + "true",
    "as many comparisons as 10 KiB have": "1<2||" * 2045 + "true",
    "as many paths as 10 KiB have": 'device.attributes["a"].b=="c"||' * 330 + "true",
}


@pytest.mark.parametrize("name", ABSURD)
def test_types_that_take_too_much_work_do_not_compile(name: str) -> None:
    """256 bytes once took 8 s, and twice as long for each further level."""
    with pytest.raises(
        CompileError, match=r"compilation failed: (a type has more than|the expression takes too much work)"
    ):
        compile_selector(ABSURD[name])


@pytest.mark.parametrize("name", ACCEPTED)
def test_the_work_of_compiling_grows_with_the_length(name: str) -> None:
    """Long selections and nested loops once took 0.2 and 0.5 s for 10 KiB."""
    most = _LINES * len(ACCEPTED[name])
    assert lines_of(partial(compile_selector, ACCEPTED[name]), most) <= most
