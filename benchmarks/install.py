"""Commands and seconds from an empty control plane to the first pod bound, as an engineer installs Berth for a trial.

Needs BERTH_KUBE_BIN with kubectl beside the other binaries. No kubelet runs here, so this script starts the containers
of the Deployments itself. It uses the arguments, the configuration and the policy that the API server has. Each
container runs as the service account whose token it mounts, with the rights that the manifests give it. Pulling images
is left out.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import yaml

from tests.e2e.control_plane import ROOT, ControlPlane, missing
from tests.worlds.process_worlds import free_port

FOLDERS = ("manifests/", "manifests/components/trial")
EXAMPLE = f"{FOLDERS[1]}/example.yaml"


class Installation:
    """The steps so far, with their seconds."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane = plane
        self.folder = folder
        self.steps: list[tuple[str, float]] = []
        self.pages = f"http://127.0.0.1:{free_port()}"  # of the console

    def kubectl(self, *args: str) -> str:
        done = subprocess.run(
            [str(self.plane.bin / "kubectl"), f"--kubeconfig={self.plane.kubeconfig}", *args],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
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

    def start_pods(self) -> None:
        """The containers of the Deployments, on ports of their own."""
        port = free_port()
        (self.folder / "policy.yaml").write_text(self.config("berth-policy", "policy.yaml"))
        moved = {
            r"0\.0\.0\.0:8889": self.pages.removeprefix("http://"), r"127\.0\.0\.1:8888": f"127.0.0.1:{port}",
            r"0\.0\.0\.0:\d+": f"127.0.0.1:{free_port()}", "/etc/berth/": f"{self.folder}/",
        }  # fmt: skip
        self.start_berth("berth-console", "console", "berth-console", moved)
        self.start_berth("berth-scheduler", "berth", "berth", moved)
        scheduler = yaml.safe_load(self.config("berth-scheduler-config", "berth-scheduler.yaml"))
        scheduler["clientConnection"] = {"kubeconfig": str(self.account("berth-scheduler"))}
        for extender in scheduler["extenders"]:
            extender["urlPrefix"] = f"http://127.0.0.1:{port}"
        (self.folder / "scheduler.yaml").write_text(yaml.safe_dump(scheduler))
        self.plane.start("kube-scheduler", f"--config={self.folder / 'scheduler.yaml'}", "--secure-port=0")

    def start_berth(self, deployment: str, container: str, account: str, moved: dict[str, str]) -> None:
        """Start a container of Berth; `moved` replaces patterns in its arguments."""
        found = yaml.safe_load(self.kubectl("-n", "berth-system", "get", "deployment", deployment, "-o", "yaml"))
        containers = found["spec"]["template"]["spec"]["containers"]
        args = [arg for one in containers if one["name"] == container for arg in one["args"]]
        for pattern, to in moved.items():
            args = [re.sub(pattern, to, arg) for arg in args]
        command = [sys.executable, "-m", "extender", args[0], f"--kubeconfig={self.account(account)}", *args[1:]]
        self.plane.spawn(command, self.folder / f"{account}.log")

    def config(self, name: str, key: str) -> str:
        """A key of a ConfigMap."""
        found = yaml.safe_load(self.kubectl("-n", "berth-system", "get", "configmap", name, "-o", "yaml"))
        return str(found["data"][key])

    def bound(self) -> bool:
        return bool(self.plane.get("/api/v1/namespaces/default/pods/trial")["spec"].get("nodeName"))


def install(plane: ControlPlane, folder: Path) -> Installation:
    """Every step, with its seconds."""
    done = Installation(plane, folder)
    for manifests in FOLDERS:
        done.step(f"kubectl apply -k {manifests}", partial(done.kubectl, "apply", "-k", manifests))
    done.step("the pods start: berth, kube-scheduler and the console", done.start_pods)
    done.step(f"kubectl apply -f {EXAMPLE}", lambda: done.kubectl("apply", "-f", EXAMPLE))
    done.step("the first pod is bound", lambda: plane.wait(done.bound, 120))
    print(f"{sum(seconds for _, seconds in done.steps):6.1f} s  in all")
    return done


def main() -> None:
    if missing():
        raise SystemExit(missing())
    with tempfile.TemporaryDirectory() as text, ControlPlane(Path(text)) as plane:
        install(plane, Path(text))


if __name__ == "__main__":
    main()
