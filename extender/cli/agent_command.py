"""`berth agent`."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import pynvml
import typer

from extender.agent import Reader, SlicePublisher
from extender.cli.addresses import parse_node
from extender.cli.kubeconfig_option import Kubeconfig
from extender.cluster import ApiClient, load_credentials
from extender.fabric import DRIVER


def agent_command(
    node: Annotated[str, typer.Option(envvar="NODE_NAME", help="This node's name (the downward API's spec.nodeName).")],
    kubeconfig: Kubeconfig = None,
) -> None:
    """Publish this node's NVLinks and GPU memory as a ResourceSlice.

    The driver of the slice is fabric.berth.dev.

    Example: berth agent --node gpu-worker-1
    """
    name = parse_node(node, "--node", room_bytes=len(DRIVER) + 1)  # the slice is named after driver and node
    asyncio.run(_until_signal(_run(name, kubeconfig)))


async def _until_signal(running: Coroutine[None, None, None]) -> None:
    """Run until SIGINT or SIGTERM. The slice stays: the next agent on the node takes it over.

    The kernel drops SIGTERM for the first process of a container unless that process handles it.
    """
    work = asyncio.create_task(running)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, work.cancel)
    with suppress(asyncio.CancelledError):
        await work


async def _run(node: str, kubeconfig: Path | None) -> None:
    async with ApiClient(load_credentials(kubeconfig), user_agent="berth-agent") as client:
        await SlicePublisher(client, node, Reader(pynvml).read).run()
