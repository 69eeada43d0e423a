"""A real control plane on loopback: etcd, kube-apiserver, kube-controller-manager, kube-scheduler as child
processes."""

from __future__ import annotations

import concurrent.futures
import json
import os
import re
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest
import yaml

from extender.api.fields import lenient_loads
from extender.sandbox import carried_machines, fabric_slice
from extender.sandbox.machines import Machine, gpu_slice, node_object
from extender.sandbox.sandbox_cluster import GPU_CLASS, MARKER_CLASS
from tests.worlds.manifests import KUBECTL
from tests.worlds.process_worlds import free_port

TOKEN = "e2e-admin"
NODE_NAME, NODE_TOKEN = "real-node", "e2e-kubelet"  # of the kubelet in real_node.py
NEEDED = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
CONTROLLERS = (
    "resourceclaim-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "pod-garbage-collector-controller",
    "serviceaccount-token-controller",
    "clusterrole-aggregation-controller",
    "job-controller",
    "deployment-controller",
    "replicaset-controller",
    "disruption-controller",
    "device-taint-eviction-controller",
)
ROOT = Path(__file__).resolve().parents[2]


def needs(*more: str) -> pytest.MarkDecorator:
    """Skip, saying what is missing, where BERTH_KUBE_BIN does not lead to the binaries of a control plane and
    `more`."""
    reason = missing(*more)
    return pytest.mark.skipif(bool(reason), reason=reason)


def on_real_server(*more: str, seconds: int) -> list[pytest.MarkDecorator]:
    """The marks of tests that start a control plane: `needs`, and the longest time of one test."""
    # urllib leaves closed sockets to the garbage collector if a connection is refused.
    ignored = "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    return [needs(*more), pytest.mark.timeout(seconds), pytest.mark.filterwarnings(*ignored)]


def missing(*more: str) -> str:
    """Why these tests cannot run, or ''."""
    folder = os.environ.get("BERTH_KUBE_BIN")
    if not folder:
        return f"BERTH_KUBE_BIN is not set: it names a folder with {' '.join((*NEEDED, *more))}"
    absent = [name for name in (*NEEDED, *more) if not (Path(folder) / name).exists()]
    return f"BERTH_KUBE_BIN={folder} lacks {' '.join(absent)}" if absent else ""


def minor_version() -> int:
    """The minor version of the kube-apiserver in BERTH_KUBE_BIN."""
    binary = Path(os.environ["BERTH_KUBE_BIN"]) / "kube-apiserver"
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    return int(said.split(".")[1])


class Console(NamedTuple):
    """A console that runs: its process, and the URL of its pages."""

    process: subprocess.Popen[bytes]
    pages: str


