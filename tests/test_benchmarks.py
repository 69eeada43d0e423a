"""The benchmarks still run: each on something small."""

from __future__ import annotations

from benchmarks import allocation, beside, cel, mixed, openb, quality, serving
from extender.model.demand import Shape
from extender.policy import Policy
from tests.berthing import claim


def test_allocation_costs_something() -> None:
    assert allocation.cost(allocation.cluster(3, allocation.whole_slices), claim("c", 2)) > 0


def test_mixed_fleet_places_jobs() -> None:
    grant = mixed.Fleet(Policy()).place(1, 4)
    assert grant is not None and grant.ring_gbps > 0
    assert mixed.drawn([{"link": 0, "allocated": 0.9, "bandwidth": 0.2}, {"link": 8, "allocated": 1.0, "bandwidth": 0.4}]).startswith("<svg")


def test_demand_of_a_trace() -> None:
    shapes = openb.typical([Shape(1, 1, 1, 500), Shape(1, 1, 1, 500), Shape(1, 1, 8, 1000)])
    assert abs(sum(share for _, share in shapes) - 1) < 0.2


def test_the_others_are_whole() -> None:
    assert quality.predictions() and callable(serving.main) and callable(cel.main)


def test_filters_beside_a_question_are_told_from_others() -> None:
    filters = [(0, 1000), (2000, 3000), (4000, 7000), (8000, 9000)]
    found = beside.comparison(filters, [(2500, 3500), (9500, 11500)], [(7500, 7600)])
    assert (found.questions, found.beside[0], found.control[0], found.others[0]) == (2, 2.0, 1.0, 1.0)
