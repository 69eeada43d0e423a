"""Each ClusterRole allows every call that the code of its program can make, and nothing else."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from extender.agent import slice_publisher as agent_module
from extender.cache import ClusterCache
from extender.cli import console_command
from extender.cluster import Writer
from extender.extension import MARKER_CLASS
from extender.model import Allocation, Claim, ClaimSpec, Consumer, GroupKey, GroupSource, ObjectKey, Pod
from extender.runtime import watched_resources
from extender.web.console.console_metrics import READINGS as OF_CONSOLE
from extender.web.metrics import HISTOGRAM, SUMMARY, MetricSource
from extender.web.serve_metrics import READINGS as OF_SERVE
from tests.running_berth import claim

MANIFESTS = Path(__file__).resolve().parents[1] / "manifests"
CODE = MANIFESTS.parent / "extender"
# Packages that only one of the two programs has; the others call no Writer (a test below says so).
PROGRAMS = {"berth": ("extension",), "berth-console": ("console",)}
KEY = ObjectKey("ns", "x")
POD = Pod(KEY, "uid")
CONSUMER = Consumer("uid", "x")
ALLOCATED = Claim(
    KEY,
    "c",
    "1",
    allocation=Allocation(),
    reserved_for=(CONSUMER,),
    finalizers=("resource.kubernetes.io/delete-protection",),
)
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "read_claim": (KEY,),
    "read_pod": (KEY,),
    "read_pod_group": (KEY,),
    "read_bound_members": (GroupKey("default", GroupSource.BERTH, "g"),),
    "read_has_bound_member": (KEY,),
    "announce_take_back": (ALLOCATED,),
    "add_finalizer": (Claim(KEY, "c", "1"), "g"),
    "take_over": (ALLOCATED,),
    "allocate": (ALLOCATED, Allocation(), CONSUMER),
    "reserve": (ALLOCATED, Consumer("other", "y")),
    "deallocate": (ALLOCATED,),
    "unreserve": (ALLOCATED, "uid"),
    "bind_pod": (KEY, "uid", "n", {}),
    "create_special_claim": (POD, ClaimSpec()),
    "map_special_claim": (POD, ALLOCATED, ()),
    "delete_claim": (ALLOCATED,),
    "touch_class": (MARKER_CLASS, "a", "v"),
    "create_event": ("Pod", KEY, "uid", "Reason", "note"),
}
_VERB = {"GET": "get", "POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}
Call = tuple[str, str, str, str]  # API group, resource with subresource, verb, name


class Recording:
    """An API client that answers everything and remembers it."""

    def __init__(self) -> None:
        self.calls: set[Call] = set()

    def __getattr__(self, method: str) -> Callable[..., Awaitable[dict]]:
        async def call(path: str, *_: object, **__: object) -> dict:
            self.calls.add(call_of(_VERB[method.upper()], path))
            answer = claim("x")
            answer["metadata"] |= {"uid": "c", "resourceVersion": "1"}
            answer["status"] = {"allocation": {}, "reservedFor": [{"resource": "pods", "name": "x", "uid": "uid"}]}
            return answer

        return call


def script(name: str) -> ModuleType:
    """A script of .ci as a module."""
    spec = importlib.util.spec_from_file_location(name, MANIFESTS.parent / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
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


def attributes(folders: tuple[str, ...]) -> set[str]:
    """Names of all attributes that the code of these packages reads or calls."""
    trees = [ast.parse(path.read_text()) for folder in folders for path in (CODE / folder).rglob("*.py")]
    return {node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def paths(folders: tuple[str, ...]) -> set[Call]:
    """Calls of the API client that a package makes without a Writer: those of ApiClient's methods on a constant
    path."""
    found: set[Call] = set()
    for path in (path for folder in folders for path in (CODE / folder).rglob("*.py")):
        tree = ast.parse(path.read_text())
        constants = {
            target.id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.upper() in _VERB:
                owner = ast.unparse(node.func.value)
                if owner.endswith("client"):
                    assert isinstance(node.args[0], ast.Name), f"{path.name}: the path is not a constant of the module"
                    verb = "list" if node.func.attr == "get" else _VERB[node.func.attr.upper()]
                    found.add(call_of(verb, str(constants[node.args[0].id])))
    return found


def writes() -> list[str]:
    """Methods of Writer."""
    return [name for name, _ in inspect.getmembers(Writer, inspect.iscoroutinefunction) if not name.startswith("_")]


async def made_by_the_code(account: str) -> set[Call]:
    assert sorted(writes()) == sorted(ARGUMENTS), (
        "a write that is new here needs its arguments above and its right in rbac.yaml"
    )
    client, used = Recording(), attributes(PROGRAMS[account])
    writer = Writer(client)  # type: ignore[arg-type]  # a fake
    for name in writes():
        if name in used:
            await getattr(writer, name)(*ARGUMENTS[name])
    calls = client.calls | paths(PROGRAMS[account])
    calls |= {
        (*call_of(verb, kind.path)[:2], verb, "")
        for kind in watched_resources(ClusterCache())
        for verb in ("list", "watch")
    }
    if ("resource.k8s.io", "resourceclaims/status", "patch", "x") in calls:
        # API servers from 1.36 on ask for this beside the status itself (KEP-5677).
        calls.add(("resource.k8s.io", "resourceclaims/binding", "patch", ""))
    return calls


def test_every_write_belongs_to_one_program() -> None:
    """Else the rights of neither would be known from its package."""
    others = tuple(
        path.name
        for path in CODE.iterdir()
        if path.is_dir() and path.name not in ("extension", "console", "cluster", "sandbox", "__pycache__")
    )
    assert not set(writes()) & attributes(others)
    assert set(writes()) <= attributes(("extension", "console")), "each write has a caller"


def rules(file: str, name: str) -> list[dict]:
    return next(
        o["rules"]
        for o in yaml.safe_load_all((MANIFESTS / "base" / file).read_text())
        if o["kind"] == "ClusterRole" and o["metadata"]["name"] == name
    )


def allows(rule: dict, call: Call) -> bool:
    group, resource, verb, name = call
    return (
        group in rule["apiGroups"]
        and resource in rule["resources"]
        and verb in rule["verbs"]
        and name in rule.get("resourceNames", [name])
    )


async def unlike(account: str) -> tuple[list[Call], list[tuple[str, str, str]]]:
    """Calls without a right, and rights without a call."""
    calls = await made_by_the_code(account)
    granted = rules("rbac.yaml", account)
    missing = [call for call in calls if not any(allows(rule, call) for rule in granted)]
    unused = [
        (group, resource, verb)
        for rule in granted
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if not any(call[:3] == (group, resource, verb) and allows(rule, call) for call in calls)
    ]
    return missing, unused


async def test_berth_may_do_what_it_does_and_no_more() -> None:
    assert await unlike("berth") == ([], [])


async def test_the_console_may_do_what_it_does_and_no_more() -> None:
    assert await unlike("berth-console") == ([], [])


def test_the_console_changes_no_claim_and_no_pod_and_reads_no_secret() -> None:
    """Whatever its code comes to do: these rights would be a decision, not an oversight."""
    changes = {
        resource: {
            verb
            for rule in rules("rbac.yaml", "berth-console")
            if resource in rule["resources"]
            for verb in rule["verbs"]
        }
        - {"list", "watch", "get"}
        for rule in rules("rbac.yaml", "berth-console")
        for resource in rule["resources"]
    }
    assert {resource: verbs for resource, verbs in changes.items() if verbs} == {
        "events": {"create"},
        "tokenreviews": {"create"},
    }
    assert not {"secrets", "configmaps"} & changes.keys()


def bound_to(account: str) -> set[str]:
    """Roles that an account of the base has."""
    objects = yaml.safe_load_all((MANIFESTS / "base" / "rbac.yaml").read_text())
    bindings = [obj for obj in objects if obj["kind"].endswith("Binding")]
    return {obj["roleRef"]["name"] for obj in bindings if account in [subject["name"] for subject in obj["subjects"]]}


def test_each_program_has_an_account_of_its_own() -> None:
    assert bound_to("berth") == {"berth"}
    assert bound_to("berth-console") == {"berth-console"}
    assert "berth" not in bound_to("berth-scheduler")
    assert "system:kube-scheduler" in bound_to("berth-scheduler")


def objects_of(file: str, kind: str) -> dict[str, dict]:
    """Objects of a kind in a manifest, by name."""
    found = yaml.safe_load_all((MANIFESTS / file).read_text())
    return {obj["metadata"]["name"]: obj for obj in found if obj["kind"] == kind}


def spec_of(file: str, name: str) -> dict:
    """The pod's spec of a Deployment."""
    return objects_of(file, "Deployment")[name]["spec"]["template"]["spec"]


