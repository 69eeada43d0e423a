"""A real node on this machine: kubelet, containerd and the DRA test driver of the Kubernetes tree, as child processes.

They run in a mount and a PID namespace of their own, where /run, /var/lib, /usr and /opt have layers in memory: nothing
of the machine changes. When the namespace's first process ends, so do all processes and mounts in it, even if pytest
is killed. The pods' network has no link.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import signal
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Self

import pytest
import yaml

from tests.e2e.control_plane import NODE_NAME, NODE_TOKEN, ControlPlane, minor_version, missing
from tests.worlds.process_worlds import free_port

NEEDED = ("kubelet", "containerd", "containerd-shim-runc-v2", "ctr", "runc", "test-driver", "busybox")
DRIVER = "test-driver.cdi.k8s.io"  # the default of the program test-driver (test/e2e/dra/test-driver in the tree)
DEVICES = 4
IMAGE = "e2e.berth.dev/busybox:1"
METADATA = "/var/run/kubernetes.io/dra-device-attributes/*/*/*/*.json"  # where kubelet's DRA helper mounts the devices
# What kubelet writes to these files concerns the whole machine: it writes to copies.
KERNEL_FILES = "vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_max{keys,bytes}"
NAMESPACES = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
)
SET_UP = f"""
set -e
mount -t tmpfs none /run
for place in opt usr var/lib; do
    mkdir -p /run/layers/$place/{{upper,work}} && cd /run/layers/$place
    mount -t overlay none -o lowerdir=/$place,upperdir=$PWD/upper,workdir=$PWD/work /$place
done
for name in {KERNEL_FILES}; do
    mkdir -p /run/sysctl/$name && cat /proc/sys/$name > /run/sysctl/$name/copy
    mount --bind /run/sysctl/$name/copy /proc/sys/$name
done
mkdir -p /var/lib/kubelet/plugins_registry /var/lib/kubelet/plugins/{DRIVER}
echo ready
while :; do sleep 3600 & wait; done
"""
# A CNI plugin that gives every pod one address on no link.
CNI_PLUGIN = """#!/bin/sh
case $CNI_COMMAND in
ADD) echo '{"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "'$CNI_NETNS'"}],
            "ips": [{"interface": 0, "address": "198.51.100.2/24"}]}' ;;
VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}' ;;
esac
"""
CNI_CONFIG = {"cniVersion": "1.0.0", "name": "no-link", "plugins": [{"type": "e2e"}]}
# An overlay's layers need a file system that is no overlay itself, as /run is here.
CONTAINERD = f"""
version = 3
root = "/run/containerd/root"
[plugins."io.containerd.cri.v1.images"]
pinned_images = {{{{ sandbox = "{IMAGE}" }}}}
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{{cni}}"]
conf_dir = "{{cni}}"
use_internal_loopback = true
"""
CGROUPS = Path("/sys/fs/cgroup")


def needs_a_node() -> pytest.MarkDecorator:
    """Skip, saying what is missing, where no real node can run."""
    reason = missing(*NEEDED)
    if not reason and minor_version() < 36:
        reason = "containers see the names of their devices since Kubernetes 1.36"
    works = f"{' '.join(NAMESPACES)} true"
    if not reason and subprocess.run(["sh", "-c", works], capture_output=True, check=False).returncode:
        reason = f"a real node needs root, and that this command works: {works}"
    return pytest.mark.skipif(bool(reason), reason=reason)


class RealNode:
    """Start with `with`, after its control plane."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        """`folder` is for configuration and logs."""
        self.plane, self.folder, self.bin = plane, folder, plane.bin
        self.logs = folder / "pods"
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            self._start_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start_all(self) -> None:
        self._namespace = subprocess.Popen([*NAMESPACES, "bash", "-c", SET_UP], stdout=subprocess.PIPE)
        assert self._namespace.stdout is not None
        assert self._namespace.stdout.readline() == b"ready\n"
        self._start_containerd()
        self._write_kubelet_config()
        self.start_driver()
        self.start_kubelet()
        self.plane.wait(self._ready, 120)

    def _ready(self) -> bool:
        node = self.plane.get(f"/api/v1/nodes/{NODE_NAME}")
        slices = self.plane.get("/apis/resource.k8s.io/v1/resourceslices")["items"]
        states = {one["type"]: one["status"] for one in node["status"]["conditions"]}
        return states.get("Ready") == "True" and any(one["spec"]["driver"] == DRIVER for one in slices)

    def __exit__(self, *_: object) -> None:
        """The last process of the namespace takes all others with it."""
        self._namespace.kill()
        self._namespace.communicate()
        for process in self._running.values():
            process.wait()
        for _attempt in range(50):
            if not remove_cgroups():
                break
            time.sleep(0.1)

    # -- its programs -----------------------------------------------------------------------------------------

    def inside(self, *command: str) -> list[str]:
        """The command line that runs a command in the namespaces of the node."""
        return ["nsenter", "--target", str(_only_child(self._namespace.pid)), "--mount", "--pid", *command]

    def _start(self, name: str, *args: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            environment = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}"}
            command = self.inside(str(self.bin / name), *args)
            self._running[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def stop(self, name: str, by: signal.Signals = signal.SIGTERM) -> None:
        """End a program; nsenter waits for it."""
        process = self._running.pop(name)
        os.kill(_only_child(process.pid), by)
        process.wait(30)

    def start_kubelet(self) -> None:
        self._start(
            "kubelet", f"--config={self.folder / 'kubelet.yaml'}", f"--kubeconfig={self.folder / 'kubeconfig'}",
            f"--hostname-override={NODE_NAME}", "--v=2", *self.plane.gates,
        )  # fmt: skip

    def start_driver(self) -> None:
        self._start(
            "test-driver", "kubelet-plugin", f"--kubeconfig={self.plane.kubeconfig}", f"--node-name={NODE_NAME}",
            f"--num-devices={DEVICES}", "--enable-device-metadata", "-v=4",
        )  # fmt: skip

    def _start_containerd(self) -> None:
        (self.folder / "cni").mkdir()
        plugin = self.folder / "cni" / "e2e"
        plugin.write_text(CNI_PLUGIN)
        plugin.chmod(0o755)
        (self.folder / "cni" / "e2e.conflist").write_text(json.dumps(CNI_CONFIG))
        config = self.folder / "containerd.toml"
        config.write_text(CONTAINERD.format(cni=self.folder / "cni"))
        self._start("containerd", f"--config={config}")
        image = self.folder / "image.tar"
        write_image(image, self.bin / "busybox")
        ctr = self.inside(str(self.bin / "ctr"), "--namespace=k8s.io", "images")
        self.plane.wait(lambda: not subprocess.run([*ctr, "list"], capture_output=True, check=False).returncode, 30)
        subprocess.run([*ctr, "import", str(image)], check=True)

    def _write_kubelet_config(self) -> None:
        """kubelet acts as its node, as in a cluster with the Node authorizer and NodeRestriction."""
        config = yaml.safe_load(self.plane.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": NODE_TOKEN}
        (self.folder / "kubeconfig").write_text(yaml.safe_dump(config))
        written = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "port": free_port(),
            "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "podLogsDir": str(self.logs),
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": False,
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "makeIPTablesUtilChains": False,
            "failSwapOn": False,
            "syncFrequency": "5s",  # when it tries again to prepare a claim; 1m by default
            "evictionHard": {"memory.available": "1Mi"},
            "imageGCHighThresholdPercent": 100,
        }
        (self.folder / "kubelet.yaml").write_text(yaml.safe_dump(written))

    # -- what containers see ----------------------------------------------------------------------------------

    def said(self, pod: dict, container: str = "c") -> list[str]:
        """What a container of a pod has written so far, by lines."""
        metadata = pod["metadata"]
        folder = self.logs / f"{metadata['namespace']}_{metadata['name']}_{metadata['uid']}" / container
        lines = [line for path in sorted(folder.glob("*.log")) for line in path.read_text().splitlines()]
        return [line.split(" ", 3)[3] for line in lines]


def remove_cgroups() -> bool:
    """Remove the cgroups of ended containers. Whether there are others."""
    parents = [*CGROUPS.glob("k8s.io"), *CGROUPS.glob("*/k8s.io")]  # versions 2 and 1
    for found in [*(path for parent in parents for path in parent.iterdir() if path.is_dir()), *parents]:
        with contextlib.suppress(OSError):  # it still has processes
            found.rmdir()
    return any(parent.exists() for parent in parents)


def _only_child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())


def write_image(path: Path, busybox: Path) -> None:
    """An OCI image of one static program, as a file for `ctr images import`."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(busybox, "bin/busybox", filter=lambda member: member.replace(mode=0o755, uid=0, gid=0))
    blobs: list[bytes] = []

    def blob(content: bytes, kind: str) -> dict:
        blobs.append(content)
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": digest, "size": len(content)}

    root = blob(layer.getvalue(), "layer.v1.tar")
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    config = {
        "architecture": machine,
        "os": "linux",
        "config": {"Cmd": ["/bin/busybox", "sleep", "2147483647"]},  # what a sandbox runs
        "rootfs": {"type": "layers", "diff_ids": [root["digest"]]},
    }
    manifest = {"schemaVersion": 2, "config": blob(json.dumps(config).encode(), "config.v1+json"), "layers": [root]}
    named = {
        **blob(json.dumps(manifest).encode(), "manifest.v1+json"),
        "annotations": {"io.containerd.image.name": IMAGE},
    }
    files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}
    files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [named]}).encode()
    files |= {f"blobs/sha256/{hashlib.sha256(content).hexdigest()}": content for content in blobs}
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
