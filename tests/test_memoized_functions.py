"""All functions with an lru_cache are listed here and bounded; so are the tables of graphs and of sets of devices."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest

import extender
from extender.cel.dra import Dialect, compile_selector
from extender.fabric import Graphs, ranked
from extender.fabric.sets import Measures, RankedSets
from extender.model import DEFAULT_MIX, Graph, parse_quantity, parse_semver


def graph(size: int, gbps: float = 20.0) -> Graph:
    links = tuple(tuple(int(i != j) for j in range(size)) for i in range(size))
    return Graph(links, (0,) * size, gbps, 10.0, links, (0,) * size)


def test_graphs_are_bounded_and_equal_ones_are_one() -> None:
    graphs = Graphs(limit=2)
    first = graphs.intern(graph(4))
    assert graphs.intern(graph(4)) is first
    graphs.intern(graph(5))
    graphs.intern(graph(6))
    assert graphs.intern(graph(4)) is not first
    assert graphs.intern(graph(4)) == first


def test_ranked_sets_are_bounded_by_bytes() -> None:
    sets = RankedSets(limit_bytes=5000)
    for free in range(1, 256):
        assert sets.of(graph(8), free, 1) == ranked(graph(8), free, 1)
    assert 1 < len(sets) <= 5000 // 256
    assert len(RankedSets(limit_bytes=100).of(graph(8), 255, 4)) == 70, (
        "a result too large to be remembered is still given"
    )


SMALL = Graph(((0,),), (0,), 1.0, 1.0, ((0,),), (0,))
# Arguments of every one of them, different for every number.
REMEMBER: dict[str, Callable[[int], tuple[Any, ...]]] = {
    "_compiled": lambda i: (f"device.driver == '{i}'",),
    "environment_of": lambda i: (Dialect((1, i)),),
    "_digits_of": lambda i: (Graph(((0,),), (0,), float(i), 1.0, ((0,),), (0,)), (0,)),
    "_in_order": lambda i: (tuple(range(i)),),
    "_known_pattern": lambda i: (f"x{i}",),
    "_known_quantity": lambda i: (str(i),),
    "_known_semver": lambda i: (f"{i}.0.0",),
    "_left_side": lambda i: (f"device.driver == '{i}'", Dialect()),
    "_reads": lambda i: (compile_selector(f"device.driver == '{i}'"),),
    "_type_of": lambda i: (f"list[V{i}]",),
    "_types": lambda i: (type(f"V{i}", (), {"attribute_map": {}, "openapi_types": {}}),),
    "_stranded": lambda i: ((i,), DEFAULT_MIX),
    "best_gbps": lambda i: (SMALL, i, 0),
    "flat_graph": lambda i: (f"product {i}", 2),
    "mesh_problem": lambda i: (Graph(((0,),), (0,), float(i), 1.0, ((0,),), (0,)),),
    "natural": lambda i: (f"n{i}",),
    "split_terms": lambda i: (f"true && {i} == 1",),
    "usual_graph": lambda i: (f"H100 {i}", 2),
}
ONCE = {"carried_machines", "_documents"}  # take no argument
BY_PARAMETER = {"ring_gbps", "count_links_inside", "_quality"}  # see test_measures_of_sets_are_bounded


def remembering() -> dict[str, Any]:
    """Every function with an lru_cache, by its name."""
    names = (module.name for module in pkgutil.walk_packages(extender.__path__, "extender."))
    modules = [importlib.import_module(name) for name in names if not name.endswith("__main__")]
    values = [value for module in modules for value in vars(module).values()]
    wrapped = (value for value in values if callable(getattr(value, "cache_info", None)))
    found = {id(value): value for value in wrapped if value.__module__.startswith("extender.")}
    by_name = {value.__name__: value for value in found.values()}
    assert len(by_name) == len(found), "each has a name of its own"
    return by_name


def test_every_function_that_remembers_is_listed_here() -> None:
    assert set(remembering()) == REMEMBER.keys() | ONCE | BY_PARAMETER


@pytest.mark.parametrize("name", REMEMBER)
def test_a_function_remembers_no_more_than_its_bound(name: str) -> None:
    function = remembering()[name]
    most = function.cache_parameters()["maxsize"]
    function.cache_clear()
    for number in range(most + 3):
        function(*REMEMBER[name](number))
    assert function.cache_info().currsize == most
    assert function.cache_info().misses >= most + 3
    function.cache_clear()


def test_long_texts_of_users_are_not_remembered() -> None:
    """A selector can make texts of 180 KB, and these caches count entries."""
    long = "a" * 300
    parsers = (
        (parse_semver, f"1.0.0-{long}"),
        (parse_quantity, "1" * 300),
        (lambda text: compile_selector(f"device.driver.matches('{text}')"), long),
    )
    tables = [table for name, table in remembering().items() if name.startswith("_known")]
    assert len(tables) == len(parsers)
    for table in tables:
        table.cache_clear()
    for parse, text in parsers:
        parse(text)
    assert [table.cache_info().currsize for table in tables] == [0] * len(tables)


def test_measures_of_sets_are_bounded() -> None:
    measures, known = Measures(remembered=5), Measures()
    for mask in range(1, 64):
        assert measures.quality(graph(6), mask, 63) == known.quality(graph(6), mask, 63)
    for table in (measures.bandwidth, measures.links_inside, measures.quality):
        assert table.cache_info().currsize == 5
