"""Each ClusterRole allows every call that the code of its program can make, and nothing else."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import yaml

from extender.agent import slice_publisher as agent_module
from extender.api.asked_subgroups import PodMark
from extender.api.claim_specs import ClaimSpec
from extender.api.device_classes import MARKER_CLASS
from extender.api.object_meta import ObjectKey
from extender.api.pods import Pod
from extender.api.resource_claims import Allocation, Claim, Consumer
from extender.cache import ClusterCache
from extender.cluster import Writer
from extender.cluster.api_errors import Invalid
from extender.runtime.informers import watched_resources
from tests.worlds.guarded_writes import success
from tests.worlds.manifests import MANIFESTS, rules, script, spec_of
from tests.worlds.source_code import facts

CODE = MANIFESTS.parent / "extender"
# Packages that only one of the two programs has; the others call no Writer (a test below says so).
PROGRAMS = {"berth": ("serve",), "berth-console": ("console",)}
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
    "read_bound_members": ("default",),
    "read_has_bound_member": (KEY,),
    "read_extended_resources": (),
    "announce_release": (ALLOCATED,),
    "add_finalizer": (Claim(KEY, "c", "1"), PodMark("g")),
    "take_over": (ALLOCATED,),
    "allocate": (ALLOCATED, Allocation(), CONSUMER),
    "add_consumers": (ALLOCATED, [Consumer("other", "y")]),
    "deallocate": (ALLOCATED,),
    "remove_consumer": (ALLOCATED, "uid"),
    "bind_pod": (KEY, "uid", "n", {}),
    "create_special_claim": (POD, ClaimSpec()),
    "map_special_claim": (POD, ALLOCATED, ()),
    "delete_claim": (ALLOCATED,),
    "touch_class": (MARKER_CLASS, "a", "v"),
    "create_event": ("Pod", KEY, "uid", "Reason", "note"),
}
_VERB = {"GET": "get", "GET_PROTOBUF": "get", "POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}
Call = tuple[str, str, str, str]  # API group, resource with subresource, verb, name


class Recording:
    """An API client that answers everything and remembers it. It may refuse the patches of claims for their bytes."""

    def __init__(self) -> None:
        self.calls: set[Call] = set()
        self.refuses_patches = False

    def __getattr__(self, method: str) -> Callable[..., Awaitable[dict | bytes]]:
        async def call(path: str, body: dict | None = None, *_: object, **__: object) -> dict | bytes:
            self.calls.add(call_of(_VERB[method.upper()], path))
            if method == "get_protobuf":
                return b"k8s\0"
            if method == "patch" and self.refuses_patches and "/resourceclaims/" in path:
                raise Invalid("field is immutable")
            if method == "put":
                return success(path, {"metadata": {"uid": ALLOCATED.uid}})
            answer = success(path, body)
            lists = {"pods": "PodList", "deviceclasses": "DeviceClassList"}
            return answer | {"kind": lists.get(path.rpartition("/")[2], answer["kind"])}

        return call


def call_of(verb: str, path: str) -> Call:
    found = re.fullmatch(r"/(?:api|apis/([^/]+))/[^/]+(?:/namespaces/[^/]+)?/([a-z]+)(?:/([^/]+))?(?:/([a-z]+))?", path)
    assert found is not None, path
    group, resource, name, sub = found.groups()
    if resource == "namespaces" or not name:
        name = name or ""
    if verb == "get" and not name:
        verb = "list"  # a GET of a collection
    return group or "", f"{resource}/{sub}" if sub else resource, verb, name or ""


def attributes(folders: tuple[str, ...]) -> set[str]:
    """Names of all attributes that the code of these packages reads or calls."""
    return {name for folder in folders for path in (CODE / folder).rglob("*.py") for name in facts(path).attributes}


def paths(folders: tuple[str, ...]) -> set[Call]:
    """Calls of the API client that a package makes without a Writer: those of ApiClient's methods on a constant
    path."""
    found: set[Call] = set()
    for path in (path for folder in folders for path in (CODE / folder).rglob("*.py")):
        text = path.read_text()
        tree = ast.parse(text if "client" in text else "")
        constants = {
            target.id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "pages":
                assert isinstance(node.args[1], ast.Name), f"{path.name}: the path is not a constant of the module"
                found.add(call_of("list", str(constants[node.args[1].id])))
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
    for client.refuses_patches in (False, True):
        for name in writes():
            if name in used:
                with suppress(Invalid):
                    await getattr(writer, name)(*ARGUMENTS[name])
    calls = client.calls | paths(PROGRAMS[account])
    calls |= {
        (*call_of(verb, kind.path)[:2], verb, "")
        for kind in watched_resources(ClusterCache())
        for verb in ("list", "watch")
    }
    # API servers from 1.36 on ask for this beside the status itself (KEP-5677).
    of_status = {call for call in calls if call[1] == "resourceclaims/status"}
    calls |= {("resource.k8s.io", "resourceclaims/binding", verb, "") for _, _, verb, _ in of_status}
    return calls


def test_every_write_belongs_to_one_program() -> None:
    """Otherwise the test could not derive the rights of a program from its package."""
    others = tuple(
        path.name
        for path in CODE.iterdir()
        if path.is_dir() and path.name not in ("serve", "console", "cluster", "sandbox", "replay", "__pycache__")
    )
    assert not set(writes()) & attributes(others)
    assert set(writes()) <= attributes(("serve", "console")), "each write has a caller"


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


async def test_serve_has_exactly_the_rights_of_its_calls() -> None:
    assert await unlike("berth") == ([], [])


async def test_the_console_has_exactly_the_rights_of_its_calls() -> None:
    assert await unlike("berth-console") == ([], [])


def test_the_console_changes_no_claim_and_no_pod_and_reads_no_secret() -> None:
    """The console's role must never get these rights by accident."""
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
    assert {resource: verbs for resource, verbs in changes.items() if verbs} == {"events": {"create"}}
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


def test_each_container_mounts_the_token_of_its_own_account_alone() -> None:
    """Attack: a container does more than it should."""
    spec = spec_of("base/scheduler.yaml", "berth-scheduler")
    assert spec["serviceAccountName"] == "berth"
    assert spec["automountServiceAccountToken"] is False
    tokens = {
        container["name"]: [mount["name"] for mount in container["volumeMounts"] if mount["name"].endswith("-token")]
        for container in spec["containers"]
    }
    assert tokens == {"berth": ["berth-token"], "kube-scheduler": ["scheduler-token"]}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["scheduler-token"]["secret"]["secretName"] == "berth-scheduler-token"
    assert any("serviceAccountToken" in source for source in volumes["berth-token"]["projected"]["sources"])
    console = spec_of("base/console.yaml", "berth-console")
    assert console["serviceAccountName"] == "berth-console"


def test_the_table_of_rights_agrees_with_the_manifests() -> None:
    made = script("make_rights")
    assert made.FILE.read_text() == made.written(), "run .ci/make_rights.py"


def test_the_table_of_rights_leaves_no_manifest_out() -> None:
    given = {"ServiceAccount", "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"}
    files = {
        path.name
        for path in MANIFESTS.rglob("*.yaml")
        if "helm" not in path.parts  # which has the same objects
        if given & {obj["kind"] for obj in yaml.safe_load_all(path.read_text())}
    }
    assert files == {"rbac.yaml", "agent.yaml"}


def test_the_agent_has_exactly_the_rights_of_its_calls() -> None:
    """Attack: use other rights of its account."""
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
