"""The manifests, as kubectl applies them, on a real API server. Needs kubectl beside the other binaries."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.control_plane import ROOT, ControlPlane, needs

KUBECTL = Path(os.environ.get("BERTH_KUBE_BIN", ".")) / "kubectl"
pytestmark = [
    needs("kubectl"),
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


def kubectl(plane: ControlPlane, *args: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(KUBECTL), f"--kubeconfig={plane.kubeconfig}", *args],
        capture_output=True,
        text=True,
        input=text,
        check=False,
    )


def applied(plane: ControlPlane, folder: str) -> bool:
    done = kubectl(plane, "apply", "--validate=strict", "-k", str(ROOT / folder))
    print(done.stderr, end="")
    return done.returncode == 0


POD = """
apiVersion: v1
kind: Pod
metadata: {{name: p, namespace: {namespace}}}
spec:
  schedulerName: {scheduler}
  containers: [{{name: c, image: c}}]
  resourceClaims: [{{name: g, resourceClaimName: c}}]
"""
CLAIM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: c, namespace: plain}
spec: {devices: {requests: [{name: g, exactly: {deviceClassName: gpu.nvidia.com}}]}}
"""


# As manifests/overlays/mutating-v1beta1 says for servers before 1.36; later ones have it on.
MUTATING = (
    "--feature-gates=MutatingAdmissionPolicy=true",
    "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
)


def test_everything_is_accepted_and_the_admission_policies_speak(tmp_path: Path) -> None:
    with ControlPlane(tmp_path, *MUTATING) as plane:
        minor = int(plane.get("/version")["minor"].rstrip("+"))
        overlays = ["mtls", "separate", "trial", "mutating" if minor >= 36 else "mutating-v1beta1", "admission"]
        for folder in ("manifests", *(f"manifests/overlays/{name}" for name in overlays)):
            started = time.perf_counter()
            plane.wait(lambda folder=folder: applied(plane, folder), 60)
            print(f"kubectl apply -k {folder}: {time.perf_counter() - started:.1f} s")
            # Before 1.36 the server drops taints of slices, and the trial's fleet has some.
            assert kubectl(plane, "diff", "-k", str(ROOT / folder)).returncode == 0 or (
                folder.endswith("trial") and minor < 36
            ), "applied as written"
        secret = "/api/v1/namespaces/berth-system/secrets/berth-scheduler-token"
        plane.wait(lambda: (plane.get(secret).get("data") or {}).keys() >= {"token", "ca.crt", "namespace"}, 60)
        examined = subprocess.run(
            [sys.executable, "-m", "extender", "doctor", "--kubeconfig", str(plane.kubeconfig)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
        assert (examined.returncode, examined.stdout) == (0, "0 findings\n"), "as installed, nothing hurts"
        kubectl(plane, "create", "namespace", "plain")

        def pod_of() -> str:
            return plane.get("/api/v1/namespaces/default/pods/p")["spec"]["schedulerName"]

        def made() -> bool:
            return (
                kubectl(
                    plane, "create", "-f", "-", text=POD.format(namespace="default", scheduler="default-scheduler")
                ).returncode
                == 0
            )

        def removed() -> bool:
            return kubectl(plane, "delete", "pod", "p", "--grace-period=0", "--force").returncode == 0

        plane.wait(lambda: made() and (pod_of() == "berth-scheduler" or not removed()), 30)
        assert removed()
        for kind in ("mutatingadmissionpolicy", "mutatingadmissionpolicybinding"):
            assert kubectl(plane, "delete", kind, "berth-set-scheduler-name").returncode == 0

        def refused(text: str, words: str) -> bool:
            return words in kubectl(plane, "create", "-f", "-", text=text).stderr

        plane.wait(
            lambda: refused(
                POD.format(namespace="default", scheduler="default-scheduler"), "need schedulerName: berth-scheduler"
            ),
            30,
        )
        plane.wait(lambda: refused(CLAIM, "need the label berth.dev/gpu"), 30)
        kubectl(plane, "label", "namespace", "plain", "berth.dev/gpu=true")
        plane.wait(lambda: kubectl(plane, "create", "-f", "-", text=CLAIM).returncode == 0, 30)
        assert (
            kubectl(
                plane, "create", "-f", "-", text=POD.format(namespace="plain", scheduler="berth-scheduler")
            ).returncode
            == 0
        )
        assert (
            kubectl(
                plane, "delete", "-k", str(ROOT / "manifests/overlays/admission"), "--wait=false", "--ignore-not-found"
            ).returncode
            == 0
        )
