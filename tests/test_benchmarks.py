"""The benchmarks still run: each on something small."""

from __future__ import annotations

import pytest

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


def test_allocation_of_every_kind_of_slice_and_claim_events(capsys: pytest.CaptureFixture[str]) -> None:
    for slices, asked in ((allocation.mig_slices, "mig"), (allocation.shared_slices, "shared")):
        assert allocation.cost(allocation.cluster(2, slices), claim("c", deviceClassName=asked)) > 0
    allocation.row("events", 1.0, allocation.events_per_second(3, 20))
    assert capsys.readouterr().out.startswith("events ")


def test_masks_of_selectors(capsys: pytest.CaptureFixture[str]) -> None:
    cel.masks(cel.fleet(2))
    told = capsys.readouterr().out.splitlines()
    assert "bytes each" in told[0] and [line.split()[0] for line in told[2:]] == [*cel.SELECTORS, *cel.OURS_ONLY]


def test_predictions_of_quality(capsys: pytest.CaptureFixture[str]) -> None:
    found = quality.predictions()
    assert found and all(row["machine"] in capsys.readouterr().out for row in found[:1])


def test_serving_a_fleet_of_four(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The processes of `make bench`, with a few calls of each kind."""
    for name in ("WARM_UP", "CALLS"):
        monkeypatch.setattr(serving, name, 2)
    monkeypatch.setattr(serving.measure, "__defaults__", (2,))
    monkeypatch.setattr(serving, "BIND_PODS", 2)
    monkeypatch.setattr(serving, "pages_beside", lambda *_: [])
    found = serving.one_size(4, "uniform", 0)
    serving.show(found)
    assert {name for name, value in found.items() if name.endswith("_us") and value} >= {"noop_us", "filter_one_us", "filter_never_us", "prioritize_us", "bind_us"}
    assert found["nodes"] == 4 and found["memory_mib"] > 0 and "filter" in capsys.readouterr().out


def test_filters_beside_a_question_are_told_from_others() -> None:
    filters = [(0, 1000), (2000, 3000), (4000, 7000), (8000, 9000)]
    found = beside.comparison(filters, [(2500, 3500), (9500, 11500)], [(7500, 7600)])
    assert (found.questions, found.beside[0], found.control[0], found.others[0]) == (2, 2.0, 1.0, 1.0)
