"""`berth serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from extender.model.errors import WireError
from extender.serve import serve

_PORTS = 65536


def parse_listen(text: str) -> tuple[str, int]:
    """HOST:PORT. Raises WireError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) >= _PORTS:
        raise WireError("--listen", f"must be HOST:PORT, is {text!r}")
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - ':8888' means every interface


def serve_command(
    kubeconfig: Annotated[Path | None, typer.Option(help="Reach the cluster by this file; without it, from inside a pod.")] = None,
    listen: Annotated[str, typer.Option(help="Where kube-scheduler finds Berth.", metavar="HOST:PORT")] = "127.0.0.1:8888",
    policy: Annotated[Path | None, typer.Option(help="The policy's YAML file (the mounted ConfigMap).")] = None,
) -> None:
    """Serve the extender's verbs for a cluster.

    Example: berth serve --kubeconfig ~/.kube/config --policy policy.yaml
    """
    host, port = parse_listen(listen)
    serve(kubeconfig, host, port, policy)
