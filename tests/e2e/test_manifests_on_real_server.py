"""The manifests, as kubectl applies them, on a real API server. Needs kubectl beside the other binaries."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import yaml

from tests.e2e.control_plane import DOCS, ROOT, ControlPlane, kubectl, on_real_server
from tests.worlds.manifests import PAIRS, rendered

pytestmark = on_real_server("kubectl", seconds=600)


def applied(plane: ControlPlane, folder: Path) -> bool:
    done = kubectl(plane, "apply", "--validate=strict", "-k", str(folder))
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


# As manifests/components/mutating-v1beta1 says for servers before 1.36; later ones have it on.
MUTATING = (
    "--feature-gates=MutatingAdmissionPolicy=true",
    "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
)


def definition(kind: str) -> dict:
    """A CRD of the Prometheus operator that takes every object."""
    plural = f"{kind.lower()}s"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com",
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }


def test_every_pair_of_components_is_accepted(tmp_path: Path) -> None:
    """By a dry run on the server, so that no pair changes the objects that the next one meets."""
    with ControlPlane(tmp_path, *MUTATING) as plane:
        minor = int(plane.get("/version")["minor"].rstrip("+"))
        for obj in (*map(definition, ("PodMonitor", "ServiceMonitor", "PrometheusRule")), namespace()):
            assert kubectl(plane, "create", "-f", "-", text=json.dumps(obj)).returncode == 0
        tried = [pair for pair in PAIRS if minor >= 36 or "mutating" not in pair]
        for pair in tried:
            objects = rendered(tmp_path, *pair)

            def accepted(objects: str = objects) -> bool:
                words = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
                done = kubectl(plane, *words, text=objects)
                print(done.stderr, end="")
                return done.returncode == 0

            plane.wait(accepted, 30)  # a resource that was defined a moment ago may not be served yet
        print(f"{len(tried)} pairs")


def namespace() -> dict:
    return yaml.safe_load((ROOT / "manifests/base/namespace.yaml").read_text())


def denying(folder: Path) -> Path:
    """A kustomization of the component admission with the patch that docs/install.md shows."""
    blocks = re.findall(r"```yaml\n(.*?)```", (DOCS / "install.md").read_text(), re.DOTALL)
    (patches,) = [block for block in blocks if "ValidatingAdmissionPolicyBinding" in block]
    folder.mkdir()
    rendered(folder, "admission")
    with (folder / "kustomization.yaml").open("a") as file:
        file.write(patches)
    return folder


def test_everything_is_accepted_and_the_admission_policies_speak(tmp_path: Path) -> None:
    with ControlPlane(tmp_path, *MUTATING) as plane:
        minor = int(plane.get("/version")["minor"].rstrip("+"))
        mutating = "mutating" if minor >= 36 else "mutating-v1beta1"
        for name in ("", "mtls", "separate", "trial", mutating, "admission"):
            folder = tmp_path / f"with-{name}"
            folder.mkdir()
            rendered(folder, *[name] if name else [])
            started = time.perf_counter()
            plane.wait(lambda folder=folder: applied(plane, folder), 60)
            print(f"kubectl apply with {name or 'no component'}: {time.perf_counter() - started:.1f} s")
            # Before 1.36 the server drops taints of slices, and the trial's fleet has some.
            assert kubectl(plane, "diff", "-k", str(folder)).returncode == 0 or (name == "trial" and minor < 36), (
                "applied as written"
            )
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
        mutated(plane)
        warned_then_denied(plane, tmp_path)


def removed(plane: ControlPlane) -> bool:
    return kubectl(plane, "delete", "pod", "p", "--grace-period=0", "--force").returncode == 0


def mutated(plane: ControlPlane) -> None:
    """A pod with claims gets Berth's scheduler."""
    text = POD.format(namespace="default", scheduler="default-scheduler")

    def changed() -> bool:
        made = kubectl(plane, "create", "-f", "-", text=text).returncode == 0
        found = plane.get("/api/v1/namespaces/default/pods/p")["spec"]["schedulerName"] if made else ""
        return made and (found == "berth-scheduler" or not removed(plane))

    plane.wait(changed, 30)
    assert removed(plane)
    for kind in ("mutatingadmissionpolicy", "mutatingadmissionpolicybinding"):
        assert kubectl(plane, "delete", kind, "berth-set-scheduler-name").returncode == 0


def warned_then_denied(plane: ControlPlane, folder: Path) -> None:
    """As delivered the policies warn; with the documented patch they deny, except where the labels allow it."""
    pod, claims = POD.format(namespace="default", scheduler="default-scheduler"), CLAIM
    scheduler, label = "need schedulerName: berth-scheduler", "need the label berth.dev/gpu"

    def says(words: str, text: str, *options: str, code: int) -> bool:
        done = kubectl(plane, "create", *options, "-f", "-", text=text)
        return words in done.stderr and done.returncode == code

    for text, words in ((pod, scheduler), (claims, label)):
        plane.wait(lambda text=text, words=words: says(words, text, "--dry-run=server", code=0), 30)
    plane.wait(lambda: applied(plane, denying(folder / "denying")), 30)
    for text, words in ((pod, scheduler), (claims, label)):
        plane.wait(lambda text=text, words=words: says(words, text, "--dry-run=server", code=1), 30)
    kubectl(plane, "label", "namespace", "plain", "berth.dev/gpu=true")
    plane.wait(lambda: says("", CLAIM, code=0), 30)
    assert says("", POD.format(namespace="plain", scheduler="berth-scheduler"), code=0)
    component = str(ROOT / "manifests/components/admission")
    assert kubectl(plane, "delete", "-k", component, "--wait=false", "--ignore-not-found").returncode == 0
