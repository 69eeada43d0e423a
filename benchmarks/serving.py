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
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks import beside, waking
from benchmarks.beside import summary

BIND_PODS, COLD_PODS = 200, 9  # made by benchmarks.servers
ROOT = Path(__file__).resolve().parents[1]
WARM_UP, CALLS = 20, 300
START_SECONDS = 120  # the longest that a process may take to listen


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Berth(NamedTuple):
    """A process that is ready."""

    process: subprocess.Popen
    port: int
    scrapes: int  # the port that another process answers
    ready_s: float  # from its start

    def memory_mib(self) -> float:
        """All that is resident, what both processes share once."""
        of_the_other = sum(_kib(f"/proc/{pid}/smaps_rollup", "Private_Clean:", "Private_Dirty:") for pid in self._children())
        return (_kib(f"/proc/{self.process.pid}/status", "VmRSS:") + of_the_other) / 1024

    def _children(self) -> list[str]:
        return Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()


def _kib(path: str, *names: str) -> int:
    return sum(int(line.split()[1]) for line in Path(path).read_text().splitlines() if line.startswith(names))


def connected(port: int) -> socket.socket:
    """A connection to a process that may still be starting."""
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


class Http:
    """One keep-alive connection, bytes in and bytes out."""

    def __init__(self, port: int) -> None:
        self.socket = connected(port)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""

    def post(self, path: str, body: bytes) -> bytes:
        head = f"POST /{path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self.socket.sendall(head.encode() + body)
        while b"\r\n\r\n" not in self.buffer:
            self.buffer += self.socket.recv(1 << 20)
        header, _, rest = self.buffer.partition(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in header.split(b"\r\n") if line.lower().startswith(b"content-length"))
        while len(rest) < length:
            rest += self.socket.recv(1 << 20)
        self.buffer = rest[length:]
        return rest[:length]


def measure(http: Http, path: str, body: bytes, calls: int = CALLS) -> tuple[float, float]:
    """(median, 99th percentile) in microseconds."""
    timed(http, path, body, WARM_UP)
    return summary(timed(http, path, body, calls))


def timed(http: Http, path: str, body: bytes, calls: int) -> list[float]:
    """Microseconds of each call."""
    times = []
    for _ in range(calls):
        start = time.perf_counter_ns()
        http.post(path, body)
        times.append((time.perf_counter_ns() - start) / 1000)
    return times


class Bench:
    """Starts what a measurement needs and ends it by pid."""

    def __init__(self) -> None:
        self.children: list[subprocess.Popen] = []
        self.connections: list[Http] = []

    def start(self, *args: str, wait_line: bool = False) -> subprocess.Popen:
        child = subprocess.Popen([sys.executable, "-m", *args], cwd=ROOT, stdout=subprocess.PIPE if wait_line else subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.children.append(child)
        if wait_line:
            child.stdout.readline()
        return child

    def connect(self, port: int) -> Http:
        self.connections.append(Http(port))
        return self.connections[-1]

    def stop(self) -> None:
        for one in self.connections:
            one.socket.close()
        for child in self.children:
            child.terminate()
        for child in self.children:
            child.wait(20)
            if child.stdout:
                child.stdout.close()
        self.children.clear()

    def berth(self, api_port: int, folder: Path) -> Berth:
        """Berth for an API server, once it is ready."""
        config = folder / "kubeconfig"
        config.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "b", "clusters": [{"name": "b", "cluster": {"server": f"http://127.0.0.1:{api_port}"}}],
            "users": [{"name": "b", "user": {}}], "contexts": [{"name": "b", "context": {"cluster": "b", "user": "b"}}],
        }))
        port, scrapes, begin = free_port(), free_port(), time.monotonic()
        child = self.start("extender", "serve", "--kubeconfig", str(config), "--listen", f"127.0.0.1:{port}", "--metrics", f"127.0.0.1:{scrapes}")
        while time.monotonic() - begin < 120:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz") as reply:
                    if reply.status == 200:
                        return Berth(child, port, scrapes, time.monotonic() - begin)
            except OSError:
                time.sleep(0.02)
        raise TimeoutError("berth did not become ready")


def pods_of(api_port: int) -> dict[str, dict]:
    with urllib.request.urlopen(f"http://127.0.0.1:{api_port}/api/v1/pods") as reply:
        return {p["metadata"]["name"]: p for p in json.loads(reply.read())["items"]}


