"""`berth agent`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from extender.agent.reader_process import AgentApp, ReaderProcess
from extender.agent.slice_publisher import SlicePublisher
from extender.cli.options import Kubeconfig, parse_listen, parse_node
from extender.cluster import ApiClient, load_credentials
from extender.entry.listening import serve_all, server
from extender.runtime.supervisor import DaemonThreads, Supervisor
from extender.topology.agent_slices import DRIVER
from extender.web.asgi import PROBES
from extender.web.http_server import listen_on


def agent_command(
    node: Annotated[str, typer.Option(envvar="NODE_NAME", help="This node's name (the downward API's spec.nodeName).")],
    kubeconfig: Kubeconfig = None,
    probes: Annotated[
        str,
        typer.Option(help="The address of the liveness probe and of the metrics, without TLS.", metavar="HOST:PORT"),
    ] = "127.0.0.1:8886",
) -> None:
    """Publish this node's NVLinks and GPU memory as a ResourceSlice.

    The driver of the slice is fabric.berth.dev.

    Example: berth agent --node gpu-worker-1
    """
    name = parse_node(node, "--node", room_bytes=len(DRIVER) + 1)  # the slice is named after driver and node
    asyncio.run(_run(name, kubeconfig, parse_listen(probes, "--probes")))


async def _run(node: str, kubeconfig: Path | None, probes: tuple[str, int]) -> None:
    """Publish until SIGINT or SIGTERM. The slice stays: the next agent on the node takes it over."""
    asyncio.get_running_loop().set_default_executor(DaemonThreads())
    credentials = load_credentials(kubeconfig)
    sockets, supervisor, reader = listen_on("--probes", *probes), Supervisor(), ReaderProcess()
    async with ApiClient(credentials, user_agent="berth-agent") as client:
        supervisor.start("publisher", SlicePublisher(client, node, reader.read).run)
        try:
            await serve_all({server(AgentApp(reader, supervisor), probes, PROBES): sockets})
        finally:
            await supervisor.stop()
            await reader.stop()