def unverified() -> ssl.SSLContext:
    """TLS to a server on loopback whose certificate is self-signed."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class ControlPlane:
    """Start with `with`; every process is ended by its own pid."""

    def __init__(self, folder: Path, *api_args: str, gates: str = "", strict: bool = False) -> None:
        """`gates` are feature gates of all Kubernetes components. A `strict` plane asks for the rights that OpenShift
        asks for, and limits nodes as kubeadm does."""
        self.gates = (f"--feature-gates={gates}",) if gates else ()
        self._api_args = (*self.gates, *api_args, f"--authorization-mode={'Node,RBAC' if strict else 'RBAC'}")
        if strict:
            self._api_args += ("--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",)
        self.bin = Path(os.environ["BERTH_KUBE_BIN"])
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.port = free_port()
        self.kubeconfig = folder / "kubeconfig"

    def __enter__(self) -> Self:
        try:
            self._start_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start_all(self) -> None:
        client, peer = free_port(), free_port()
        self.start(
            "etcd",
            "--data-dir",
            str(self.folder / "etcd"),
            "--listen-client-urls",
            f"http://127.0.0.1:{client}",
            "--advertise-client-urls",
            f"http://127.0.0.1:{client}",
            "--listen-peer-urls",
            f"http://127.0.0.1:{peer}",
            "--unsafe-no-fsync",
        )
        key = self.folder / "sa.key"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        kubelet = f"{NODE_TOKEN},system:node:{NODE_NAME},kubelet,system:nodes\n"
        (self.folder / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n{kubelet}")
        self.start(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{client}",
            f"--secure-port={self.port}",
            "--bind-address=127.0.0.1",
            f"--cert-dir={self.folder / 'certs'}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            "--max-requests-inflight=2000",
            "--max-mutating-requests-inflight=1000",
            *self._api_args,
        )
        self.kubeconfig.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "e2e",
                    "clusters": [{"name": "e2e", "cluster": {"server": self.url, "insecure-skip-tls-verify": True}}],
                    "users": [{"name": "e2e", "user": {"token": TOKEN}}],
                    "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "e2e"}}],
                }
            )
        )
        self.wait(lambda: self.get("/readyz", raw=True) == "ok", 60)
        self.start(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig}",
            "--leader-elect=false",
            "--secure-port=0",
            "--controllers=" + ",".join(CONTROLLERS),
            f"--service-account-private-key-file={key}",
            f"--root-ca-file={self.folder / 'certs' / 'apiserver.crt'}",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
            *self.gates,
        )

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.terminate()
        for process in reversed(list(self.processes)):
            self.end(process)

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """End one process, by force where it does not go."""
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self.processes.remove(process)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def start(self, name: str, *args: str) -> subprocess.Popen[bytes]:
        return self.spawn([str(self.bin / name), *args], self.folder / f"{name}.log")

    def spawn(self, command: list[str], log_path: Path) -> subprocess.Popen[bytes]:
        with log_path.open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT)
        self.processes.append(process)
        return process

    def start_scheduler(
        self, berth_port: int, config: Path = ROOT / "scheduler-config" / "berth-scheduler.yaml"
    ) -> None:
        """The project's own configuration, with the port and the kubeconfig of this run."""
        loaded = yaml.safe_load(config.read_text())
        loaded["clientConnection"] = {
            "kubeconfig": str(self.kubeconfig_of("berth-scheduler")),
            "qps": 500,
            "burst": 1000,
        }
        loaded["leaderElection"] = {"leaderElect": False}
        for extender in loaded["extenders"]:
            extender["urlPrefix"] = f"http://127.0.0.1:{berth_port}"
        path = self.folder / "scheduler.yaml"
        path.write_text(yaml.safe_dump(loaded))
        self.start("kube-scheduler", f"--config={path}", "--secure-port=0", *self.gates)

    def kill(self, *programs: str) -> None:
        """End programs by SIGKILL, all at the same time: `extender` or the name of a Kubernetes program."""

        def runs(process: subprocess.Popen[bytes]) -> bool:
            args = list(process.args)  # type: ignore[arg-type] # `spawn` passes lists
            return any(Path(str(arg)).name in programs for arg in args[:3])

        found = [process for process in self.processes if runs(process)]
        for process in found:
            process.kill()
        for process in found:
            process.wait()
            self.processes.remove(process)

    def start_berth(self, python: str, port: int = 0, policy: Path | None = None) -> int:
        """Start Berth as a user does; returns its port once it is ready."""
        port = port or free_port()
        self.spawn(
            [
                python,
                "-m",
                "extender",
                "serve",
                "--kubeconfig",
                str(self.kubeconfig_of("berth")),
                "--listen",
                f"127.0.0.1:{port}",
                *([f"--policy={policy}"] if policy is not None else []),
            ],
            self.folder / "berth.log",
        )
        self.wait(lambda: _status(f"http://127.0.0.1:{port}/readyz") == 200, 30)
        return port

    def start_console(self, python: str, before: Console | None = None) -> Console:
        """The console with its own account, once it is ready; at the address of the one `before`, which has ended."""
        pages = int(before.pages.rpartition(":")[2]) if before else free_port()
        process = self.spawn([
            python, "-m", "extender", "console", "--kubeconfig", str(self.kubeconfig_of("berth-console")),
            "--listen", f"127.0.0.1:{pages}",
        ], self.folder / "console.log")  # fmt: skip
        self.wait(lambda: _status(f"http://127.0.0.1:{pages}/readyz") == 200, 30)
        return Console(process, f"http://127.0.0.1:{pages}")

    def kubeconfig_of(self, account: str) -> Path:
        """A kubeconfig with the token of an account of manifests/base/rbac.yaml, which has the rights written there."""
        path = self.folder / f"{account}.kubeconfig"
        if path.exists():
            return path
        for obj in (
            yaml.safe_load((ROOT / "manifests/base/namespace.yaml").read_text()),
            *yaml.safe_load_all((ROOT / "manifests/base/rbac.yaml").read_text()),
        ):
            self.ensure(obj)
        config = yaml.safe_load(self.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": self.token_of(account)}
        path.write_text(yaml.safe_dump(config))
        return path

    def token_of(self, account: str, *audiences: str) -> str:
        """A token of a service account, for the API server where no audience is given."""
        spec = {"expirationSeconds": 86400, **({"audiences": list(audiences)} if audiences else {})}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return self.request("POST", f"/api/v1/namespaces/berth-system/serviceaccounts/{account}/token", body)["status"][
            "token"
        ]

    def ensure(self, obj: dict) -> None:
        """Create an object of the manifests where it is not there yet."""
        base = "/api/v1" if obj["apiVersion"] == "v1" else f"/apis/{obj['apiVersion']}"
        namespace = obj["metadata"].get("namespace")
        scope = f"/namespaces/{namespace}" if namespace else ""
        try:
            self.request("POST", f"{base}{scope}/{obj['kind'].lower()}s", obj)
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise

    # -- a small client ---------------------------------------------------------------------------------------

    def request(
        self, method: str, path: str, body: object = None, content: str = "application/json", token: str = TOKEN
    ) -> Any:
        return lenient_loads(self._send(method, path, body, content, token))

    def get(self, path: str, *, raw: bool = False) -> Any:
        found = self._send("GET", path, None, "application/json")
        return found.decode() if raw else lenient_loads(found)

    def _send(self, method: str, path: str, body: object, content: str, token: str = TOKEN) -> bytes:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data, {"Authorization": f"Bearer {token}", "Content-Type": content}, method=method
        )
        try:
            with urllib.request.urlopen(request, context=unverified()) as response:
                return response.read()
        except urllib.error.HTTPError as error:
            error.close()
            raise

    def create(self, obj: dict, namespace: str = "default") -> Any:
        group = obj["apiVersion"]
        base = "/api/v1" if group == "v1" else f"/apis/{group}"
        plural = {"DeviceClass": "deviceclasses"}.get(obj["kind"], obj["kind"].lower() + "s")
        scoped = obj["kind"] not in ("Node", "Namespace", "ResourceSlice", "DeviceClass")
        path = f"{base}/namespaces/{namespace}/{plural}" if scoped else f"{base}/{plural}"
        made = self.request("POST", path, obj)
        if obj["kind"] == "Node" and obj.get("status"):
            self.request(
                "PATCH",
                f"{path}/{obj['metadata']['name']}/status",
                {"status": obj["status"]},
                "application/merge-patch+json",
            )
        return made

    def wait(self, condition: Callable[..., object], seconds: float) -> None:
        end = time.monotonic() + seconds
        problem: object = None
        while time.monotonic() < end:
            for process in self.processes:
                if process.poll() is not None:
                    raise RuntimeError(
                        f"{process.args!r} ended with {process.returncode}; see its log in {self.folder}"
                    )
            try:
                if condition():
                    return
            except (OSError, ValueError) as error:
                problem = error
            time.sleep(0.2)
        raise TimeoutError(f"not within {seconds} s (last problem: {problem}); logs are in {self.folder}")


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def make_classes(plane: ControlPlane) -> None:
    """Create the DeviceClasses of GPUs and of Berth's marker."""
    for class_ in (GPU_CLASS, MARKER_CLASS):
        plane.create(class_)


