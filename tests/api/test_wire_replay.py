"""Every body that three real kube-schedulers sent gets an answer they would accept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.running_berth import berthing
from tests.worlds.shared_folder import SHARED, needs

FILES = sorted((SHARED / "wire").glob("*.jsonl")) if (SHARED / "wire").exists() else []


@needs("wire")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
async def test_replay(path: Path) -> None:
    """All bodies of a recording, one after the other, to one Berth."""
    wrong = []
    async with berthing({f"gpu-worker-{i}": "t4-4" for i in (1, 2, 3)}) as b:
        for number, line in enumerate(path.read_text().splitlines(), 1):  # noqa: ASYNC240 - nothing else runs yet
            entry = json.loads(line)
            reply = await b.client.post(f"/{entry['verb']}", headers=entry["headers"], content=entry["body"])
            try:
                assert reply.status_code == 200, reply.text
                check(entry["verb"], json.loads(entry["body"]), reply.json())
            except AssertionError as error:
                wrong.append(f"line {number}, {entry['verb']}: {error}")
    assert not wrong, "\n".join(wrong)


def check(verb: str, sent: dict, answer: Any) -> None:
    if verb == "filter":
        check_filter(sent, answer)
    elif verb == "prioritize":
        hosts = sent["NodeNames"] or [n["metadata"]["name"] for n in sent["Nodes"]["items"]]
        assert [entry["Host"] for entry in answer] == hosts
        assert all(type(entry["Score"]) is int and 0 <= entry["Score"] <= 10 for entry in answer)
    elif verb == "bind":
        assert set(answer) == {"Error"}
    elif verb == "preempt":
        assert answer["NodeNameToMetaVictims"] == sent["NodeNameToMetaVictims"]


def check_filter(sent: dict, answer: dict) -> None:
    whole = sent["NodeNames"] is None
    names = [n["metadata"]["name"] for n in sent["Nodes"]["items"]] if whole else sent["NodeNames"]
    if answer["Error"]:
        assert "not known yet" in answer["Error"], "the claims of the recording do not exist in this cluster"
        return
    if whole:
        assert answer["NodeNames"] is None
        kept = [n["metadata"]["name"] for n in answer["Nodes"]["items"]]
        assert all(node in sent["Nodes"]["items"] for node in answer["Nodes"]["items"])
    else:
        assert answer["Nodes"] is None
        kept = answer["NodeNames"]
    assert set(kept) <= set(names)
    assert not set(kept) & set(answer["FailedAndUnresolvableNodes"])
    if not sent["Pod"]["spec"].get("resourceClaims"):
        extended = "nvidia.com/gpu" in json.dumps(sent["Pod"]["spec"]["containers"])
        assert set(kept) == set(names) if extended else kept == names
