"""The claims with devices of each group, and the pods that use them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from extender.model import Claim, ObjectKey

Name = tuple[str, str]
"""Namespace and GroupKey.on_claims of a group."""


class GroupClaims:
    """Tables by group: `claims` to their node, and `users`, which counts each (UID, node) of a pod that uses a claim.

    64 claims may be reserved for 256 pods each, and each filter request of a gang's member asks for these pods.
    """

    def __init__(self) -> None:
        self.claims: dict[Name, dict[ObjectKey, str]] = {}
        self.users: dict[Name, Counter[tuple[str, str]]] = {}

    def put(self, old: Claim | None, new: Claim | None, node: str) -> None:
        """Replace a claim. `node` is where the new one has devices; '' if it counts for no group."""
        if old is not None:
            self._remove(old)
        if new is not None and new.group and node:
            name = new.key.namespace, new.group
            self.claims.setdefault(name, {})[new.key] = node
            self.users.setdefault(name, Counter()).update(_users(new, node))

    def _remove(self, old: Claim) -> None:
        name = old.key.namespace, old.group
        node = self.claims.get(name, {}).pop(old.key, "")
        if not node:
            return
        users = self.users[name]
        for user in _users(old, node):
            users[user] -= 1
            if not users[user]:
                del users[user]
        if not self.claims[name]:
            del self.claims[name], self.users[name]


def _users(claim: Claim, node: str) -> Iterator[tuple[str, str]]:
    return ((consumer.uid, node) for consumer in claim.reserved_for if consumer.resource == "pods")
