"""The PriorityClasses of the manifests, installed and removed as documented, on a real API server: they are for pods
of Berth alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.control_plane import ControlPlane, kubectl, minor_version, on_real_server
from tests.worlds.manifests import MANIFESTS, objects_of

pytestmark = on_real_server("kubectl", seconds=300)

TENANT = ("--as=tenant", "--namespace=team-a")
REFUSED = "the PriorityClasses berth-* are for pods of namespace berth-system only"
GATES = "GenericWorkload=true,GangScheduling=true,WorkloadAwarePreemption=true"  # with them PodGroups have priorities


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    groups = minor_version() == 36
    served = ["--runtime-config=scheduling.k8s.io/v1alpha2=true"] if groups else []
    with ControlPlane(tmp_path_factory.mktemp("plane"), *served, gates=GATES if groups else "") as started:
        started.wait(lambda: kubectl(started, "create", "namespace", "team-a").returncode == 0, 30)
        kubectl(started, "create", "rolebinding", "tenant", "--clusterrole=edit", "--user=tenant", "-n", "team-a")
        started.wait(lambda: kubectl(started, "auth", "can-i", "create", "pods", *TENANT).returncode == 0, 30)
        assert not kubectl(started, "apply", "-k", str(MANIFESTS)).returncode
        yield started


def created(plane: ControlPlane, obj: dict, *options: str) -> str:
    """What kubectl says to a dry run; '' if the server accepts the object."""
    done = kubectl(plane, "create", "--dry-run=server", *options, "-f", "-", body=obj)
    return done.stderr if done.returncode else ""


def pod(**spec: object) -> dict:
    containers = [{"name": "c", "image": "pause"}]
    made = {"automountServiceAccountToken": False, "containers": containers, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": made}


@pytest.mark.parametrize("name", ["berth-scheduler", "berth-agent"])
def test_a_tenant_s_pod_cannot_have_a_priority_class_of_berth(plane: ControlPlane, name: str) -> None:
    """Attack: evict pods of others with a pod, or a PodGroup, of a PriorityClass of Berth."""
    plane.wait(
        lambda: REFUSED in created(plane, pod(priorityClassName=name), *TENANT), 30
    )  # in force some seconds later
    assert not created(plane, pod(), *TENANT)
    assert not created(plane, pod(priorityClassName="system-node-critical"), *TENANT), (
        "of other classes it says nothing"
    )


def test_a_tenant_s_pod_group_cannot_have_a_priority_class_of_berth(plane: ControlPlane) -> None:
    """Attack: evict pods of others with a pod, or a PodGroup, of a PriorityClass of Berth."""
    if minor_version() != 36:
        pytest.skip("scheduling.k8s.io/v1alpha2 is served by 1.36 alone")

    def group(**spec: object) -> dict:
        spec["schedulingPolicy"] = {"gang": {"minCount": 1}}
        return {
            "apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": {"name": "g"}, "spec": spec,
        }  # fmt: skip

    plane.wait(lambda: REFUSED in created(plane, group(priorityClassName="berth-scheduler"), *TENANT), 30)
    assert not created(plane, group(), *TENANT)


@pytest.mark.parametrize(
    ("file", "kind", "controller"),
    [
        ("base/scheduler.yaml", "Deployment", "replicaset-controller"),
        ("components/separate/berth.yaml", "Deployment", "replicaset-controller"),
        ("base/agent.yaml", "DaemonSet", "daemon-set-controller"),
    ],
)
def test_the_controllers_create_the_pods_of_berth(plane: ControlPlane, file: str, kind: str, controller: str) -> None:
    (owner,) = objects_of(file, kind).values()
    template = owner["spec"]["template"]
    assert template["spec"]["priorityClassName"].startswith("berth-")
    template["spec"].pop("runtimeClassName", None)  # the GPU operator installs it
    made = {"apiVersion": "v1", "kind": "Pod", **template}
    made["metadata"]["name"] = "p"
    account = f"--as=system:serviceaccount:kube-system:{controller}"
    assert not created(plane, made, account, "--namespace=berth-system")
    plane.wait(lambda: REFUSED in created(plane, made, account, "--namespace=team-a"), 30)


def test_the_documented_removal_removes_the_policy(plane: ControlPlane) -> None:
    """And every other object that concerns the whole cluster."""
    page = (MANIFESTS.parent / "docs" / "install.md").read_text()
    (removal,) = [line for line in page.splitlines() if line.startswith("kubectl delete --ignore-not-found -k ")]
    words = removal.split()[1:-1]
    done = kubectl(plane, *words, str(MANIFESTS), "--wait=false")
    assert done.returncode == 0, done.stderr
    kinds = "validatingadmissionpolicies,validatingadmissionpolicybindings,priorityclasses,deviceclasses"
    left = kubectl(plane, "get", kinds, "-o", "name")
    assert [name for name in left.stdout.split() if "/berth" in name] == []
