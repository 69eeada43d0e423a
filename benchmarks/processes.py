"""Berth's processes under measurement, and HTTP connections to them: bytes in and bytes out."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from extender.sandbox import write_kubeconfig
from tests.worlds.process_worlds import free_port

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 120  # the longest that a process may take to listen


class Berth(NamedTuple):
    """`berth serve` and `berth console`, both ready."""

    process: subprocess.Popen
    port: int
    ready_s: float  # from the start of serve
    console: subprocess.Popen
    console_port: int


def resident_mib(process: subprocess.Popen, field: str = "VmRSS") -> float:
    """Resident memory of a process in MiB. The most that it ever had is the field VmHWM."""
    (line,) = [one for one in Path(f"/proc/{process.pid}/status").read_text().splitlines() if one.startswith(field)]
    return int(line.split()[1]) / 1024


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
        head = (
            f"POST /{path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.socket.sendall(head.encode() + body)
        while b"\r\n\r\n" not in self.buffer:
            self.buffer += self.socket.recv(1 << 20)
        header, _, rest = self.buffer.partition(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1]) for line in header.split(b"\r\n") if line.lower().startswith(b"content-length")
        )
        while len(rest) < length:
            rest += self.socket.recv(1 << 20)
        self.buffer = rest[length:]
        return rest[:length]


Launch = Callable[[Sequence[str], int], Any]  # of a module and its arguments, and where its output goes


def launched(args: Sequence[str], stdout: int) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-m", *args], cwd=ROOT, stdout=stdout, stderr=subprocess.DEVNULL)


class Bench:
    """Starts the processes of a measurement and ends them by pid."""

    def __init__(self, launch: Launch = launched) -> None:
        self._launch = launch
        self.children: list[subprocess.Popen] = []
        self.connections: list[Http] = []

    def start(self, *args: str, wait_line: bool = False) -> subprocess.Popen:
        child = self._launch(args, subprocess.PIPE if wait_line else subprocess.DEVNULL)
        self.children.append(child)
        if child.stdout is not None:
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
        """Serve and console for an API server, once both are ready."""
        config = write_kubeconfig(folder, f"http://127.0.0.1:{api_port}")
        port, pages = free_port(), free_port()
        begin = time.monotonic()
        serve = self.start("extender", "serve", "--kubeconfig", str(config), "--listen", f"127.0.0.1:{port}")
        ready(port)
        ready_s = time.monotonic() - begin
        console = self.start("extender", "console", "--kubeconfig", str(config), "--listen", f"127.0.0.1:{pages}")
        ready(pages)
        return Berth(serve, port, ready_s, console, pages)


def ready(port: int) -> None:
    """Return once /readyz answers 200."""
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz"):
                return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def pods_of(api_port: int) -> dict[str, dict]:
    with urllib.request.urlopen(f"http://127.0.0.1:{api_port}/api/v1/pods") as reply:
        return {p["metadata"]["name"]: p for p in json.loads(reply.read())["items"]}


def body_for(pod: dict, names: list[str]) -> bytes:
    """The body of a filter request as Go encodes it. The pod has about 10 KB, the size of real training pods."""
    metadata = dict(pod["metadata"])
    metadata = {name: metadata.pop(name) for name in ("name", "namespace", "uid", "resourceVersion")} | metadata
    metadata["annotations"] = {**(metadata.get("annotations") or {}), "padding": "x" * 9000}
    sent = {"metadata": metadata, "spec": pod["spec"], "status": pod.get("status", {})}
    return json.dumps({"Pod": sent, "Nodes": None, "NodeNames": names}, separators=(",", ":")).encode()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
