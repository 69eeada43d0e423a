"""The generated parts of the documents and their diagrams are those of the code, and the console replies as shown."""

from __future__ import annotations

import re

import pytest
from pydantic import TypeAdapter

from tests.worlds.manifests import script
from tests.worlds.running_berth import berthing, claim, pod

REFERENCE, DIAGRAMS = script("make_reference"), script("make_diagrams")


@pytest.mark.parametrize("page", REFERENCE.PARTS)
def test_a_page_agrees_with_the_code(page: str) -> None:
    assert (REFERENCE.DOCS / page).read_text() == REFERENCE.written(page), "run `make reference`"


@pytest.mark.parametrize("name", DIAGRAMS.PICTURES)
def test_a_diagram_shows_its_table(name: str) -> None:
    assert (DIAGRAMS.DOCS / "img" / name).read_text() == DIAGRAMS.PICTURES[name](), "run `make picture`"


def test_no_row_counts_the_rest_of_a_bar() -> None:
    rows = DIAGRAMS.cpu_rows()["5,000 nodes, 1 GPU"]
    assert rows["in-tree"] == {"all": 56.0}
    assert rows["Berth"] == {"all": 41.0, "kube-scheduler": 15.5, "Berth": 6.6}


async def test_the_console_replies_in_the_documented_shapes() -> None:
    known = {"namespace": "default", "pod": "p", "name": "n1"}
    async with berthing({"n1": "dgx1-v100"}) as b:
        waits = pod("p", "c", annotations={"berth.dev/group": "n1", "berth.dev/group-min": "2"})
        for obj in (claim("c", 20), waits):
            b.cluster.apply(obj)
        await b.settled()
        for path, shape in REFERENCE.REPLIES.items():
            method, _, template = path.partition(" ")
            if shape is None:
                continue
            address = re.sub(r"\{(\w+)\}", lambda found: known[found[1]], template)
            reply = await b.client.request(method, address, json={"pod": "default/p"} if method == "POST" else None)
            assert reply.status_code == 200, (path, reply.text)
            TypeAdapter(shape).validate_json(reply.content)
