"""`kubectl berth` reaches a pod of the console through a real API server, kubelet and container runtime.

kubelet listens on loopback, and the API server dials the node's name: a proxy of this test leads it to loopback, as
konnectivity does in clusters whose nodes the API server does not reach.
"""

from __future__ import annotations

import socket
import sys
import threading
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import yaml

from tests.e2e.control_plane import NODE_NAME, ControlPlane
from tests.e2e.real_node import IMAGE, RealNode, needs_a_node
from tests.worlds.commands import berth

pytestmark = [
    needs_a_node(),
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
Json = dict
FLEET = '{"nodes": [{"name": "n1", "product": "T4", "gpus": "ff"}], "waiting": 0, "pending": [], "decisions": []}'
# It answers as far as `berth nodes` asks; the file is larger than one message of the WebSocket.
SERVE = f"""
/bin/busybox mkdir -p /www/v1
echo '{FLEET}' > /www/v1/fleet
i=0
while [ $i -lt 3000 ]; do echo '                                ' >> /www/v1/fleet; i=$((i+1)); done
exec /bin/busybox httpd -f -p 8889 -h /www
"""
RIGHTS = {
    "pods": {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
    "secrets": {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["berth-page-token"], "verbs": ["get"]},
    "forward": {"apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["get", "create"]},
}


def copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for one in (source, target):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


def connect(client: socket.socket) -> None:
    """Answer CONNECT NAME:PORT, and lead to this port of loopback."""
    head = b""
    while b"\r\n\r\n" not in head:
        head += client.recv(4096)
    port = int(head.split()[1].rpartition(b":")[2])
    remote = socket.create_connection(("127.0.0.1", port))
    client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
    threading.Thread(target=copy, args=(remote, client), daemon=True).start()
    copy(client, remote)


@contextmanager
def egress(folder: Path) -> Iterator[Path]:
    """The file of an EgressSelectorConfiguration that leads to loopback."""
    path = folder / "proxy"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=connect, args=(listening.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        connection = {"proxyProtocol": "HTTPConnect", "transport": {"uds": {"udsName": str(path)}}}
        config = folder / "egress.yaml"
        config.write_text(yaml.safe_dump({
            "apiVersion": "apiserver.k8s.io/v1beta1", "kind": "EgressSelectorConfiguration",
            "egressSelections": [{"name": "cluster", "connection": connection}],
        }))  # fmt: skip
        yield config


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    folder = tmp_path_factory.mktemp
    with (
        egress(folder("egress")) as config,
        ControlPlane(folder("plane"), f"--egress-selector-config-file={config}", strict=True) as started,
        RealNode(started, folder("node")),
    ):
        started.kubeconfig_of("berth")  # makes the namespace
        core = "/api/v1/namespaces/berth-system"
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "berth-page-token"},
                  "stringData": {"token": "secret"}}  # fmt: skip
        started.request("POST", f"{core}/secrets", secret)
        started.request("POST", f"{core}/pods", console())
        started.wait(lambda: is_ready(started.get(f"{core}/pods/berth-console-1")), 240)
        yield started


def console() -> Json:
    """The labels, the port and the Secret of the real one, with a small server."""
    container = {
        "name": "console", "image": IMAGE, "imagePullPolicy": "Never", "command": ["/bin/busybox", "sh", "-c", SERVE],
        "ports": [{"name": "pages", "containerPort": 8889}], "volumeMounts": [{"name": "www", "mountPath": "/www"}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }  # fmt: skip
    volumes = [{"name": "page-token", "secret": {"secretName": "berth-page-token"}}, {"name": "www", "emptyDir": {}}]
    user = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    metadata = {"name": "berth-console-1", "labels": {"app": "berth-console"}}
    spec = {
        "nodeName": NODE_NAME, "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 1,
        "containers": [container], "volumes": volumes, "securityContext": user,
    }  # fmt: skip
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def is_ready(pod: Json) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", ()))


def kubeconfig(plane: ControlPlane, *rights: str) -> str:
    """A kubeconfig of a user with these rights in the namespace of Berth."""
    name = "-".join(["user", *rights])
    base = "/apis/rbac.authorization.k8s.io/v1/namespaces/berth-system"
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
    role = {"metadata": {"name": name}, "rules": [RIGHTS[right] for right in rights]}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "berth-system"}
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    plane.request("POST", "/api/v1/namespaces/berth-system/serviceaccounts", account)
    plane.request("POST", f"{base}/roles", role)
    plane.request("POST", f"{base}/rolebindings", {"metadata": {"name": name}, "roleRef": ref, "subjects": [subject]})
    config = yaml.safe_load(plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": plane.token_of(name)}
    path = plane.folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    return str(path)


def nodes(plane: ControlPlane, *rights: str, token: str = "") -> tuple[int, str, str]:
    environment = {"KUBECONFIG": kubeconfig(plane, *rights), "BERTH_SERVER": "", "BERTH_TOKEN": token}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["kubectl-berth"])
        return berth(["nodes", "-o", "name"], environment)


def test_a_user_with_three_rights_reaches_the_console(plane: ControlPlane) -> None:
    assert nodes(plane, "pods", "secrets", "forward") == (0, "node/n1\n", "")


PLACE = "namespace berth-system of context e2e"
USER = "system:serviceaccount:berth-system:user"


def test_a_right_that_lacks_is_named_with_verb_and_resource(plane: ControlPlane) -> None:
    code, _, err = nodes(plane, "secrets", "forward")
    assert (code, err) == (
        2,
        (
            f'berth: cannot list pods in {PLACE}: pods is forbidden: User "{USER}-secrets-forward" cannot list '
            'resource "pods" in API group "" in the namespace "berth-system"'
        ),
    )
    code, _, err = nodes(plane, "pods", "forward")
    assert (code, err) == (
        2,
        (
            f'berth: cannot get Secret berth-page-token in {PLACE}: secrets "berth-page-token" is forbidden: User '
            f'"{USER}-pods-forward" cannot get resource "secrets" in API group "" in the namespace "berth-system"; '
            "who knows the token can set BERTH_TOKEN"
        ),
    )
    code, _, err = nodes(plane, "pods", "secrets")
    assert (code, err) == (2, f"berth: your account may not get and create pods/portforward in {PLACE}")
    assert nodes(plane, "pods", "forward", "forward", token="secret")[:2] == (0, "node/n1\n")


def test_a_port_at_which_nothing_listens_has_the_error_of_kubelet(plane: ControlPlane) -> None:
    path = "/api/v1/namespaces/berth-system/pods/berth-console-1"
    pod = console()
    pod["spec"]["containers"][0]["command"] = ["/bin/busybox", "sleep", "1000000"]
    plane.request("DELETE", path, {})

    def gone() -> bool:
        try:
            plane.get(path)
        except urllib.error.HTTPError as error:
            return error.code == 404
        return False

    plane.wait(gone, 120)
    plane.request("POST", path.rpartition("/")[0], pod)
    plane.wait(lambda: is_ready(plane.get(path)), 120)
    code, _, err = nodes(plane, "forward", "pods", "secrets")
    assert code == 2
    assert err.startswith(f"berth: cannot forward port 8889 of pod berth-console-1 in {PLACE}: ")
    assert "connection refused" in err or err.endswith("the connection ended without an answer"), "kubelet may be first"
