"""`berth agent`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import pynvml
import typer

from extender.agent.agent import Agent
from extender.agent.reader import Reader
from extender.cluster.client import ApiClient
from extender.cluster.credentials import load_credentials


def agent_command(
    node: Annotated[str, typer.Option(envvar="NODE_NAME", help="This node's name (the downward API's spec.nodeName).")],
    kubeconfig: Annotated[Path | None, typer.Option(help="Reach the cluster by this file; without it, from inside a pod.")] = None,
) -> None:
    """Publish this node's NVLinks and GPU memory as a ResourceSlice of driver fabric.berth.dev.

    Example: berth agent --node gpu-worker-1
    """
    asyncio.run(_run(node, kubeconfig))


async def _run(node: str, kubeconfig: Path | None) -> None:
    async with ApiClient(load_credentials(kubeconfig), user_agent="berth-agent") as client:
        await Agent(client, node, Reader(pynvml).read).run()