def make_node(
    plane: ControlPlane, name: str, machine: Machine, labels: dict[str, str] | None = None, cpu: str = ""
) -> None:
    """Create a node that is ready, and the slice of its GPUs. `cpu` is all that it has, in place of the machine's."""
    node = node_object(name, machine, labels or {})
    if cpu:
        node["status"]["allocatable"] = {"cpu": cpu, "memory": "64Gi", "pods": "110"}
    node["status"]["capacity"] = node["status"]["allocatable"]
    node["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    plane.create(node)
    plane.create(gpu_slice(name, machine))


def make_template(plane: ControlPlane, name: str, count: int) -> None:
    """Create a ResourceClaimTemplate of so many GPUs."""
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": count}}
    spec = {"spec": {"devices": {"requests": [request]}}}
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
    plane.create({**kind, "metadata": {"name": name}, "spec": spec})


def make_fleet(plane: ControlPlane, count: int) -> None:
    machines = carried_machines()
    kinds = ["hgx-h100-8", "a100-pcie-8-bridged", "dgx1-v100", "l40s-8-pix"]

    def one(i: int) -> None:
        name, machine = f"node-{i:04}", machines[kinds[i % len(kinds)]]
        make_node(plane, name, machine)
        plane.create(fabric_slice(name, machine))

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(one, range(count)))


