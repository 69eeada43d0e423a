"""Latency of the verbs against a handler that does nothing, time to ready, and memory: ratios within one run.

`make bench` prints a table and keeps it as JSON under bench-results/. Numbers of different runs or machines are not
comparable; their ratios are.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import platform
import signal
import statistics
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from benchmarks import requeue
from benchmarks.processes import (
    ROOT,
    START_SECONDS,
    Bench,
    Berth,
    Http,
    Launch,
    body_for,
    cpu_seconds,
    launched,
    pods_of,
    resident_mib,
)
from benchmarks.servers import BIND_PODS, COLD_PODS
from tests.worlds.process_worlds import free_port


class Effort(NamedTuple):
    """Numbers of repetitions."""

    warm_up: int = 20
    calls: int = 300
    rounds: int = 4  # of filters without and beside questions to the console
    binds: int = BIND_PODS


def summary(times: list[float]) -> tuple[float, float]:
    """(median, 99th percentile)."""
    times = sorted(times)
    return (statistics.median(times), times[int(len(times) * 0.99)]) if times else (0.0, 0.0)


def measure(http: Http, path: str, body: bytes, effort: Effort) -> tuple[float, float]:
    """(median, 99th percentile) in microseconds."""
    timed(http, path, body, effort.warm_up)
    return summary(timed(http, path, body, effort.calls))


def filter_reply(http: Http, body: bytes) -> dict:
    """The answer of a filter request, once every node is evaluated."""
    while True:
        found = json.loads(http.post("filter", body))
        if not found["Error"].endswith(": retry"):
            assert not found["Error"], found["Error"]
            return found
        time.sleep(0.05)


def until_evaluated(http: Http, body: bytes) -> float:
    """Microseconds until a filter request gets an answer, with the requests that end before every node is evaluated."""
    start = time.perf_counter_ns()
    filter_reply(http, body)
    return (time.perf_counter_ns() - start) / 1000


def timed(http: Http, path: str, body: bytes, calls: int) -> list[float]:
    """Microseconds of each call."""
    times = []
    for _ in range(calls):
        start = time.perf_counter_ns()
        http.post(path, body)
        times.append((time.perf_counter_ns() - start) / 1000)
    return times


USUAL = Effort()


def one_size(nodes: int, mix: str, occupancy: int, effort: Effort = USUAL, launch: Launch = launched) -> dict:
    bench = Bench(launch)
    try:
        with tempfile.TemporaryDirectory() as folder:
            api, floor = free_port(), free_port()
            fleet = bench.start(
                "benchmarks.servers",
                "fleet",
                "--port",
                str(api),
                "--nodes",
                str(nodes),
                "--mix",
                mix,
                "--occupancy",
                str(occupancy),
                wait_line=True,
            )
            bench.start("benchmarks.servers", "noop", "--port", str(floor))
            berth = bench.berth(api, Path(folder))
            names = [f"node-{i:05}.cluster.example.com" for i in range(nodes)]
            pods = pods_of(api)
            time.sleep(1)
            noop, http = bench.connect(floor), bench.connect(berth.port)
            result: dict = {"nodes": nodes, "mix": mix, "occupancy": occupancy, "ready_s": round(berth.ready_s, 2)}
            result["passed"] = {
                name: len(filter_reply(http, body_for(pods[name], names))["NodeNames"])
                for name in ("one", "four", "never")
            }
            result["cold_us"] = summary(
                [until_evaluated(http, body_for(pods[f"cold-{i}"], names)) for i in range(COLD_PODS)]
            )
            result["noop_us"] = measure(noop, "filter", body_for(pods["one"], names), effort)
            result["noop_pass_us"] = measure(noop, "pass", body_for(pods["plain"], names), effort)
            before = cpu_seconds(berth.process.pid)
            for name in ("plain", "one", "four", "never"):
                result[f"filter_{name}_us"] = measure(http, "filter", body_for(pods[name], names), effort)
            result["cpu_us_per_filter"] = (
                (cpu_seconds(berth.process.pid) - before) / 4 / (effort.calls + effort.warm_up) * 1e6
            )
            shortlist = filter_reply(http, body_for(pods["four"], names))["NodeNames"]
            result["prioritize_us"] = measure(http, "prioritize", body_for(pods["four"], shortlist), effort)
            result["scrape_ms"] = scraping(berth.port)
            result |= explaining(berth.console_port)
            result |= beside_console(bench, berth, http, body_for(pods["one"], names), effort)
            if mix != "mig":
                fleet.send_signal(signal.SIGUSR1)
                assert fleet.stdout is not None
                assert fleet.stdout.readline() == b"churning\n"
                result["filter_one_churn_us"] = measure(http, "filter", body_for(pods["one"], names), effort)
            bound, result["bind_us"] = binding(http, [pods[f"bind-{i}"] for i in range(effort.binds)], names)
            result["bound"] = len(bound)
            result["visible_ms"] = visible_after(berth.console_port, bound[-1]) if bound else None
            result["memory_mib"] = round(resident_mib(berth.process), 1)
            result["console_mib"] = round(resident_mib(berth.console), 1)
            return result
    finally:
        bench.stop()


def asked_ms(port: int, path: str) -> tuple[float, dict]:
    """Milliseconds of a GET, and its answer."""
    start = time.perf_counter()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as reply:
        body = reply.read()
    return 1000 * (time.perf_counter() - start), json.loads(body)


def explaining(port: int) -> dict[str, tuple[float, float]]:
    """(median, slowest) milliseconds of an explanation of new requirements, and of the same requirements again."""
    fresh, known = ([asked_ms(port, f"/v1/explain/default/cold-{i}")[0] for i in range(COLD_PODS)] for _ in range(2))
    return {
        name: (statistics.median(times), max(times))
        for name, times in (("explain_fresh_ms", fresh), ("explain_known_ms", known))
    }


def beside_console(bench: Bench, berth: Berth, http: Http, body: bytes, effort: Effort) -> dict:
    """Filters while the console explains pods without pause, and filters while it is idle, in turn."""
    paths = [f"/v1/explain/default/{pod}" for pod in ("never", "four", "never?without=node-00000.cluster.example.com")]
    quiet, beside, took = [], [], []
    for _ in range(effort.rounds):
        quiet += timed(http, "filter", body, effort.calls)
        asker = bench.start(
            "benchmarks.servers", "asker", "--port", str(berth.console_port), "--paths", *paths, wait_line=True
        )
        beside += timed(http, "filter", body, effort.calls)
        asker.terminate()
        assert asker.stdout is not None
        took += json.loads(asker.stdout.readline())
    return {"quiet_us": summary(quiet), "beside_us": summary(beside), "questions": len(took), "asked_ms": summary(took)}


def visible_after(port: int, pod: str) -> float:
    """Milliseconds until the console shows the decision about a pod that was just bound."""
    start = time.perf_counter()
    while not decided(port, pod):
        assert time.perf_counter() - start < START_SECONDS, f"the console never shows where {pod} went"
        time.sleep(0.005)
    return 1000 * (time.perf_counter() - start)


def decided(port: int, pod: str) -> bool:
    """Whether the console has the decision about a pod; False if it does not know the pod."""
    with suppress(urllib.error.HTTPError):
        return bool(asked_ms(port, f"/v1/explain/default/{pod}")[1].get("decision"))
    return False


def scraping(port: int) -> float:
    """Median milliseconds of GET /metrics, if the values are read anew."""
    took = []
    for _ in range(5):
        time.sleep(1.1)  # the text answers all requests of a second
        start = time.perf_counter()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
            reply.read()
        took.append(1000 * (time.perf_counter() - start))
    return statistics.median(took)


def binding(http: Http, pods: list[dict], names: list[str]) -> tuple[list[str], tuple[float, float]]:
    """The names of the pods that were bound, and (median, 99th percentile) in microseconds of a bind: one after the
    other, on an API server whose writes take 1 ms."""
    bound, times = [], []
    for pod in pods:
        found = filter_reply(http, body_for(pod, names))["NodeNames"]
        if not found:
            continue
        meta = pod["metadata"]
        body = json.dumps(
            {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": found[0]}
        ).encode()
        start = time.perf_counter_ns()
        answer = json.loads(http.post("bind", body))
        times.append((time.perf_counter_ns() - start) / 1000)
        assert not answer["Error"], answer
        bound.append(meta["name"])
    return bound, summary(times)


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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--nodes", type=int, nargs="*", default=[100, 1000, 5000, 15000], help="fleets of mixed nodes, empty"
    )
    parser.add_argument(
        "--mix", default="mixed", help="of those fleets: mixed, uniform, kinds (16 kinds of devices) or mig"
    )
    parser.add_argument(
        "--at", type=int, default=1000, help="nodes of the other fleets and occupancies; 0 leaves them out"
    )
    parser.add_argument("--shapes", type=int, default=500, help="live shapes of the last measurement; 0 leaves it out")
    parser.add_argument("--shape-nodes", type=int, default=5000, help="half-full nodes in it")
    parser.add_argument("--waiting", type=int, default=4096, help="waiting pods in it")
    args = parser.parse_args()
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    cases = [(nodes, args.mix, 0) for nodes in args.nodes]
    cases += (
        [(args.at, "mixed", share) for share in (50, 90, 99)]
        + [(args.at, mix, 0) for mix in ("uniform", "kinds", "mig")]
        + [(args.at, "mig", 50)]
        if args.at
        else []
    )
    results = []
    for case in cases:
        results.append(one_size(*case))
        show(results[-1])
    growth(results)
    shapes = {}
    if args.shapes:
        shapes = requeue.measure(args.shape_nodes, args.shapes, args.waiting, events=10, gap=1.0)
        requeue.show(shapes, args.shape_nodes, args.shapes, args.waiting)
    folder = ROOT / "bench-results"
    folder.mkdir(exist_ok=True)
    machine = {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load": os.getloadavg(),
    }
    (folder / "serving.json").write_text(json.dumps({**machine, "results": results, "shapes": shapes}, indent=1))


if __name__ == "__main__":
    main()
