"""The claims with devices of each group, and the pods that use them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from extender.model import Claim, DeviceId, ObjectKey

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
        """Replace a claim. `node` is where the new one has devices; '' if no slice says it.

        Then a claim with the same devices keeps its node: an update of a driver deletes its slices for a while, and a
        driver may publish slices of other nodes in any pool. A claim without a node counts for no group.
        """
        known = self._remove(old) if old is not None else ""
        if known and not node and old is not None and new is not None and _devices(old) == _devices(new):
            node = known
        if new is not None and new.group and node:
            name = new.key.namespace, new.group
            self.claims.setdefault(name, {})[new.key] = node
            self.users.setdefault(name, Counter()).update(_users(new, node))

    def _remove(self, old: Claim) -> str:
        """Returns the node of the claim; '' if it counted for no group."""
        name = old.key.namespace, old.group
        node = self.claims.get(name, {}).pop(old.key, "")
        if not node:
            return ""
        users = self.users[name]
        for user in _users(old, node):
            users[user] -= 1
            if not users[user]:
                del users[user]
        if not self.claims[name]:
            del self.claims[name], self.users[name]
        return node


def _devices(claim: Claim) -> list[DeviceId]:
    return [result.device for result in claim.allocation.results] if claim.allocation is not None else []


def _users(claim: Claim, node: str) -> Iterator[tuple[str, str]]:
    return ((consumer.uid, node) for consumer in claim.reserved_for if consumer.resource == "pods")
