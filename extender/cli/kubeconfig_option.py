"""The option of all commands that ask the API server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Kubeconfig = Annotated[
    Path | None,
    typer.Option(help="The kubeconfig of the cluster. Default: $KUBECONFIG, ~/.kube/config, or the pod's account."),
]