def container_of(file: str, deployment: str, name: str) -> dict:
    return next(c for c in spec_of(file, deployment)["containers"] if c["name"] == name)


def option(container: dict, name: str) -> str:
    """The value of an option of a container's command."""
    return next(arg.partition("=")[2] for arg in container["args"] if arg.startswith(f"{name}="))


def test_each_container_mounts_the_token_of_its_own_account_alone() -> None:
    spec = spec_of("base/scheduler.yaml", "berth-scheduler")
    assert spec["serviceAccountName"] == "berth"
    assert spec["automountServiceAccountToken"] is False
    tokens = {
        container["name"]: [mount["name"] for mount in container["volumeMounts"] if mount["name"].endswith("-token")]
        for container in spec["containers"]
    }
    assert tokens == {"berth": ["berth-token", "records-token"], "kube-scheduler": ["scheduler-token"]}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["scheduler-token"]["secret"]["secretName"] == "berth-scheduler-token"
    assert any("serviceAccountToken" in source for source in volumes["berth-token"]["projected"]["sources"])
    console = spec_of("base/console.yaml", "berth-console")
    assert console["serviceAccountName"] == "berth-console"


@pytest.mark.parametrize(
    ("file", "name"), [("base/scheduler.yaml", "berth-scheduler"), ("overlays/separate/berth.yaml", "berth")]
)
def test_records_reach_the_console_with_a_token_for_it_alone(file: str, name: str) -> None:
    """URL, Service, port, audience and account of sender and receiver are the same; and no pod waits for the
    console."""
    spec, berth = spec_of(file, name), container_of(file, name, "berth")
    console = container_of("base/console.yaml", "berth-console", "console")
    (service,) = objects_of("base/console.yaml", "Service").values()
    url = option(berth, "--records").partition("://")[2]
    port = next(p for p in service["spec"]["ports"] if p["name"] == "records")
    assert url == f"{service['metadata']['name']}.berth-system.svc:{port['port']}"
    listening = next(p["containerPort"] for p in console["ports"] if p["name"] == port["targetPort"])
    assert option(console, "--records") == f"0.0.0.0:{listening}"
    mount = next(m for m in berth["volumeMounts"] if m["name"] == "records-token")
    assert option(berth, "--records-token-file") == f"{mount['mountPath']}/token"
    (source,) = next(v for v in spec["volumes"] if v["name"] == "records-token")["projected"]["sources"]
    assert source["serviceAccountToken"]["path"] == "token"
    assert (
        source["serviceAccountToken"]["audience"] == option(console, "--records-audience") == console_command.AUDIENCE
    )
    sender = f"system:serviceaccount:berth-system:{spec['serviceAccountName']}"
    assert sender == option(console, "--records-from") == console_command.SENDER
    (policy,) = objects_of("base/console.yaml", "NetworkPolicy").values()
    rule = next(r for r in policy["spec"]["ingress"] if {"port": "records"} in r["ports"])
    assert spec_labels(file, name)["app"] in rule["from"][0]["podSelector"]["matchExpressions"][0]["values"]
    assert "initContainers" not in spec


