"""HTTP of `berth console`: the page, explain, fleet, policy and metrics."""
