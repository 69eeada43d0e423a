"""Hypothesis: a failure must repeat, and a busy machine must not make one."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# BERTH_HYPOTHESIS=long: random examples, thirty times as many as a test asks for (`make properties`).
_SLOW = [HealthCheck.too_slow]  # it measures seconds
settings.register_profile(
    "test", deadline=None, derandomize=True, max_examples=60, suppress_health_check=_SLOW, print_blob=True
)
settings.register_profile("long", deadline=None, max_examples=6000, suppress_health_check=_SLOW, print_blob=True)
settings.load_profile(os.environ.get("BERTH_HYPOTHESIS", "test"))