def spec_labels(file: str, name: str) -> dict[str, str]:
    return objects_of(file, "Deployment")[name]["spec"]["template"]["metadata"]["labels"]


def test_serve_and_console_read_the_same_policy() -> None:
    volumes = [
        next(v["configMap"] for v in spec_of(file, name)["volumes"] if v["name"] == "policy")
        for file, name in (("base/scheduler.yaml", "berth-scheduler"), ("base/console.yaml", "berth-console"))
    ]
    assert volumes[0] == volumes[1] == {"name": "berth-policy"}
    console = container_of("base/console.yaml", "berth-console", "console")
    assert option(console, "--policy-configmap") == "berth-system/berth-policy"


def test_table_of_rights_is_what_the_manifests_make() -> None:
    made = script("make_rights")
    assert made.FILE.read_text() == made.written(), "run .ci/make_rights.py"


def test_agent_may_do_what_it_does_and_no_more() -> None:
    source = inspect.getsource(agent_module)
    used = {
        ("resource.k8s.io", "resourceslices", {"get": "get", "post": "create", "put": "update"}[m])
        for m in re.findall(r"_client\.(\w+)\((?!f\"/api/v1/nodes)", source)
    }
    used.add(("", "nodes", "get"))
    granted = {
        (g, r, v)
        for rule in rules("agent.yaml", "berth-agent")
        for g in rule["apiGroups"]
        for r in rule["resources"]
        for v in rule["verbs"]
    }
    assert granted == used