def kubectl(
    plane: ControlPlane, *args: str, text: str | None = None, body: object = None
) -> subprocess.CompletedProcess[str]:
    """Run kubectl; its input is the text, or the body as JSON."""
    command = [str(KUBECTL), f"--kubeconfig={plane.kubeconfig}", *args]
    given = text if body is None else json.dumps(body)
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=120, check=False)


def kubectl_error(plane: ControlPlane, *args: str) -> str:
    """What kubectl says of a failed request; '' if it succeeded."""
    done = kubectl(plane, *args)
    return done.stderr if done.returncode else ""


WITHOUT_KUBELET = {
    "rollout status": "Waiting for deployment",
    "port-forward": "pod is not running|unable to forward|no pods|timed out",
    "rollout undo": "no rollout history found|rolled back|not found|skipped",
    "kubectl wait": "timed out waiting for the condition",
}


LIMITS = {
    "rollout status": ["--timeout=2s"],
    "port-forward": ["--pod-running-timeout=2s"],
    "kubectl wait": ["--timeout=1s"],
    "kubectl delete -f": ["--wait=false"],
}


def commands(*pages: Path) -> list[str]:
    """The kubectl commands in the blocks of these pages, each once. test_kubectl_berth.py has those of the plugin."""
    found: dict[str, None] = {}
    for page in pages:
        for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL):
            found.update(
                {line.split(" #")[0].strip(): None for line in block.splitlines() if line.startswith("kubectl")}
            )
    return [command for command in found if not command.startswith("kubectl berth")]


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def run_documented(plane: ControlPlane, some: list[str]) -> None:
    """Run commands in their order. Each must succeed, or come as far as it can without a kubelet."""
    for command in some:
        alone = re.sub(r"\$\(.*\)", "made", command).partition(" | ")[0]  # no shell runs it
        words = [word for word in alone.rstrip(" &").split() if not word.startswith("--timeout")]
        expected = next((words for name, words in WITHOUT_KUBELET.items() if name in command), None)
        limit = next((option for name, option in LIMITS.items() if name in command), [])
        kubectl = [str(plane.bin / "kubectl"), f"--kubeconfig={plane.kubeconfig}", *words[1:], *limit]
        if expected is not None:
            done = run(kubectl)
            assert re.search(expected, done.stdout + done.stderr), (command, done)
            continue
        # A namespace that was made a moment ago may not be ready for what belongs into it.
        plane.wait(lambda kubectl=kubectl: run(kubectl).returncode == 0, 30)
        print(command)


DOCS = ROOT / "docs"


def pod(name: str, template: str) -> dict:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "schedulerName": "berth-scheduler",
            "automountServiceAccountToken": False,
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": template}],
            "containers": [{"name": "c", "image": "pause", "resources": {"claims": [{"name": "gpu"}]}}],
        },
    }
