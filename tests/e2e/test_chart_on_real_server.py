"""Helm's engine installs, upgrades and removes the chart on a real API server. Needs kubectl beside the other
binaries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml

from benchmarks.install import EXAMPLE, Installation
from tests.e2e.control_plane import ROOT, ControlPlane, kubectl, on_real_server, run_documented
from tests.worlds.helm_chart import CHART, NAMESPACE, Values, helm, objects_of_chart, rendered_chart

pytestmark = on_real_server("kubectl", seconds=300)
CHANGED: Values = {
    "verbs": "separate",
    "scheduler": {"replicas": 3},
    "agent": {"enabled": False},
    "admission": {"enabled": True},
    "policy": {"candidates": 1},
}
Names = set[tuple[str, str]]


def names(plane: ControlPlane, *selector: str) -> Names:
    """Kind and name of all objects of the kinds that the chart has."""
    kinds = {kind for values in ({}, CHANGED) for kind, _ in objects_of_chart(values)}
    done = kubectl(plane, "get", ",".join(sorted(kinds)), "-A", "-o", "yaml", *selector)
    assert done.returncode == 0, done.stderr
    return {(obj["kind"], obj["metadata"]["name"]) for obj in yaml.load(done.stdout, yaml.CSafeLoader)["items"]}


def examined(plane: ControlPlane) -> str:
    command = [sys.executable, "-m", "extender", "doctor", "--kubeconfig", str(plane.kubeconfig)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout


def test_installed_upgraded_rolled_back_and_removed(tmp_path: Path) -> None:
    with ControlPlane(tmp_path) as plane:
        assert kubectl(plane, "create", "-f", str(ROOT / "manifests/base/namespace.yaml")).returncode == 0
        before = names(plane)
        with helm.Config(kubeconfig_path=plane.kubeconfig, namespace=NAMESPACE) as release:
            release.install(str(CHART), "berth", {})
            assert names(plane) - before - {("Secret", "sh.helm.release.v1.berth.v1")} == set(objects_of_chart({}))
            secret = f"/api/v1/namespaces/{NAMESPACE}/secrets/berth-scheduler-token"
            plane.wait(lambda: (plane.get(secret).get("data") or {}).keys() >= {"token", "ca.crt", "namespace"}, 60)
            assert examined(plane) == "0 findings\n"
            notes = rendered_chart({})["berth/templates/NOTES.txt"]
            commands = [line.strip() for line in notes.splitlines() if line.startswith("  kubectl -n ")]
            commands = [command for command in commands if "$(" not in command]
            assert len(commands) == 2
            run_documented(plane, commands)
            binds_a_pod(plane, tmp_path)

            of_release = ("-l", "app.kubernetes.io/instance=berth")
            release.upgrade(str(CHART), "berth", CHANGED)
            assert names(plane, *of_release) == set(objects_of_chart(CHANGED))
            assert replicas(plane) == 3
            release.rollback("berth")
            assert names(plane, *of_release) == set(objects_of_chart({}))
            assert replicas(plane) == 2
            release.uninstall("berth")
        assert names(plane) - before - trial() == set()


def replicas(plane: ControlPlane) -> int:
    return int(plane.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/berth-scheduler")["spec"]["replicas"])


def trial() -> Names:
    """The objects that the trial adds beside the chart."""
    objects = yaml.load_all((ROOT / "manifests/components/trial/fleet.yaml").read_text(), yaml.CSafeLoader)
    return {(obj["kind"], obj["metadata"]["name"]) for obj in objects}


def binds_a_pod(plane: ControlPlane, folder: Path) -> None:
    """The containers of the chart's Deployments, with the rights of their accounts, bind the pod of the trial."""
    installed = Installation(plane, folder)
    installed.kubectl("apply", "-k", "manifests/components/trial")
    installed.start_pods()
    installed.kubectl("apply", "-f", EXAMPLE)
    plane.wait(installed.bound, 120)
    found = plane.get("/api/v1/namespaces/default/pods/trial")
    assert found["metadata"]["annotations"]["berth.dev/decision"].startswith("score ")
