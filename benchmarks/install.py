"""Commands and seconds from an empty control plane to the first pod bound, as an engineer installs Berth for a trial.

Needs BERTH_KUBE_BIN with kubectl beside the other binaries. No kubelet runs here, so this script starts the two containers
of the Deployment itself: with the arguments, the configuration and the policy that the API server has, and each as
the service account whose token it mounts, with the rights that the manifests give it. Pulling images is left out.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from tests.e2e.control_plane import ROOT, ControlPlane, free_port, missing

OVERLAY = "manifests/overlays/trial"
EXAMPLE = f"{OVERLAY}/example.yaml"


class Installation:
    """What was done so far and how long it took."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane = plane
        self.folder = folder
        self.steps: list[tuple[str, float]] = []

    def kubectl(self, *args: str) -> str:
        done = subprocess.run([str(self.plane.bin / "kubectl"), f"--kubeconfig={self.plane.kubeconfig}", *args], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"kubectl {' '.join(args)}: {done.stderr}")
        return done.stdout

    def step(self, name: str, work: Callable[[], object]) -> None:
        start = time.perf_counter()
        work()
        self.steps.append((name, time.perf_counter() - start))
        print(f"{self.steps[-1][1]:6.1f} s  {name}", flush=True)

    def account(self, name: str) -> Path:
        """A kubeconfig of a service account whose token a container mounts."""
        token = self.kubectl("-n", "berth-system", "create", "token", name).strip()
        config = yaml.safe_load(self.plane.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        path = self.folder / f"{name}.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path

    def start_pod(self) -> None:
        """The containers of the Deployment, on ports of their own."""
        port = free_port()
        config = lambda name, key: yaml.safe_load(self.kubectl("-n", "berth-system", "get", "configmap", name, "-o", "yaml"))["data"][key]
        (self.folder / "policy.yaml").write_text(config("berth-policy", "policy.yaml"))
        pod = yaml.safe_load(self.kubectl("-n", "berth-system", "get", "deployment", "berth-scheduler", "-o", "yaml"))["spec"]["template"]["spec"]
        args = [a for c in pod["containers"] if c["name"] == "berth" for a in c["args"]]
        args = [re.sub(r"0\.0\.0\.0:\d+", lambda _: f"127.0.0.1:{free_port()}", a) for a in args]  # pages and metrics
        args = [a.replace("/etc/berth/", f"{self.folder}/").replace(":8888", f":{port}") for a in args]
        self.plane._spawn([sys.executable, "-m", "extender", args[0], f"--kubeconfig={self.account('berth')}", *args[1:]], self.folder / "berth.log")
        scheduler = yaml.safe_load(config("berth-scheduler-config", "berth-scheduler.yaml"))
        scheduler["clientConnection"] = {"kubeconfig": str(self.account("berth-scheduler"))}
        for extender in scheduler["extenders"]:
            extender["urlPrefix"] = f"http://127.0.0.1:{port}"
        (self.folder / "scheduler.yaml").write_text(yaml.safe_dump(scheduler))
        self.plane.start("kube-scheduler", f"--config={self.folder / 'scheduler.yaml'}", "--secure-port=0")

    def bound(self) -> bool:
        return bool(self.plane.get("/api/v1/namespaces/default/pods/trial")["spec"].get("nodeName"))  # type: ignore[index]


def install(plane: ControlPlane, folder: Path) -> list[tuple[str, float]]:
    """(command, seconds) of every step."""
    done = Installation(plane, folder)
    done.step(f"kubectl apply -k {OVERLAY}", lambda: done.kubectl("apply", "-k", OVERLAY))
    done.step("the pod starts: berth and kube-scheduler", done.start_pod)
    done.step(f"kubectl apply -f {EXAMPLE}", lambda: done.kubectl("apply", "-f", EXAMPLE))
    done.step("the first pod is bound", lambda: plane.wait(done.bound, 120))
    print(f"{sum(seconds for _, seconds in done.steps):6.1f} s  in all")
    return done.steps


def main() -> None:
    if missing():
        raise SystemExit(missing())
    with tempfile.TemporaryDirectory() as text, ControlPlane(Path(text)) as plane:
        install(plane, Path(text))


if __name__ == "__main__":
    main()