def body_for(pod: dict, names: list[str]) -> bytes:
    """As Go writes it; about 10 KB of pod, as real training pods weigh."""
    metadata = dict(pod["metadata"])
    metadata = {name: metadata.pop(name) for name in ("name", "namespace", "uid", "resourceVersion")} | metadata
    metadata["annotations"] = {**(metadata.get("annotations") or {}), "padding": "x" * 9000}
    sent = {"metadata": metadata, "spec": pod["spec"], "status": pod.get("status", {})}
    return json.dumps({"Pod": sent, "Nodes": None, "NodeNames": names}, separators=(",", ":")).encode()


def one_size(nodes: int, mix: str, occupancy: int) -> dict:
    bench = Bench()
    try:
        with tempfile.TemporaryDirectory() as folder:
            api, floor = free_port(), free_port()
            fleet = bench.start("benchmarks.servers", "fleet", "--port", str(api), "--nodes", str(nodes), "--mix", mix, "--occupancy", str(occupancy), wait_line=True)
            bench.start("benchmarks.servers", "noop", "--port", str(floor))
            berth = bench.berth(api, Path(folder))
            names = [f"node-{i:05}.cluster.example.com" for i in range(nodes)]
            pods = pods_of(api)
            time.sleep(1)
            noop, http = bench.connect(floor), bench.connect(berth.port)
            result: dict = {"nodes": nodes, "mix": mix, "occupancy": occupancy, "ready_s": round(berth.ready_s, 2)}
            for name in ("one", "four"):
                http.post("filter", body_for(pods[name], names))
            result["cold_us"] = summary([timed(http, "filter", body_for(pods[f"cold-{i}"], names), 1)[0] for i in range(COLD_PODS)])
            result["noop_us"] = measure(noop, "filter", body_for(pods["one"], names))
            result["noop_pass_us"] = measure(noop, "pass", body_for(pods["plain"], names))
            before = cpu_seconds(berth.process.pid)
            for name in ("plain", "one", "four", "never"):
                result[f"filter_{name}_us"] = measure(http, "filter", body_for(pods[name], names))
            result["cpu_us_per_filter"] = (cpu_seconds(berth.process.pid) - before) / 4 / (CALLS + WARM_UP) * 1e6
            shortlist = json.loads(http.post("filter", body_for(pods["four"], names)))["NodeNames"]
            result["prioritize_us"] = measure(http, "prioritize", body_for(pods["four"], shortlist))
            result["scrape_ms"] = scraping(berth.scrapes)
            body = body_for(pods["one"], names)
            result["beside"] = pages_beside(bench, berth, lambda: http.post("filter", body))
            if mix != "mig":
                fleet.send_signal(signal.SIGUSR1)
                time.sleep(0.5)
                result["filter_one_churn_us"] = measure(http, "filter", body_for(pods["one"], names))
            result["bind_us"] = binding(http, [pods[f"bind-{i}"] for i in range(BIND_PODS)], names)
            result["memory_mib"] = round(berth.memory_mib(), 1)
            return result
    finally:
        bench.stop()


def pages_beside(bench: Bench, berth: Berth, call: Callable[[], object]) -> list[dict]:
    """Each page at each pace."""
    late = free_port()
    bench.start("benchmarks.servers", "late", "--port", str(late))
    results = []
    for (page, path), gap in itertools.product(beside.PAGES.items(), beside.GAPS):
        port = berth.scrapes if page == "metrics" else berth.port
        asker = bench.start("benchmarks.servers", "asker", "--port", str(port), "--path", path, "--late", str(late), wait_line=True)
        results.append({"page": page, "gap_ms": gap * 1000, **beside.compared(asker, call, gap)._asdict()})
    return results


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def scraping(port: int) -> float:
    """Median milliseconds of GET /metrics."""
    took = []
    for _ in range(20):
        start = time.perf_counter()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
            reply.read()
        took.append(1000 * (time.perf_counter() - start))
    return statistics.median(took)


def binding(http: Http, pods: list[dict], names: list[str]) -> tuple[float, float]:
    """(median, 99th percentile) in microseconds of bind, one after the other, on an API server whose writes take 1 ms."""
    times = []
    for pod in pods:
        found = json.loads(http.post("filter", body_for(pod, names)))["NodeNames"]
        if not found:
            continue
        meta = pod["metadata"]
        body = json.dumps({"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": found[0]}).encode()
        start = time.perf_counter_ns()
        answer = json.loads(http.post("bind", body))
        times.append((time.perf_counter_ns() - start) / 1000)
        assert not answer["Error"], answer
    times.sort()
    return (statistics.median(times), times[int(len(times) * 0.99)]) if times else (0.0, 0.0)


