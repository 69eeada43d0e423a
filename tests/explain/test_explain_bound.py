"""Explanations of bound pods, and of pods that need no devices."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import yaml

from extender.cli.main import commands
from extender.sandbox import ApiError
from extender.sandbox.apiserver.registry import RESOURCES
from extender.scheduling.decision import runner_up_text
from tests.worlds.commands import berth, berth_beside
from tests.worlds.dra_worlds import CLAIMS
from tests.worlds.explain_worlds import decided, run_pod, why
from tests.worlds.running_berth import Berthing, berthing, claim, pod

cli = commands()

PLAIN = str(Path(__file__).resolve().parents[2] / "examples" / "11-plain.yaml")
H100, A100 = "hgx-h100-8", "a100-pcie-8-bridged"


def test_a_runner_up_is_behind_or_as_good() -> None:
    assert runner_up_text("n2", 0.0312) == "runner-up n2, 0.031 behind"
    assert runner_up_text("n2", 0.0) == runner_up_text("n2", 0.0004) == "runner-up n2, as good"


async def test_a_bound_pod_keeps_its_decision() -> None:
    async with berthing({"n1": H100, "n2": A100}) as b:
        node = await run_pod(b, "p", [claim("p", 2)])
        await decided(b, "p")
        found = await why(b, "p")
        decision = found["decision"]
        assert found["outcome"] == "bound"
        assert {decision["chosen"]["node"], decision["runner_up"]} == {"n1", "n2"}
        second = f"; {runner_up_text(decision['runner_up'], decision['margin'])}"
        assert b.pod("p")["metadata"]["annotations"]["berth.dev/decision"].endswith(second)
        _, out, _ = await berth_beside(["explain", "default/p", "--server", str(b.client.base_url)])
        assert second in " ".join(out.split())
        ring, best = (round(decision["chosen"][name]) for name in ("ring_gbps", "best_gbps"))
        assert ring == best
        assert f"; predicted {ring} GB/s, the best for this pod (" in " ".join(out.split())
        assert decision["chosen"]["node"] == node
        assert decision["margin"] > 0
        assert 0 < decision["chosen"]["ring_gbps"] <= decision["chosen"]["best_gbps"]
        assert b.pod("p")["metadata"]["annotations"]["berth.dev/decision"].startswith("score ")


async def test_a_bound_pod_without_devices_is_explained() -> None:
    async with berthing({"n1": H100}) as b:
        await b.create(pod("plain", nodeName="n1"), claim("c", 2), pod("foreign", "c", nodeName="n1"))
        found = await why(b, "plain")
        assert found["outcome"] == "not-ours"
        assert found["sentence"] == (
            "pod default/plain requests no devices: Berth accepts all nodes; the pod is bound to node n1"
        )
        found = await why(b, "foreign")
        assert found["outcome"] == "bound"
        assert found["sentence"] == (
            "pod default/foreign is bound to n1, without a decision of Berth: "
            "its claims were allocated before, or another scheduler bound it"
        )


def remove(b: Berthing, name: str) -> None:
    """Delete a pod and its claim, as when a StatefulSet's pod is replaced."""
    for resource in (RESOURCES["", "pods"], CLAIMS):
        with suppress(ApiError):
            b.cluster.api.registry.delete(resource, ("default", name))


async def test_a_new_pod_of_a_name_has_no_decision_of_the_deleted_one() -> None:
    """StatefulSets use names again: compare UIDs, while the new pod waits, and when another scheduler bound it."""
    async with berthing({"n1": H100}) as b:
        await run_pod(b, "p", [claim("p", 2)])
        await decided(b, "p")
        remove(b, "p")
        await b.settled()
        reply = await b.client.get("/v1/explain/default/p")
        assert (reply.status_code, "pod default/p does not exist" in reply.text) == (404, True)
        await b.create(claim("other", 9), pod("p", "other"))
        found = await why(b, "p")
        assert found["outcome"] == "refused"
        assert "decision" not in found
        b.cluster.api.registry.delete(RESOURCES["", "pods"], ("default", "p"))
        await b.create(pod("p", "other", nodeName="n1"))
        found = await why(b, "p")
        assert "decision" not in found
        assert "is bound to n1, without a decision of Berth" in found["sentence"]


async def test_the_example_without_devices_is_no_failure(tmp_path: Path) -> None:
    async with berthing({"n1": H100}) as b:
        code, out, _ = await berth_beside(["explain", "-f", PLAIN, "--server", str(b.client.base_url)])
    assert (code, out) == (0, "pod default/plain-web requests no devices: Berth accepts all nodes\n")
    (tmp_path / "fleet.json").write_text(yaml.safe_dump({"kind": "Node", "metadata": {"name": "n1"}}))
    code, out, _ = berth(["explain", "-f", PLAIN, "--snapshot", str(tmp_path / "fleet.json")])
    assert (code, out) == (0, "pod default/plain-web requests no devices: Berth accepts all nodes\n")


async def test_explain_reports_that_narrate_has_no_effect_without_a_search() -> None:
    async with berthing({"n1": H100}) as b:
        await run_pod(b, "p", [claim("p", 2)])
        await decided(b, "p")
        server = str(b.client.base_url)
        code, out, errors = await berth_beside(["explain", "default/p", "--narrate", "n1", "--server", server])
        assert code == 0
        assert out.startswith("pod default/p was bound to n1")
        assert errors == "berth: --narrate has no effect: no node was searched for pod default/p\n"
