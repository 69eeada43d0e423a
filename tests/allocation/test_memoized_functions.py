"""All functions with an lru_cache are listed here and bounded; so are the tables of graphs and of sets of devices."""

from __future__ import annotations

import gc
import importlib
import pkgutil
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import extender
from extender.allocation.nodes.locality import Locality, Nearness
from extender.api.gpu_topology import DEFAULT_MIX, Graph, Interconnect, Source
from extender.api.quantity import parse_quantity
from extender.api.semver import parse_semver
from extender.cel.dra import Dialect
from extender.topology.sets import Measures


def graph(size: int, gbps: float = 20.0) -> Graph:
    links = tuple(tuple(int(i != j) for j in range(size)) for i in range(size))
    return Graph(links, (0,) * size, gbps, 10.0, links, (0,) * size)


def test_equal_graphs_are_one_object_while_one_is_used() -> None:
    first = graph(4, gbps=3.5)
    other = replace(first, numa=(1,) * 4)
    assert graph(4, gbps=3.5) is first is replace(other, numa=(0,) * 4)
    assert (first.numa, other.numa) == ((0,) * 4, (1,) * 4)
    assert other.interconnect is first.interconnect
    before = kept_objects(Graph)
    del first
    assert kept_objects(Graph) == before - 1, "nothing keeps a graph that no node has"


# Arguments of every one of them, different for every number.
REMEMBER: dict[str, Callable[[int], tuple[Any, ...]]] = {
    "environment_of": lambda i: (Dialect((1, i)),),
    "_in_order": lambda i: (tuple(range(i)),),
    "_known_quantity": lambda i: (str(i),),
    "_compiled": lambda i: (f"a{i}",),
    "_known_semver": lambda i: (f"{i}.0.0",),
    "_type_of": lambda i: (f"list[V{i}]",),
    "_types": lambda i: (type(f"V{i}", (), {"attribute_map": {}, "openapi_types": {}}),),
    "_stranded": lambda i: ((i,), DEFAULT_MIX),
    "_headroom_part": lambda i: (((i, 1, 0),), 0, "tight"),
    "_compile_error": lambda i: (f"device.driver == '{i}'",),
    "_one_set": lambda i: (frozenset([f"gpu-{i}"]),),
    "_unknown": lambda i: (i,),
    "whole_units": lambda i: (i,),
    "format_nanos": lambda i: (i, "DecimalSI"),
    "driver_of": lambda i: (f"gpu{i}.example.com",),
    "flat_graph": lambda i: (f"product {i}", 2),
    "limits_of": lambda i: (f"H100 {i}",),
    "joined_sets": lambda i: (Interconnect(((0,),), (0,), float(i), 1.0), 1),
    "mesh_problem": lambda i: (((i,),),),
    "_weights": lambda i: (Locality((), (i,), ((),)),),
    "_bits_of": lambda i: (i,),
    "pair_up": lambda i: (Locality((), (i, 0), ((), ())), (0,), (1,)),
    "_product": lambda i: (f"H100 {i}", ""),
    "_most_near": lambda i: (
        Locality((("a", 1), ("b", 2)), (1, i + 1), ((), ())),
        Nearness.ROOT,
        (1, "a"),
        (1, "b"),
        -1,
    ),
    "Taint": lambda i: (f"berth.dev/{i}",),
    "nearest": lambda i: (Locality((), (i,), ((),)),),
    "natural": lambda i: (f"n{i}",),
    "_refused": lambda i: ("V1PodSpec", b'{"priority": %d}' % i),
    "_usual_value": lambda i: (
        Interconnect(((0,),), (0,), float(i), 1.0),
        1,
        Source.LIVE,
        "H100",
        "gpu.nvidia.com",
        80.0,
    ),
    "meshes": lambda i: (((i,),), 1),
    "usual_graph": lambda i: (f"H100 {i}", 2),
}
ONCE = {"carried_machines", "_documents", "_zones"}  # take no argument


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
    assert set(remembering()) == REMEMBER.keys() | ONCE


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
    )
    tables = [table for name, table in remembering().items() if name.startswith("_known")]
    assert len(tables) == len(parsers)
    for table in tables:
        table.cache_clear()
    for parse, text in parsers:
        parse(text)
    assert [table.cache_info().currsize for table in tables] == [0] * len(tables)


LINKS = [[int(i // 2 == j // 2 and i != j) for j in range(16)] for i in range(16)]
DISTANCE = [[0 if i == j else 5 for j in range(16)] for i in range(16)]


def placed(number: int, gbps: float = 20.0) -> Graph:
    """A graph of 16 GPUs, the most that an agent publishes, which shares no object with another one."""
    return Graph(tuple(map(tuple, LINKS)), (0,) * 16, gbps, 10.0, tuple(map(tuple, DISTANCE)), (number,) * 16)


def kept_objects(kind: type) -> int:
    gc.collect()
    return sum(type(found) is kind for found in gc.get_objects())


def test_the_caches_of_sets_take_no_more_than_their_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound in the docstring of Measures, but with an eighth of the entries and 1 MiB / 8 of ranked sets."""
    bounds = {"_MAX_REMEMBERED": 4096, "_MAX_GRAPHS": 128, "_MAX_BEST": 512, "_MAX_RANKED_BYTES": 1 << 17}
    for name, bound in bounds.items():
        monkeypatch.setattr(f"extender.topology.sets.{name}", bound)
    measures = Measures()
    tracemalloc.start()
    try:
        for number in range(2 * 128 - 1):  # the 129th graph empties all caches
            one, equal = placed(number, gbps=number + 0.5), placed(number, gbps=number + 0.5)
            for mask in range(4096, 4096 + 33):
                measures.bandwidth(one, mask)
                measures.quality(equal, mask, 65535 - number)
            for count in range(4):
                measures.best_gbps(one, 1 << 15, count)
        for free in range(3000, 3040):
            measures.ranked(placed(0, gbps=0.5), free, free.bit_count() // 2)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    sizes = measures.sizes()
    assert sizes["graphs"] == sizes["interconnects"] == 128
    assert max(sizes.values()) == sizes["quality"] == 4096
    assert taken <= (34 << 20) // 8
