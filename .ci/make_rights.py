"""Writes the table of rights in SECURITY.md from the manifests: each account, and what its roles allow."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "SECURITY.md"
BEGIN, END = "<!-- rights: written by .ci/make_rights.py -->\n", "<!-- end of rights -->\n"
_MANIFESTS = ("rbac.yaml", "agent.yaml")


def table() -> str:
    """The rows of all accounts, in the order of the manifests."""
    objects = [
        obj
        for name in _MANIFESTS
        for obj in yaml.safe_load_all((ROOT / "manifests" / "base" / name).read_text())
    ]
    roles = {(obj["kind"], obj["metadata"]["name"]): obj for obj in objects if obj["kind"] in ("Role", "ClusterRole")}
    rows = ["| account | resource | verbs | where |", "|---|---|---|---|"]
    for obj in objects:
        if obj["kind"] in ("RoleBinding", "ClusterRoleBinding"):
            where = obj["metadata"].get("namespace", "the cluster")
            ref = obj["roleRef"]
            (account,) = {subject["name"] for subject in obj["subjects"]}
            role = roles.get((ref["kind"], ref["name"]))
            if role is None:
                rows.append(f"| `{account}` | all of the built-in {ref['kind']} `{ref['name']}` |  | {where} |")
                continue
            rows += [f"| `{account}` | {what} | {verbs} | {where} |" for what, verbs in _rights(role)]
    return "\n".join(rows) + "\n"


def _rights(role: dict[str, Any]) -> list[tuple[str, str]]:
    verbs: dict[str, list[str]] = defaultdict(list)
    for rule in role["rules"]:
        names = "".join(f" `{name}`" for name in rule.get("resourceNames", ()))
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                verbs[f"`{resource}{'.' + group if group else ''}`{names}"] += rule["verbs"]
    return [(what, ", ".join(dict.fromkeys(some))) for what, some in verbs.items()]


def written() -> str:
    """SECURITY.md with the table as the manifests have it."""
    before, rest = FILE.read_text().split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    FILE.write_text(written())
