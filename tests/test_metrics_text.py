"""The lines that Berth fills in itself read as those that the library writes."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector

from extender.service.calls import BOUNDS
from extender.web.metrics import READINGS, Reading, form_of

LABELS = st.text(st.sampled_from('a\\"\n{}=,é ') | st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=8)


class Written(Collector):
    def __init__(self, reading: Reading, labels: tuple[str, ...]) -> None:
        self.reading, self.labels = reading, labels

    def collect(self) -> list[Any]:
        family = self.reading.kind(self.reading.name, self.reading.help, labels=self.reading.labels)
        nothing: dict[Any, tuple[Any, ...]] = {
            GaugeMetricFamily: (0.0,), CounterMetricFamily: (0.0,), SummaryMetricFamily: (0.0, 0.0),
            HistogramMetricFamily: ([(bound, 0.0) for bound in (*map(str, BOUNDS), "+Inf")], 0.0),
        }  # fmt: skip
        family.add_metric(self.labels, *nothing[self.reading.kind])
        return [family]


@given(st.sampled_from(READINGS), st.tuples(LABELS, LABELS))
def test_a_form_with_labels_is_what_the_library_writes(reading: Reading, words: tuple[str, str]) -> None:
    labels, form = words[: len(reading.labels)], form_of(reading)
    text = form.head + "".join(f"{line} 0.0\n" for line in form.labelled(labels))
    assert text == generate_latest(Written(reading, labels)).decode()
