"""The ClusterRole allows every call that the code can make, and nothing else."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.agent import agent as agent_module
from extender.cluster.writer import Writer
from extender.mirror.mirror import Mirror
from extender.model.claim import Allocation, Claim, ClaimSpec, Consumer, ObjectKey, Pod
from extender.service.waking import MARKER_CLASS
from extender.service.watching import kinds
from extender.web.metrics import HISTOGRAM, READINGS, SUMMARY
from tests.berthing import claim

MANIFESTS = Path(__file__).resolve().parents[1] / "manifests"
KEY = ObjectKey("ns", "x")
POD = Pod(KEY, "uid")
CONSUMER = Consumer("uid", "x")
ALLOCATED = Claim(KEY, "c", "1", allocation=Allocation(), reserved_for=(CONSUMER,), finalizers=("resource.kubernetes.io/delete-protection",))
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "read_claim": (KEY,), "read_pod": (KEY,), "read_pod_group": (KEY,), "read_has_bound_member": (KEY,),
    "announce_take_back": (ALLOCATED,),
    "add_finalizer": (Claim(KEY, "c", "1"), "g"), "take_over": (ALLOCATED,), "allocate": (ALLOCATED, Allocation(), CONSUMER),
    "reserve": (ALLOCATED, Consumer("other", "y")), "deallocate": (ALLOCATED,), "unreserve": (ALLOCATED, "uid"),
    "bind_pod": (KEY, "uid", "n", {}), "create_special_claim": (POD, ClaimSpec()), "map_special_claim": (POD, ALLOCATED, ()),
    "delete_claim": (ALLOCATED,),
    "touch_class": (MARKER_CLASS, "a", "v"), "tell": ("Pod", KEY, "uid", "Reason", "note"),
}
_VERB = {"GET": "get", "POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}
Call = tuple[str, str, str, str]  # API group, resource with subresource, verb, name


class Recording:
    """An API client that answers everything and remembers it."""

    def __init__(self) -> None:
        self.calls: set[Call] = set()

    def __getattr__(self, method: str):
        async def call(path: str, *_: object, **__: object) -> dict:
            self.calls.add(call_of(_VERB[method.upper()], path))
            answer = claim("x")
            answer["metadata"] |= {"uid": "c", "resourceVersion": "1"}
            answer["status"] = {"allocation": {}, "reservedFor": [{"resource": "pods", "name": "x", "uid": "uid"}]}
            return answer

        return call


def script(name: str):
    """A script of .ci as a module."""
    spec = importlib.util.spec_from_file_location(name, MANIFESTS.parent / ".ci" / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def call_of(verb: str, path: str) -> Call:
    found = re.fullmatch(r"/(?:api|apis/([^/]+))/[^/]+(?:/namespaces/[^/]+)?/([a-z]+)(?:/([^/]+))?(?:/([a-z]+))?", path)
    assert found is not None, path
    group, resource, name, sub = found.groups()
    if resource == "namespaces" or not name:
        name = name or ""
    return group or "", f"{resource}/{sub}" if sub else resource, verb, name or ""


async def made_by_the_code() -> set[Call]:
    client = Recording()
    writer = Writer(client)  # type: ignore[arg-type]
    methods = [name for name, _ in inspect.getmembers(Writer, inspect.iscoroutinefunction) if not name.startswith("_")]
    assert sorted(methods) == sorted(ARGUMENTS), "a write that is new here needs its arguments above and its right in rbac.yaml"
    for name in methods:
        await getattr(writer, name)(*ARGUMENTS[name])
    watched = {(*call_of(verb, kind.path)[:2], verb, "") for kind in kinds(Mirror()) for verb in ("list", "watch")}
    # API servers from 1.36 on ask for this beside the status itself (KEP-5677).
    return client.calls | watched | {("resource.k8s.io", "resourceclaims/binding", "patch", "")}


def rules(file: str, name: str) -> list[dict]:
    return next(o["rules"] for o in yaml.safe_load_all((MANIFESTS / "base" / file).read_text()) if o["kind"] == "ClusterRole" and o["metadata"]["name"] == name)


def allows(rule: dict, call: Call) -> bool:
    group, resource, verb, name = call
    return group in rule["apiGroups"] and resource in rule["resources"] and verb in rule["verbs"] and name in rule.get("resourceNames", [name])


async def test_berth_may_do_what_it_does_and_no_more() -> None:
    calls = await made_by_the_code()
    granted = rules("rbac.yaml", "berth")
    missing = [call for call in calls if not any(allows(rule, call) for rule in granted)]
    assert not missing, missing
    unused = [
        (group, resource, verb)
        for rule in granted for group in rule["apiGroups"] for resource in rule["resources"] for verb in rule["verbs"]
        if not any(call[:3] == (group, resource, verb) and allows(rule, call) for call in calls)
    ]
    assert not unused, unused


def bound_to(account: str) -> set[str]:
    """Roles that an account of the base has."""
    objects = yaml.safe_load_all((MANIFESTS / "base" / "rbac.yaml").read_text())
    bindings = [obj for obj in objects if obj["kind"].endswith("Binding")]
    return {obj["roleRef"]["name"] for obj in bindings if account in [subject["name"] for subject in obj["subjects"]]}


def test_berth_and_the_scheduler_have_accounts_of_their_own() -> None:
    assert bound_to("berth") == {"berth"}
    assert "berth" not in bound_to("berth-scheduler") and "system:kube-scheduler" in bound_to("berth-scheduler")


def test_each_container_mounts_the_token_of_its_own_account_alone() -> None:
    (deployment,) = [o for o in yaml.safe_load_all((MANIFESTS / "base/scheduler.yaml").read_text()) if o["kind"] == "Deployment"]
    spec = deployment["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == "berth" and spec["automountServiceAccountToken"] is False
    tokens = {
        container["name"]: [mount["name"] for mount in container["volumeMounts"] if mount["name"].endswith("-token")]
        for container in spec["containers"]
    }
    assert tokens == {"berth": ["berth-token"], "kube-scheduler": ["scheduler-token"]}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["scheduler-token"]["secret"]["secretName"] == "berth-scheduler-token"
    assert any("serviceAccountToken" in source for source in volumes["berth-token"]["projected"]["sources"])


def test_table_of_rights_is_what_the_manifests_make() -> None:
    made = script("make_rights")
    assert made.FILE.read_text() == made.written(), "run .ci/make_rights.py"


def test_agent_may_do_what_it_does_and_no_more() -> None:
    source = inspect.getsource(agent_module)
    used = {("resource.k8s.io", "resourceslices", {"get": "get", "post": "create", "put": "update"}[m]) for m in re.findall(r"_client\.(\w+)\((?!f\"/api/v1/nodes)", source)}
    used.add(("", "nodes", "get"))
    granted = {(g, r, v) for rule in rules("agent.yaml", "berth-agent") for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]}
    assert granted == used


@pytest.mark.parametrize("path", sorted(MANIFESTS.rglob("kustomization.yaml")), ids=lambda p: str(p.parent.name))
def test_kustomizations_name_files_that_exist(path: Path) -> None:
    found = yaml.safe_load(path.read_text())
    for name in [*found.get("resources", []), *found.get("components", []), *(p["path"] for p in found.get("patches", []) if "path" in p)]:
        target = path.parent / name
        assert target.is_dir() and (target / "kustomization.yaml").exists() or target.exists(), name
        if target.is_file():
            assert all(o["kind"] and o["metadata"]["name"] for o in yaml.safe_load_all(target.read_text()))


def test_scheduler_configurations_are_one() -> None:
    written = yaml.safe_load((MANIFESTS.parent / "scheduler-config" / "berth-scheduler.yaml").read_text())
    (carried,) = [yaml.safe_load(o["data"]["berth-scheduler.yaml"]) for o in yaml.safe_load_all((MANIFESTS / "base" / "scheduler-config.yaml").read_text())]
    assert carried == written
    for overlay, host in (("mtls", "127.0.0.1"), ("separate", "berth-verbs.berth-system.svc")):
        (secured,) = [yaml.safe_load(o["data"]["berth-scheduler.yaml"]) for o in yaml.safe_load_all((MANIFESTS / "overlays" / overlay / "scheduler-config.yaml").read_text())]
        for extender in secured["extenders"]:
            assert extender.pop("enableHTTPS") and extender.pop("tlsConfig")["caFile"]
            extender["urlPrefix"] = extender["urlPrefix"].replace("https", "http").replace(host, "127.0.0.1")
        assert secured == written


@pytest.mark.parametrize("path", sorted(MANIFESTS.rglob("*.yaml")), ids=lambda p: str(p.relative_to(MANIFESTS)))
def test_no_key_stands_twice(path: Path) -> None:
    """PyYAML takes the last one silently."""

    class Strict(yaml.SafeLoader):
        def construct_mapping(self, node, deep=False):
            keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
            assert len(keys) == len(set(keys)), f"{path}: {[k for k in keys if keys.count(k) > 1]} twice, line {node.start_mark.line + 1}"
            return super().construct_mapping(node, deep)

    for document in yaml.load_all(path.read_text(), Strict):  # noqa: S506 - a safe loader
        assert document


def test_separate_overlay_runs_the_same_berth() -> None:
    """Copied because a patch cannot move a container: what must not differ is compared."""

    def berth(path: str, name: str) -> dict:
        found = {o["metadata"]["name"]: o for o in yaml.safe_load_all((MANIFESTS / path).read_text()) if o["kind"] == "Deployment"}[name]
        return next(c for c in found["spec"]["template"]["spec"]["containers"] if c["name"] == "berth")

    base, apart = berth("base/scheduler.yaml", "berth-scheduler"), berth("overlays/separate/berth.yaml", "berth")
    secured = berth("overlays/mtls/scheduler.yaml", "berth-scheduler")
    assert all(apart[key] == base[key] for key in ("resources", "securityContext"))
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):  # the pages have the verbs' certificate
        assert secured[probe] == {"httpGet": {"scheme": "HTTPS"}}
        assert apart[probe] == {**base[probe], "httpGet": base[probe]["httpGet"] | {"scheme": "HTTPS"}}
    assert [a.replace("0.0.0.0:8888", "127.0.0.1:8888") for a in apart["args"]] == secured["args"]
    assert set(base["args"]) <= set(secured["args"])


def test_trial_fleet_is_what_the_machines_make() -> None:
    made = script("make_trial")
    assert made.FILE.read_text() == made.fleet(), "run .ci/make_trial.py"


def test_prometheus_asks_the_process_that_is_there_for_it() -> None:
    """ServiceMonitor, Service, NetworkPolicy, container and --metrics name the same port."""
    objects = [o for o in yaml.safe_load_all((MANIFESTS / "base/scheduler.yaml").read_text())]
    of = lambda kind: next(o["spec"] for o in objects if o["kind"] == kind)
    monitor = yaml.safe_load((MANIFESTS / "overlays/prometheus/monitor.yaml").read_text())["spec"]["endpoints"][0]["port"]
    target = next(p["targetPort"] for p in of("Service")["ports"] if p["name"] == monitor)
    container = next(c for c in of("Deployment")["template"]["spec"]["containers"] if c["name"] == "berth")
    port = next(p["containerPort"] for p in container["ports"] if p["name"] == target)
    assert f"--metrics=0.0.0.0:{port}" in container["args"]
    assert {"port": target} in of("NetworkPolicy")["ingress"][0]["ports"]


def test_every_container_is_confined() -> None:
    for file in ("base/scheduler.yaml", "base/agent.yaml", "overlays/separate/berth.yaml"):
        for obj in yaml.safe_load_all((MANIFESTS / file).read_text()):
            if obj["kind"] not in ("Deployment", "DaemonSet"):
                continue
            spec = obj["spec"]["template"]["spec"]
            for container in spec["containers"]:
                confined = {**spec.get("securityContext", {}), **container["securityContext"]}
                assert confined["runAsNonRoot"] and confined["readOnlyRootFilesystem"] and not confined["allowPrivilegeEscalation"]
                assert confined["capabilities"] == {"drop": ["ALL"]} and confined["seccompProfile"]["type"] == "RuntimeDefault"
                assert container["resources"]["requests"] and container["resources"]["limits"]["memory"]




def test_dashboard_and_alerts_use_metrics_that_exist() -> None:
    by_kind = {SUMMARY: ("count", "sum"), HISTOGRAM: ("bucket", "count", "sum")}
    parts = {r.name: by_kind[r.kind] for r in READINGS if r.kind in by_kind}
    known = {reading.name for reading in READINGS} | {f"{name}_{part}" for name, some in parts.items() for part in some}
    for file in ("rules.yaml", "dashboard.yaml"):
        text = (MANIFESTS / "overlays" / "prometheus" / file).read_text()
        used = set(re.findall(r"\bberth_[a-z_]+", text))
        assert used and used <= known, used - known
