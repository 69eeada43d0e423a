"""Writes the tables of rights in SECURITY.md from the manifests: one for each account, with what its roles allow.

Resources with equal verbs share a row.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "SECURITY.md"
BEGIN, END = "<!-- rights: written by .ci/make_rights.py -->\n", "<!-- end of rights -->\n"
_MANIFESTS = ("rbac.yaml", "agent.yaml")


def tables() -> str:
    """A table for each account, in the order of the manifests."""
    objects = [
        obj for name in _MANIFESTS for obj in yaml.safe_load_all((ROOT / "manifests" / "base" / name).read_text())
    ]
    roles = {(obj["kind"], obj["metadata"]["name"]): obj for obj in objects if obj["kind"] in ("Role", "ClusterRole")}
    accounts = [obj["metadata"]["name"] for obj in objects if obj["kind"] == "ServiceAccount"]
    rows: dict[str, dict[tuple[str, str], list[str]]] = {account: defaultdict(list) for account in accounts}
    for obj in objects:
        if obj["kind"] in ("RoleBinding", "ClusterRoleBinding"):
            where = obj["metadata"].get("namespace", "the cluster")
            (account,) = {subject["name"] for subject in obj["subjects"]}
            for what, verbs in _bound(obj["roleRef"], roles):
                rows[account][verbs, where].append(what)
    return "\n".join(f"Account `{account}`:\n\n{_table(rows[account])}" for account in accounts)


def _table(rows: dict[tuple[str, str], list[str]]) -> str:
    head = "| resources | verbs | where |\n|---|---|---|\n"
    return head + "".join(f"| {', '.join(what)} | {verbs} | {where} |\n" for (verbs, where), what in rows.items())


def _bound(ref: dict[str, str], roles: dict[tuple[str, str], Any]) -> list[tuple[str, str]]:
    """Resources and verbs that a binding gives."""
    role = roles.get((ref["kind"], ref["name"]))
    return _rights(role) if role is not None else [(f"all of the built-in {ref['kind']} `{ref['name']}`", "")]


def _rights(role: dict[str, Any]) -> list[tuple[str, str]]:
    verbs: dict[str, list[str]] = defaultdict(list)
    for rule in role["rules"]:
        names = "".join(f" `{name}`" for name in rule.get("resourceNames", ()))
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                verbs[f"`{resource}{'.' + group if group else ''}`{names}"] += rule["verbs"]
    return [(what, ", ".join(dict.fromkeys(some))) for what, some in verbs.items()]


def written() -> str:
    """SECURITY.md with the tables as the manifests have them."""
    before, rest = FILE.read_text().split(BEGIN)
    return before + BEGIN + tables() + END + rest.split(END)[1]


if __name__ == "__main__":
    FILE.write_text(written())
