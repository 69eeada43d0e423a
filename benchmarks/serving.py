"""Latency of the verbs against a handler that does nothing, time to ready, and memory: ratios within one run.

`make bench` prints a table and keeps it as JSON under bench-results/. Numbers of different runs or machines are not
comparable; their ratios are.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WARM_UP, CALLS = 20, 300


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Http:
    """One keep-alive connection, bytes in and bytes out."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
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
    for _ in range(WARM_UP):
        http.post(path, body)
    times = []
    for _ in range(calls):
        start = time.perf_counter_ns()
        http.post(path, body)
        times.append((time.perf_counter_ns() - start) / 1000)
    times.sort()
    return statistics.median(times), times[int(len(times) * 0.99)]


class Bench:
    """Starts what a measurement needs and ends it by pid."""

    def __init__(self) -> None:
        self.children: list[subprocess.Popen] = []

    def start(self, *args: str, wait_line: bool = False) -> subprocess.Popen:
        child = subprocess.Popen([sys.executable, "-m", *args], cwd=ROOT, stdout=subprocess.PIPE if wait_line else subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.children.append(child)
        if wait_line:
            child.stdout.readline()
        return child

    def stop(self) -> None:
        for child in self.children:
            child.terminate()
        for child in self.children:
            child.wait(20)
            if child.stdout:
                child.stdout.close()
        self.children.clear()

    def berth(self, api_port: int, folder: Path) -> tuple[int, subprocess.Popen, float]:
        """(port, process, seconds from start to ready)."""
        config = folder / "kubeconfig"
        config.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "b", "clusters": [{"name": "b", "cluster": {"server": f"http://127.0.0.1:{api_port}"}}],
            "users": [{"name": "b", "user": {}}], "contexts": [{"name": "b", "context": {"cluster": "b", "user": "b"}}],
        }))
        port, begin = free_port(), time.monotonic()
        child = self.start("extender", "serve", "--kubeconfig", str(config), "--listen", f"127.0.0.1:{port}")
        while time.monotonic() - begin < 120:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz") as reply:
                    if reply.status == 200:
                        return port, child, time.monotonic() - begin
            except OSError:
                time.sleep(0.02)
        raise TimeoutError("berth did not become ready")


def memory_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


def pods_of(api_port: int) -> dict[str, dict]:
    with urllib.request.urlopen(f"http://127.0.0.1:{api_port}/api/v1/pods") as reply:
        return {p["metadata"]["name"]: p for p in json.loads(reply.read())["items"]}


def body_for(pod: dict, names: list[str]) -> bytes:
    # About 10 KB, as real training pods weigh.
    padded = {**pod, "metadata": {**pod["metadata"], "annotations": {**(pod["metadata"].get("annotations") or {}), "padding": "x" * 9000}}}
    return json.dumps({"Pod": padded, "Nodes": None, "NodeNames": names}, separators=(",", ":")).encode()  # as Go writes it


def one_size(nodes: int, mix: str) -> dict:
    bench = Bench()
    try:
        with tempfile.TemporaryDirectory() as folder:
            api, floor = free_port(), free_port()
            bench.start("benchmarks.servers", "fleet", "--port", str(api), "--nodes", str(nodes), "--mix", mix, wait_line=True)
            bench.start("benchmarks.servers", "noop", "--port", str(floor))
            port, berth, ready = bench.berth(api, Path(folder))
            names = [f"node-{i:05}.cluster.example.com" for i in range(nodes)]
            pods = pods_of(api)
            time.sleep(1)
            noop, http = Http(floor), Http(port)
            result: dict = {"nodes": nodes, "mix": mix, "ready_s": round(ready, 2)}
            cold = {}
            for name in ("one", "four"):
                start = time.perf_counter_ns()
                http.post("filter", body_for(pods[name], names))
                cold[name] = (time.perf_counter_ns() - start) / 1000
            result["noop_us"] = measure(noop, "filter", body_for(pods["one"], names))
            for name in ("plain", "one", "four", "never"):
                result[f"filter_{name}_us"] = measure(http, "filter", body_for(pods[name], names))
            shortlist = json.loads(http.post("filter", body_for(pods["four"], names)))["NodeNames"]
            result["prioritize_us"] = measure(http, "prioritize", body_for(pods["four"], shortlist))
            result["explain_ms"], result["filter_one_explaining_us"] = explaining(bench, port, http, body_for(pods["one"], names))
            result["cold_first_us"], result["cold_second_us"] = cold["one"], cold["four"]
            result["memory_mib"] = round(memory_mib(berth.pid), 1)
            return result
    finally:
        bench.stop()


def explaining(bench: Bench, port: int, http: Http, body: bytes) -> tuple[float, tuple[float, float]]:
    """(median milliseconds of explaining a pod that fits nowhere, filter's median and tail meanwhile)."""
    asker = bench.start("benchmarks.servers", "asker", "--port", str(port), wait_line=True)
    found = measure(http, "filter", body)
    asker.terminate()
    assert asker.stdout is not None
    return float(asker.stdout.readline()), found


def show(result: dict) -> None:
    floor = result["noop_us"][0]
    print(f"\n{result['nodes']} nodes x 8 GPUs, {result['mix']}: ready {result['ready_s']} s after start, {result['memory_mib']} MiB resident")
    print(f"  {'no-op handler, same body':32} {floor:9.0f} us   1.00x")
    for key in ("filter_plain_us", "filter_one_us", "filter_four_us", "filter_never_us", "prioritize_us"):
        median, tail = result[key]
        print(f"  {key.removesuffix('_us').replace('_', ' '):32} {median:9.0f} us {median / floor:6.2f}x   p99/p50 {tail / median:.1f}")
    median, tail = result["filter_one_explaining_us"]
    print(f"  {'filter one, explaining meanwhile':32} {median:9.0f} us {median / floor:6.2f}x   p99/p50 {tail / median:.1f}   (an explanation takes {result['explain_ms']:.0f} ms)")
    for key in ("cold_first_us", "cold_second_us"):
        print(f"  {key.removesuffix('_us').replace('_', ' ') + ' shape':32} {result[key]:9.0f} us {result[key] / floor:6.2f}x")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, nargs="*", default=[100, 1000, 5000])
    parser.add_argument("--mix", default="mixed")
    args = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}")
    results = []
    for nodes in args.nodes:
        results.append(one_size(nodes, args.mix))
        show(results[-1])
    folder = ROOT / "bench-results"
    folder.mkdir(exist_ok=True)
    (folder / "serving.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
