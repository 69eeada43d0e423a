"""The API server, or a proxy before it, answers a request about one object with success and something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from extender.api.object_meta import ObjectKey
from extender.cluster import ClusterError, Writer
from extender.sandbox import ApiError, Cluster, write_kubeconfig
from tests.worlds.commands import berth_beside
from tests.worlds.faulty_api import Answer
from tests.worlds.guarded_writes import GUARDS
from tests.worlds.interceptions import CUT, Refusing
from tests.worlds.running_berth import Berthing, berthing, claim, one_node, pod

pytestmark = pytest.mark.loopback

Json = dict[str, Any]
FAILURE = {"kind": "Status", "status": "Failure", "code": 500, "message": "no"}
OTHER_POD = {"kind": "Pod", "metadata": {"name": "p", "namespace": "default", "uid": "u"}, "spec": {"nodeName": "n1"}}
OTHER_CLAIM = {"kind": "ResourceClaim", "metadata": {"name": "other", "namespace": "default", "uid": "other"}}


async def planned(b: Berthing) -> str:
    """The node of a pod with a claim that Berth can bind."""
    await b.create(claim("c"), pod("p", "c"))
    return (await b.filter("p"))["NodeNames"][0]


@pytest.mark.parametrize("content", [{}, FAILURE, OTHER_POD], ids=["nothing", "failure", "pod"])
@pytest.mark.parametrize("stored", [False, True])
async def test_a_bind_succeeds_only_if_the_binding_is_stored(content: Json, *, stored: bool) -> None:
    """Attack: a proxy answers a write with success and another object."""
    async with berthing({"n1": "t4-4"}) as b:
        node, wrong = await planned(b), Refusing("/binding", Answer(content), 1)
        if stored:
            b.cluster.api.intercept_reply = wrong
        else:
            b.cluster.api.intercept = wrong
        assert await b.bind("p", node) == ""
        assert b.node_of("p") == node
        assert wrong.count == (1 if stored else 2)


UNREADABLE = {**OTHER_POD, "spec": {"resourceClaims": 7}}


@pytest.mark.parametrize("answer", [Answer({"page": "not found"}, 404), Answer(UNREADABLE)], ids=["page", "unreadable"])
async def test_an_answer_without_the_pod_does_not_say_that_the_binding_failed(answer: Answer) -> None:
    """The reply to a Binding is lost. A load balancer answers the next two reads of the pod with its 404 page, or with
    a pod that cannot be read."""
    async with berthing({"n1": "t4-4"}) as b:
        node, not_found = await planned(b), Refusing("/pods/p", answer, 2, method="GET")
        b.cluster.api.intercept, b.cluster.api.intercept_reply = not_found, Refusing("/binding", CUT)
        assert await b.bind("p", node) == ""
        assert not_found.count > 2
        assert b.node_of("p") == node
        assert b.cluster.store["resourceclaims", ("default", "c")]["status"]["allocation"]


@pytest.mark.parametrize("path", ["/resourceclaims/c", "/resourceclaims/c/status"])
@pytest.mark.parametrize("content", [{}, FAILURE, OTHER_CLAIM], ids=["nothing", "failure", "claim"])
async def test_a_write_answered_with_another_object_is_a_lost_reply(path: str, content: Json) -> None:
    async with one_node(claim("other")) as b:
        node, paths = await planned(b), list[str]()

        async def wrong(method: str, asked: str) -> ApiError | None:
            if method == "PATCH":
                paths.append(asked)
            return Answer(content) if method == "PATCH" and asked.endswith(path) and len(paths) <= 2 else None

        b.cluster.api.intercept_reply = wrong
        assert await b.bind("p", node) == ""
        assert len(b.held()) == 1
        assert not [asked for asked in paths if "/other" in asked]


OTHER_LIST = {"kind": "ConfigMapList", "metadata": {"resourceVersion": "1"}, "items": []}


@pytest.mark.parametrize(
    ("command", "path", "answer", "words"),
    [
        ("snapshot", "/devicetaintrules", Answer({}, 404), "list devicetaintrules: the server serves the kind, but"),
        ("snapshot", "/nodes", Answer({}, 404), "list nodes: "),
        ("doctor", "/resourcequotas", Answer(OTHER_LIST), "is no ResourceQuotaList; its kind is ConfigMapList"),
        ("doctor", "/pods", Answer(OTHER_LIST), "is no PodList; its kind is ConfigMapList"),
        ("doctor", "/mutatingwebhookconfigurations", Answer(FAILURE), "its kind is Status"),
    ],
)
async def test_commands_take_no_other_answer_for_an_empty_list(
    tmp_path: Path, command: str, path: str, answer: Answer, words: str
) -> None:
    cluster = Cluster()
    cluster.api.intercept = Refusing(path, answer)
    async with cluster.serving() as api:
        code, _, problem = await berth_beside([command, "--kubeconfig", str(write_kubeconfig(tmp_path, api))])
    assert code == 2
    assert words in problem


WRONG: list[Json] = [
    {},
    FAILURE,
    {"metadata": []},
    {"metadata": {"name": "x", "namespace": "ns"}},
    {"metadata": {"name": "x", "namespace": "ns", "uid": ["claim-uid"]}},
    {"metadata": {"name": "x", "namespace": "ns", "uid": "another"}},
    {"metadata": {"name": "y", "namespace": "ns", "uid": "claim-uid"}},
]


class Fixed:
    """An API client that answers every request alike."""

    def __init__(self, answer: Json) -> None:
        self._answer = answer

    def __getattr__(self, _: str) -> Any:
        async def call(*_: object, **__: object) -> Json:
            return self._answer

        return call


@pytest.mark.parametrize("answer", WRONG)
@pytest.mark.parametrize("name", sorted(set(GUARDS) - {"touch_class", "create_event"}))  # not about one object's state
async def test_no_write_accepts_another_object(name: str, answer: Json) -> None:
    with pytest.raises(ClusterError):
        await getattr(Writer(Fixed(answer)), name)(*GUARDS[name][0])  # type: ignore[arg-type]  # a fake


@pytest.mark.parametrize("answer", WRONG[:5])
@pytest.mark.parametrize("name", ["read_claim", "read_pod", "read_pod_group"])
async def test_no_read_accepts_another_object(name: str, answer: Json) -> None:
    with pytest.raises(ClusterError):
        await getattr(Writer(Fixed(answer)), name)(ObjectKey("ns", "x"))  # type: ignore[arg-type]  # a fake