@pytest.mark.parametrize("path", sorted(MANIFESTS.rglob("kustomization.yaml")), ids=lambda p: str(p.parent.name))
def test_kustomizations_name_files_that_exist(path: Path) -> None:
    found = yaml.safe_load(path.read_text())
    for name in [
        *found.get("resources", []),
        *found.get("components", []),
        *(p["path"] for p in found.get("patches", []) if "path" in p),
    ]:
        target = path.parent / name
        assert (target.is_dir() and (target / "kustomization.yaml").exists()) or target.exists(), name
        if target.is_file():
            assert all(o["kind"] and o["metadata"]["name"] for o in yaml.safe_load_all(target.read_text()))


def test_scheduler_configurations_are_one() -> None:
    written = yaml.safe_load((MANIFESTS.parent / "scheduler-config" / "berth-scheduler.yaml").read_text())
    (carried,) = [
        yaml.safe_load(o["data"]["berth-scheduler.yaml"])
        for o in yaml.safe_load_all((MANIFESTS / "base" / "scheduler-config.yaml").read_text())
    ]
    assert carried == written
    for overlay, host in (("mtls", "127.0.0.1"), ("separate", "berth-verbs.berth-system.svc")):
        (secured,) = [
            yaml.safe_load(o["data"]["berth-scheduler.yaml"])
            for o in yaml.safe_load_all((MANIFESTS / "overlays" / overlay / "scheduler-config.yaml").read_text())
        ]
        for extender in secured["extenders"]:
            assert extender.pop("enableHTTPS")
            assert extender.pop("tlsConfig")["caFile"]
            extender["urlPrefix"] = extender["urlPrefix"].replace("https", "http").replace(host, "127.0.0.1")
        assert secured == written


