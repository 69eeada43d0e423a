"""Numbers with nouns."""

from __future__ import annotations

from extender.model import counted


def test_one_has_no_plural() -> None:
    assert [counted(n, "node") for n in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]
    assert [counted(n, "pod waits", "pods wait") for n in (1, 2)] == ["1 pod waits", "2 pods wait"]
