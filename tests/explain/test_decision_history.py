"""The list of decisions is bounded, and fair to namespaces; pods that leave the watch are read up to a limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extender.api.object_meta import ObjectKey
from extender.api.pods import Pod
from extender.cluster import Writer
from extender.console import DecisionHistory
from extender.console.decision_history import DecisionReader
from extender.scheduling.decision import Decision, ScoredNode, parse_decision
from extender.topology.score_parts import ScorePart
from tests.worlds.eventually import eventually
from tests.worlds.explain_worlds import decided, run_pod
from tests.worlds.running_berth import berthing, claim, pod

pytestmark = pytest.mark.loopback

DECISION = Decision("", ScoredNode("n", 1.0, (), 0.0, 0.0, "", ()))


def test_the_history_is_bounded_and_the_pods_of_one_namespace_hide_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack: fill the console's memory, or hide the decisions of other namespaces, with ever new pods."""
    monkeypatch.setattr("extender.console.decision_history._MAX_PODS", 50)
    history = DecisionHistory()
    for number in range(3):
        history.record_decision(ObjectKey("x", f"p{number}"), f"honest{number}", DECISION)
    for number in range(100):
        history.record_decision(ObjectKey("tenant", f"p{number}"), f"u{number}", DECISION)
    kept = [entry.uid for entry in history.recent(99)]
    assert len(kept) == 50
    assert (kept[0], kept[-3:]) == ("u99", ["honest2", "honest1", "honest0"])
    assert [entry.uid for entry in history.recent(2)] == ["u99", "u98"]
    assert history.recent(99, history.version) == []
    assert history.pods_named("p1") == {ObjectKey("x", "p1")}


@pytest.mark.parametrize("runner_up", [("", 0.0), ("n2", 0.031), ("n2.example", 0.0)])
def test_the_text_of_a_decision_is_read_again(runner_up: tuple[str, float]) -> None:
    parts = (ScorePart("link", 0.5, "predicted ring of 2 GPUs: 80 GB/s; the best"), ScorePart("health", 1.0, "xid; 2"))
    chosen = ScoredNode("n1", 0.75, ("d/n1/gpu-0", "d/n1/gpu-1"), 80.0, 160.0, "agent", parts, clique="rack-1.0")
    found = parse_decision(chosen.annotation(*runner_up))
    assert found[:4] == (0.75, parts, *runner_up)
    assert found.clique == "rack-1.0"


@pytest.mark.parametrize("text", ["", "; ;", "score x; runner-up", "link 1.00", "score 1.0; devices ; link 9.99: "])
def test_a_text_that_a_user_wrote_does_no_harm(text: str) -> None:
    """Attack: show users a false decision with the annotation of a pod."""
    assert parse_decision(text).runner_up == ""


async def test_pods_beyond_the_queue_are_left_out_and_only_bound_pods_of_berth_are_decisions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Attack: keep the console reading with thousands of pods that are deleted."""
    async with berthing({"n1": "t4-4"}) as b:
        read, history, console = list[str](), DecisionHistory(), b.console

        async def read_pod(key: ObjectKey) -> Pod:
            read.append(key.name)
            return await Writer(console.client).read_pod(key)

        monkeypatch.setattr("extender.console.decision_history._MAX_WAITING", 2)
        reader = DecisionReader(console.cache, history, console.jobs, console.set_comparer, read_pod, console.refreshed)
        assert await run_pod(b, "bound", [claim("bound", 2)]) == "n1"
        b.cluster.apply(claim("waits", 9))
        b.cluster.apply(pod("waits", "waits"))
        b.cluster.apply(pod("other", "waits", schedulerName="default-scheduler"))
        await b.settled()
        pods = {one.key.name: one for one in console.cache.store.pods.values()}
        bound = (await decided(b, "bound")).decision.chosen
        assert len(bound.devices) == 2
        reader.pod_changed(pods["other"], None)
        for _ in range(2):
            reader.pod_changed(pods["waits"], None)
        gone = b.cluster.store["pods", ("default", "bound")]["metadata"]["uid"]
        for uid in ("a", gone):
            reader.pod_changed(replace(pods["waits"], key=ObjectKey("default", "bound"), uid=uid), None)
        assert reader.left_out == 1
        b.app.service.supervisor.start("reads", reader.run)
        await eventually(lambda: history.entry(gone), "the bound pod is read")
        assert [one.uid for one in history.recent(9)] == [gone]
        assert set(read) <= {"bound", "waits"}
