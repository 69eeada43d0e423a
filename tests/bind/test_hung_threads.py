"""A thread that hangs does not keep a process from ending."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from extender.entry.listening import EventLoop
from tests.worlds.eventually import HANG_SECONDS, answers, eventually
from tests.worlds.process_starter import start
from tests.worlds.process_worlds import free_port, sandbox

COMMANDS = {"serve": "--listen", "console": "--listen", "agent": "--probes"}
OUTDATED = {
    "kind": "ExecCredential",
    "apiVersion": "client.authentication.k8s.io/v1",
    "status": {"token": "t", "expirationTimestamp": "2020-01-01T00:00:00Z"},
}


def use_plugin_that_hangs(folder: Path) -> tuple[Path, Path]:
    """The kubeconfig gets a credential plugin whose second call hangs.

    Returns a file that exists from that call on, and the pipe that ends it.
    """
    first, second, pipe, plugin = (folder / name for name in ("first", "second", "pipe", "plugin"))
    os.mkfifo(pipe)
    plugin.write_text(
        f"#!/bin/sh\nif [ -e {first} ]; then touch {second}; exec cat {pipe}; fi\n"
        f"touch {first}; echo '{json.dumps(OUTDATED)}'\n"
    )
    plugin.chmod(0o700)
    config = yaml.safe_load((folder / "kubeconfig").read_text())
    run = {"apiVersion": OUTDATED["apiVersion"], "command": str(plugin), "interactiveMode": "Never"}
    config["users"][0]["user"] = {"exec": run}
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    return second, pipe


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_credential_plugin_that_hangs_does_not_keep_a_process_from_ending(command: str, tmp_path: Path) -> None:
    port = free_port()
    async with sandbox(tmp_path):
        hangs, pipe = use_plugin_that_hangs(tmp_path)
        options = (COMMANDS[command], f"127.0.0.1:{port}", "--kubeconfig", str(tmp_path / "kubeconfig"))
        process = start(command, *options, env={**os.environ, "NODE_NAME": "n1"})
        try:
            await answers(f"http://127.0.0.1:{port}/livez", 200)
            await eventually(hangs.exists, "the plugin hangs")
            process.terminate()
            assert await asyncio.to_thread(process.wait, HANG_SECONDS) == 0
        finally:
            os.close(os.open(pipe, os.O_RDWR))  # ends the plugin
            process.kill()


def test_addresses_are_asked_for_in_the_default_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads of uvloop kept a process from ending while a name server hung."""
    threads = list[threading.Thread]()

    def ask(*_: object) -> list[object]:
        threads.append(threading.current_thread())
        return []

    async def find() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(thread_name_prefix="default"))
        assert await loop.getaddrinfo("localhost", 1) == []

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    with asyncio.Runner(loop_factory=EventLoop) as runner:
        runner.run(find())
    assert [thread.name for thread in threads] == ["default_0"]