def show(result: dict) -> None:
    floor = result["noop_us"][0]
    print(f"\n{result['nodes']} nodes x 8 GPUs, {result['mix']}, {result['occupancy']} % held: ready {result['ready_s']} s after start, {result['memory_mib']} MiB resident, {result['cpu_us_per_filter']:.0f} us of CPU a filter")
    print(f"  {'no-op handler, same body':32} {floor:9.0f} us   1.00x")
    passing = result["noop_pass_us"][0]
    print(f"  {'no-op handler that passes all':32} {passing:9.0f} us {passing / floor:6.2f}x   a pod that is not ours takes {result['filter_plain_us'][0] / passing:.2f} times that")
    for key in ("filter_plain", "filter_one", "filter_four", "filter_never", "prioritize", "filter_one_churn", "bind"):
        if f"{key}_us" in result:
            median, tail = result[f"{key}_us"]
            print(f"  {key.replace('_', ' '):32} {median:9.0f} us {median / floor:6.2f}x   p99/p50 {tail / (median or 1):.1f}")
    cold, worst = result["cold_us"]
    print(f"  {'a shape never seen':32} {cold:9.0f} us {cold / floor:6.2f}x   {(cold - result['filter_one_us'][0]) / 1000:.1f} ms more than one seen before, {worst / 1000:.1f} ms at worst")
    for found in result["beside"]:
        print(f"  filters {found['gap_ms']:.0f} ms apart beside {found['page']:8} {found['took_ms']:5.1f} ms   {compared_text(found)}")
    print(f"  a scrape takes {result['scrape_ms']:.1f} ms", flush=True)


def compared_text(found: dict) -> str:
    """Filters beside a question over those beside the control, at the median and at the 99th percentile."""
    (median, tail), (usual, usual_tail) = found["beside"], found["control"]
    return f"p50 {median / (usual or 1):.2f} of the control's ({median:.0f} us) p99 {tail / (usual_tail or 1):.2f} ({tail:.0f} us)"


def growth(results: list[dict]) -> None:
    """How figures grow with the fleet: 1 would be in step with it, 0 not at all."""
    sizes = sorted((r for r in results if r["mix"] == "mixed" and not r["occupancy"]), key=lambda r: r["nodes"])
    for small, large in itertools.pairwise(sizes):
        steps = math.log(large["nodes"] / small["nodes"])
        slopes = {key: math.log(large[key][0] / small[key][0]) / steps for key in ("noop_us", "filter_one_us", "filter_four_us", "bind_us") if small[key][0] and large[key][0]}
        print(f"growth from {small['nodes']} to {large['nodes']} nodes: " + ", ".join(f"{key.removesuffix('_us')} {slope:.2f}" for key, slope in slopes.items()))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, nargs="*", default=[100, 1000, 5000, 15000], help="fleets of mixed nodes, empty")
    parser.add_argument("--mix", default="mixed", help="of those fleets: mixed, uniform, kinds (16 kinds of devices) or mig")
    parser.add_argument("--at", type=int, default=1000, help="nodes of the other fleets and occupancies; 0 leaves them out")
    parser.add_argument("--shapes", type=int, default=500, help="live shapes of the last measurement; 0 leaves it out")
    parser.add_argument("--shape-nodes", type=int, default=5000, help="half-full nodes in it")
    parser.add_argument("--waiting", type=int, default=4096, help="waiting pods in it")
    args = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}")
    cases = [(nodes, args.mix, 0) for nodes in args.nodes]
    cases += [(args.at, "mixed", share) for share in (50, 90, 99)] + [(args.at, mix, 0) for mix in ("uniform", "kinds", "mig")] + [(args.at, "mig", 50)] if args.at else []
    results = []
    for case in cases:
        results.append(one_size(*case))
        show(results[-1])
    growth(results)
    shapes = {}
    if args.shapes:
        shapes = waking.measure(args.shape_nodes, args.shapes, args.waiting, events=10, gap=1.0)
        waking.show(shapes, args.shape_nodes, args.shapes, args.waiting)
    folder = ROOT / "bench-results"
    folder.mkdir(exist_ok=True)
    machine = {"machine": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()}
    (folder / "serving.json").write_text(json.dumps({**machine, "results": results, "shapes": shapes}, indent=1))


if __name__ == "__main__":
    main()