@pytest.mark.parametrize("path", sorted(MANIFESTS.rglob("*.yaml")), ids=lambda p: str(p.relative_to(MANIFESTS)))
def test_no_key_stands_twice(path: Path) -> None:
    """PyYAML takes the last one silently."""

    class Strict(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT002 - as PyYAML has it
            keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
            assert len(keys) == len(set(keys)), (
                f"{path}: {[k for k in keys if keys.count(k) > 1]} twice, line {node.start_mark.line + 1}"
            )
            return super().construct_mapping(node, deep)

    for document in yaml.load_all(path.read_text(), Strict):
        assert document


def test_separate_overlay_runs_the_same_berth() -> None:
    """Copied because a patch cannot move a container: what must not differ is compared."""
    base = container_of("base/scheduler.yaml", "berth-scheduler", "berth")
    apart = container_of("overlays/separate/berth.yaml", "berth", "berth")
    secured = container_of("overlays/mtls/scheduler.yaml", "berth-scheduler", "berth")
    probes = ("startupProbe", "livenessProbe", "readinessProbe")
    assert all(apart[key] == base[key] for key in ("resources", "securityContext", *probes))
    assert not set(probes) & set(secured), "probes have an address of their own, without TLS"
    assert [a.replace("0.0.0.0:8888", "127.0.0.1:8888") for a in apart["args"]] == secured["args"]
    assert {a.replace("http:", "https:") for a in base["args"]} <= set(secured["args"])


def test_the_console_with_tls_is_the_same_console() -> None:
    base = container_of("base/console.yaml", "berth-console", "console")
    secured = container_of("overlays/mtls/console.yaml", "berth-console", "console")
    assert set(base["args"]) <= set(secured["args"])
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert secured[probe] == {"httpGet": {"scheme": "HTTPS"}}
    secrets = {v["secret"]["secretName"] for v in spec_of("overlays/mtls/console.yaml", "berth-console")["volumes"]}
    assert secrets == {"berth-console-tls"}, "with the certificate of the verbs it could speak as kube-scheduler does"


def test_trial_fleet_is_what_the_machines_make() -> None:
    made = script("make_trial")
    assert made.FILE.read_text() == made.fleet(), "run .ci/make_trial.py"


def test_prometheus_asks_both_processes() -> None:
    """Monitors, containers, options and NetworkPolicies name the same ports; alerts name the jobs that these make."""
    monitors = {o["kind"]: o for o in yaml.safe_load_all((MANIFESTS / "overlays/prometheus/monitor.yaml").read_text())}
    (serve,) = monitors["PodMonitor"]["spec"]["podMetricsEndpoints"]
    selected = monitors["PodMonitor"]["spec"]["selector"]["matchExpressions"][0]["values"]
    for file, name in (("base/scheduler.yaml", "berth-scheduler"), ("overlays/separate/berth.yaml", "berth")):
        container = container_of(file, name, "berth")
        port = next(p["containerPort"] for p in container["ports"] if p["name"] == serve["port"])
        assert option(container, "--probes") == f"0.0.0.0:{port}"
        (policy,) = objects_of(file, "NetworkPolicy").values()
        assert {"port": serve["port"]} in [p for rule in policy["spec"]["ingress"] for p in rule["ports"]]
        assert spec_labels(file, name)["app"] in selected
    (console,) = monitors["ServiceMonitor"]["spec"]["endpoints"]
    (service,) = objects_of("base/console.yaml", "Service").values()
    assert (
        monitors["ServiceMonitor"]["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    )
    target = next(p["targetPort"] for p in service["spec"]["ports"] if p["name"] == console["port"])
    container = container_of("base/console.yaml", "berth-console", "console")
    port = next(p["containerPort"] for p in container["ports"] if p["name"] == target)
    assert option(container, "--listen") == f"0.0.0.0:{port}"
    alerts = (MANIFESTS / "overlays/prometheus/rules.yaml").read_text()
    pods = monitors["PodMonitor"]["metadata"]
    jobs = {f"{pods['namespace']}/{pods['name']}", service["metadata"]["name"]}  # as the operator names them
    assert set(re.findall(r'job="([^"]+)"', alerts)) == jobs


def test_every_container_is_confined() -> None:
    for file in ("base/scheduler.yaml", "base/console.yaml", "base/agent.yaml", "overlays/separate/berth.yaml"):
        for obj in yaml.safe_load_all((MANIFESTS / file).read_text()):
            if obj["kind"] not in ("Deployment", "DaemonSet"):
                continue
            spec = obj["spec"]["template"]["spec"]
            for container in spec["containers"]:
                confined = {**spec.get("securityContext", {}), **container["securityContext"]}
                assert confined["runAsNonRoot"]
                assert confined["readOnlyRootFilesystem"]
                assert not confined["allowPrivilegeEscalation"]
                assert confined["capabilities"] == {"drop": ["ALL"]}
                assert confined["seccompProfile"]["type"] == "RuntimeDefault"
                assert container["resources"]["requests"]
                assert container["resources"]["limits"]["memory"]


def test_dashboard_and_alerts_use_metrics_that_exist() -> None:
    by_kind = {SUMMARY: ("count", "sum"), HISTOGRAM: ("bucket", "count", "sum")}
    readings: tuple[MetricSource[Any], ...] = (*OF_SERVE, *OF_CONSOLE)
    parts = {r.name: by_kind[r.kind] for r in readings if r.kind in by_kind}
    known = {reading.name for reading in readings} | {f"{name}_{part}" for name, some in parts.items() for part in some}
    for file in ("rules.yaml", "dashboard.yaml"):
        text = (MANIFESTS / "overlays" / "prometheus" / file).read_text()
        used = set(re.findall(r"\bberth_[a-z_]+", text))
        assert used, used - known
        assert used <= known, used - known
