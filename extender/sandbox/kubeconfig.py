"""A kubeconfig for the sandbox: kubectl and every other client then talk to it as to any cluster."""

from __future__ import annotations

from pathlib import Path

import orjson

_NAME = "berth-sandbox"


def write_kubeconfig(folder: Path, api_url: str) -> Path:
    """Write a kubeconfig without credentials into a folder, and return its path. JSON is YAML."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": _NAME, "cluster": {"server": api_url}}],
        "users": [{"name": _NAME, "user": {}}],
        "contexts": [{"name": _NAME, "context": {"cluster": _NAME, "user": _NAME}}],
        "current-context": _NAME,
    }
    path = folder / "kubeconfig"
    path.write_bytes(orjson.dumps(config, option=orjson.OPT_INDENT_2))
    return path
