"""The figures of `benchmarks.serving` as text."""

from __future__ import annotations

import itertools
import math


def show(result: dict) -> None:
    """The figures of one fleet, beside those of a handler that does nothing."""
    floor = result["noop_us"][0]
    print(
        f"\n{result['nodes']} nodes x 8 GPUs, {result['mix']}, {result['occupancy']} % held: "
        f"ready {result['ready_s']} s after start, {result['memory_mib']} MiB resident, "
        f"console {result['console_mib']} MiB, {result['cpu_us_per_filter']:.0f} us of CPU a filter"
    )
    print(f"  {'no-op handler, same body':32} {floor:9.0f} us   1.00x")
    passing = result["noop_pass_us"][0]
    print(
        f"  {'no-op handler that passes all':32} {passing:9.0f} us {passing / floor:6.2f}x   a pod that is not ours "
        f"takes {result['filter_plain_us'][0] / passing:.2f} times that"
    )
    for key in ("filter_plain", "filter_one", "filter_four", "filter_never", "prioritize", "filter_one_churn", "bind"):
        if f"{key}_us" in result:
            median, tail = result[f"{key}_us"]
            print(
                f"  {key.replace('_', ' '):32} {median:9.0f} us {median / floor:6.2f}x   "
                f"p99/p50 {tail / (median or 1):.1f}"
            )
    cold, worst = result["cold_us"]
    print(
        f"  {'a shape never seen':32} {cold:9.0f} us {cold / floor:6.2f}x   "
        f"{(cold - result['filter_one_us'][0]) / 1000:.1f} ms more than one seen before, {worst / 1000:.1f} ms at worst"
    )
    (quiet, quiet_tail), (beside, tail) = result["quiet_us"], result["beside_us"]
    print(
        f"  beside {result['questions']} questions to the console: p50 {beside / (quiet or 1):.2f} of what it takes "
        f"without ({beside:.0f} us), p99 {tail / (quiet_tail or 1):.2f} ({tail:.0f} us)"
    )
    for name, text in (("explain_known_ms", "of a known shape"), ("explain_fresh_ms", "of a shape never asked for")):
        print(f"  an explanation {text} takes {result[name][0]:.1f} ms, {result[name][1]:.1f} ms at worst")
    if result["visible_ms"] is not None:
        print(f"  the console shows a decision {result['visible_ms']:.0f} ms after the bind's answer")
    print(f"  a scrape takes {result['scrape_ms']:.1f} ms", flush=True)


def growth(results: list[dict]) -> None:
    """How figures grow with the fleet: 1 would be in step with it, 0 not at all."""
    sizes = sorted((r for r in results if r["mix"] == "mixed" and not r["occupancy"]), key=lambda r: r["nodes"])
    for small, large in itertools.pairwise(sizes):
        steps = math.log(large["nodes"] / small["nodes"])
        slopes = {
            key: math.log(large[key][0] / small[key][0]) / steps
            for key in ("noop_us", "filter_one_us", "filter_four_us", "bind_us")
            if small[key][0] and large[key][0]
        }
        print(
            f"growth from {small['nodes']} to {large['nodes']} nodes: "
            + ", ".join(f"{key.removesuffix('_us')} {slope:.2f}" for key, slope in slopes.items())
        )
