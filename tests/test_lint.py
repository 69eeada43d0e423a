"""`berth lint` names object, field and cause."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from extender.cli.main import commands
from extender.sandbox import carried_machines, fabric_slice
from extender.sandbox.machines import gpu_slice
from tests.bad_values import FILES
from tests.commands import berth

app = commands()

RUNNER = CliRunner()
ATTRIBUTES = 'device.attributes["gpu.nvidia.com"]'


def world(
    tmp_path: Path, *, class_selector: str = "true", selector: str = "true", class_name: str = "gpu", **edit: object
) -> str:
    """A class, a claim and a slice in one file."""
    slice_ = gpu_slice("n", carried_machines()["t4-4"])
    slice_["spec"].update(edit)
    objects = [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": "gpu"},
            "spec": {"selectors": [{"cel": {"expression": class_selector}}]},
        },
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "c", "namespace": "ns"},
            "spec": {
                "devices": {
                    "requests": [
                        {
                            "name": "gpus",
                            "exactly": {
                                "deviceClassName": class_name,
                                "selectors": [{"cel": {"expression": selector}}],
                            },
                        }
                    ]
                }
            },
        },
        slice_,
    ]
    path = tmp_path / "world.yaml"
    path.write_text(yaml.safe_dump_all(objects))
    return str(path)


def test_nothing_to_find(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["lint", world(tmp_path, selector=f'{ATTRIBUTES}.productName == "Tesla T4"')])
    assert (result.exit_code, result.output) == (0, "0 findings\n")


@pytest.mark.parametrize(
    ("changes", "exit_code", "words"),
    [
        (
            {"class_selector": "device.drivr == 'x'"},
            1,
            "DeviceClass gpu, spec.selectors[0]: compilation failed: undefined field 'drivr' (line 1, column 7)",
        ),
        ({"selector": "1"}, 1, "ResourceClaim ns/c, request gpus, selectors[0]: must evaluate to bool"),
        ({"class_name": "gpuu"}, 1, "request gpus, deviceClassName: no DeviceClass 'gpuu'"),
        ({"selector": f'{ATTRIBUTES}.vendor == "x"'}, 1, "`gpu.nvidia.com/vendor` is published by 0 of 4 devices"),
        (
            {"selector": 'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("1Ti")) > 0'},
            1,
            "matches 0 of 4 devices",
        ),
        ({"selector": f'{ATTRIBUTES}.vendor == "x"'}, 1, "first error: gpu.nvidia.com device"),
        ({"devices": [{"name": "g", "attributes": {"a": {"int": "x"}}}]}, 1, "attributes[a].int: must be an integer"),
        (
            {"selector": f'{ATTRIBUTES}.roots.exists(r, r == "x")'},
            1,
            "with the feature gate DRAListTypeAttributes accepts it",
        ),
    ],
)
def test_findings_name_object_field_and_cause(tmp_path: Path, changes: dict, exit_code: int, words: str) -> None:
    result = RUNNER.invoke(app, ["lint", world(tmp_path, **changes)])
    assert words in result.output, result.output
    assert result.exit_code == exit_code, result.output


def test_cost_limits_apply_to_new_expressions_only(tmp_path: Path) -> None:
    nested = "a != b || c != d"
    for variable in "dcba":
        nested = f"{ATTRIBUTES}.all({variable}, {nested})"
    path = world(tmp_path, selector=nested)
    stored = RUNNER.invoke(app, ["lint", path])
    assert stored.exit_code == 1
    assert "the API server would reject it as new" in stored.output
    result = RUNNER.invoke(app, ["lint", path, "--as-new", "1.36", "--output", "json"])
    assert result.exit_code == 1
    assert "exceeds cost limit" in result.output


OLD = """
apiVersion: resource.k8s.io/v1beta1
kind: ResourceClaimTemplate
metadata: {name: t}
spec:
  spec:
    devices:
      requests:
      - name: gpu
        deviceClassName: gpu
        count: 2
        selectors: [{cel: {expression: 'device.capacity["memory"].memory.quantity > 1'}}]
      constraints: [{cel: {expression: "true"}}]
---
this: [is, no, object]
---
apiVersion: resource.k8s.io/v1alpha2
kind: ResourceClass
metadata: {name: c}
driverName: gpu.example.com
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers: [{name: main, image: i}]
  resourceClaims: [{name: g, source: {resourceClaimTemplateName: t}}]
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers: [{name: main, image: i, resources: {claims: [{name: other}]}}]
  resourceClaims: [{name: g, resourceClaimName: x}, {name: g, resourceClaimName: y}]
---
apiVersion: resource.k8s.io/v1alpha2
kind: ResourceClaim
metadata: {name: old}
spec: {resourceClassName: c}
"""


def test_forms_that_articles_print(tmp_path: Path) -> None:
    path = tmp_path / "old.yaml"
    path.write_text(OLD)
    result = RUNNER.invoke(app, ["lint", str(path)])
    text = result.output
    assert result.exit_code == 1
    for words in (
        "document 1: ResourceClaimTemplate t, apiVersion: Kubernetes 1.34 and newer do not serve resource.k8s.io",
        "spec.spec.devices.requests[0].deviceClassName: deviceClassName, selectors, count must be inside `exactly`",
        "spec.spec.devices.constraints[0].cel: a constraint cannot have CEL",
        "reads the domain 'memory', not an attribute",
        "compare with quantity(",
        "document 2: kind: is missing: this is no Kubernetes object",
        "the API removed ResourceClass (classic DRA)",
        "spec.resourceClaims[0].source: Kubernetes 1.31 removed the field `source`",
        "no container uses claim 'g'",
        "document 5: Pod p: has the same name as the one in",
        "two entries are called 'g'",
        "a container uses claim 'other'",
        "resourceClassName: the API removed this field (classic DRA)",
    ):
        assert words in text, (words, text)


def test_lint_accepts_the_output_of_fix(tmp_path: Path) -> None:
    path = tmp_path / "old.yaml"
    path.write_text("""
apiVersion: resource.k8s.io/v1beta1
kind: ResourceClaim
metadata: {name: c}
spec: {devices: {requests: [{name: gpu, deviceClassName: gpu, selectors: [{cel: {expression: "true"}}]}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers: [{name: main, image: i}]
  resourceClaims: [{name: g, source: {resourceClaimName: c}}]
""")
    fixed = RUNNER.invoke(app, ["lint", str(path), "--fix"])
    (tmp_path / "new.yaml").write_text(fixed.stdout)
    claim, pod = yaml.safe_load_all(fixed.stdout)
    assert claim["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] == "gpu"
    assert pod["spec"]["resourceClaims"] == [{"name": "g", "resourceClaimName": "c"}]
    assert pod["spec"]["containers"][0]["resources"]["claims"] == [{"name": "g"}]
    again = RUNNER.invoke(app, ["lint", str(tmp_path / "new.yaml")])
    assert (again.exit_code, again.output) == (0, "0 findings\n")


def test_counts_that_no_node_has(tmp_path: Path) -> None:
    path = world(tmp_path)
    objects = list(yaml.safe_load_all(Path(path).read_text()))
    objects[1]["spec"]["devices"]["requests"][0]["exactly"]["count"] = 9
    Path(path).write_text(yaml.safe_dump_all(objects))
    result = RUNNER.invoke(app, ["lint", path])
    assert "asks for 9 devices; the most that match on one node is 4" in result.output


def test_one_broken_object_does_not_hide_the_others(tmp_path: Path) -> None:
    path = world(tmp_path, class_selector="device.drivr == 'x'")
    broken = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "b"},
        "spec": {"devices": {"requests": [{"name": "r"}]}},
    }
    Path(path).write_text(Path(path).read_text() + "\n---\n" + yaml.safe_dump(broken))
    result = RUNNER.invoke(app, ["lint", path])
    assert "undefined field 'drivr'" in result.output
    assert "needs `exactly` or `firstAvailable`" in result.output


def test_a_file_that_is_not_kubernetes(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("- 1\n- 2\n")
    result = RUNNER.invoke(app, ["lint", str(path)])
    assert result.exit_code == 1
    assert "holds a list where a Kubernetes object is expected" in result.output


def test_topologies_that_no_node_has(tmp_path: Path) -> None:
    bridged = carried_machines()["a100-pcie-8-bridged"]
    objects = [gpu_slice("n", bridged), fabric_slice("n", bridged)]
    for count in (2, 4):
        objects.append(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": f"c{count}"},
                "spec": {
                    "devices": {"requests": [{"name": "g", "exactly": {"deviceClassName": "gpu", "count": count}}]}
                },
            }
        )
        objects.append(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"p{count}", "annotations": {"berth.dev/topology": "required"}},
                "spec": {
                    "schedulerName": "berth-scheduler",
                    "containers": [{"name": "m", "resources": {"claims": [{"name": "g"}]}}],
                    "resourceClaims": [{"name": "g", "resourceClaimName": f"c{count}"}],
                },
            }
        )
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump_all(objects))
    result = RUNNER.invoke(app, ["lint", str(path)])
    assert "Pod default/p4, annotation berth.dev/topology: no node joins 4 GPUs by NVLink" in result.output
    assert "p2" not in result.output


# Files that lint must reject as unreadable, by the reason; lint can read all other FILES.
UNREADABLE = {
    "empty": "is empty", "blank": "is empty", "comment": "holds no Kubernetes objects",
    "null": "holds no Kubernetes objects", "binary": "is binary", "gzip": "is binary", "utf16": "is binary",
    "bytes": "is not UTF-8: byte 0xff (line 1, column 17)", "control": "holds '\\x01', which YAML forbids",
    "bomb": "its aliases stand for more values", "merge bomb": "its aliases stand for more values",
    "json bomb": "is not YAML or JSON", "deep flow": "is nested deeper", "deep json": "is nested deeper",
    "deep block": "is nested deeper", "deep keys": "a key must be a string", "self": "an alias names no anchor",
    "alias": "an alias names no anchor", "object key": "a key must be a string", "null key": "a key must be a string",
    "twice": "a key occurs twice", "tag": "has a tag that is not known", "big": "a number is beyond 64 bits",
    "huge": "a number is beyond 64 bits", "infinite": ".inf is not a finite number", "cut": "is not YAML or JSON",
    "tab": "is not YAML or JSON",
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_only_unreadable_files_are_bad_input(tmp_path: Path, name: str) -> None:
    """Exit code 2, one sentence, and the findings about all other documents; a finding is exit code 1."""
    bad = tmp_path / "bad"
    bad.write_bytes(FILES[name])
    code, out, stderr = berth(["lint", str(bad), world(tmp_path, class_name="gpuu")])
    assert "no DeviceClass 'gpuu'" in out
    assert (code, stderr != "") == ((2, True) if name in UNREADABLE else (1, False))
    if name in UNREADABLE:
        assert stderr.startswith(f"berth: {bad}: {UNREADABLE[name]}")
        assert stderr.count("\n") == 1


@pytest.mark.parametrize("path", ["nowhere", "."])
def test_files_that_do_not_exist_hide_no_findings(tmp_path: Path, path: str) -> None:
    code, out, stderr = berth(["lint", str(tmp_path / path), world(tmp_path, class_name="gpuu")])
    assert code == 2
    assert "no DeviceClass 'gpuu'" in out
    assert stderr.startswith(f"berth: {tmp_path / path}: ")


def test_a_document_that_cannot_be_read_hides_no_other_document(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: [\n---\n" + Path(world(tmp_path, class_name="gpuu")).read_text())
    code, out, stderr = berth(["lint", str(path)])
    assert code == 2
    assert "no DeviceClass 'gpuu'" in out
    assert stderr.startswith(f"berth: {path}, document 1: is not YAML or JSON")


@pytest.mark.parametrize(("text", "code"), [("a: [", 2), ("a: 1", 1)])
def test_fix_prints_no_manifests_that_lack_one(tmp_path: Path, text: str, code: int) -> None:
    (tmp_path / "bad").write_text(text)
    found, out, stderr = berth(["lint", "--fix", world(tmp_path), str(tmp_path / "bad")])
    assert (found, out) == (code, "")
    assert "--fix prints no manifests, because they would lack what it cannot read" in stderr


def test_an_item_of_a_list_that_is_no_object_hides_no_other_item(tmp_path: Path) -> None:
    objects = list(yaml.safe_load_all(Path(world(tmp_path, class_name="gpuu")).read_text()))
    (tmp_path / "x").write_text(yaml.safe_dump({"kind": "List", "items": [objects[0], 1, objects[1]]}))
    code, out, _ = berth(["lint", str(tmp_path / "x")])
    assert code == 1
    assert "x: .items[1]: must be an object, is 1" in out
    assert "no DeviceClass 'gpuu'" in out


def test_a_class_may_be_in_the_cluster_unless_the_files_have_its_slices(tmp_path: Path) -> None:
    class_ = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "nic"}, "spec": {}}
    requests = [{"name": name[:3], "exactly": {"deviceClassName": name}} for name in ("nic", "gpu.nvidia.com")]
    claim = {**class_, "kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": {"devices": {"requests": requests}}}
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump_all([class_, claim]))
    result = RUNNER.invoke(app, ["lint", str(path)])
    assert result.exit_code == 0, result.output
    assert "note: " in result.output
    assert "no DeviceClass 'gpu.nvidia.com' in these files: the cluster must have it" in result.output


def test_a_patch_is_told_from_an_object(tmp_path: Path) -> None:
    path = tmp_path / "patch.yaml"
    path.write_text("{$patch: delete, apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: gpu}}")
    result = RUNNER.invoke(app, ["lint", str(path)])
    assert result.exit_code == 1
    assert "correction: this is a patch, not an object: check what kubectl kustomize prints" in result.output


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ("{name: g, deviceClassName: g}", "correction: move it into spec.devices.requests[0].exactly"),
        ("{name: g, deviceClassName: g, count: 2}", "correction: move them into spec.devices.requests[0].exactly"),
        ("{name: g, exactly: {deviceClassName: g, count: true}}", "must be an integer, is true"),
        ("{exactly: {deviceClassName: g}}", "spec.devices.requests[0].name: is missing"),
    ],
)
def test_words_of_a_claims_findings(tmp_path: Path, request_: str, words: str) -> None:
    head = "{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: c}"
    path = tmp_path / "claim.yaml"
    path.write_text(f"{head}, spec: {{devices: {{requests: [{request_}]}}}}}}")
    result = RUNNER.invoke(app, ["lint", str(path)])
    assert result.exit_code == 1
    assert words in result.output


@pytest.mark.parametrize(("labels", "is_told"), [({}, True), ({"resource.kubernetes.io/admin-access": "true"}, False)])
def test_admin_access_needs_a_label_of_the_namespace(tmp_path: Path, labels: dict, is_told: bool) -> None:
    exactly = {"deviceClassName": "g", "allocationMode": "All", "adminAccess": True}
    claim = {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "n"},
        "spec": {"devices": {"requests": [{"name": "g", "exactly": exactly}]}},
    }  # fmt: skip
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n", "labels": labels}}
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump_all([namespace, claim]))
    result = RUNNER.invoke(app, ["lint", str(path)])
    assert result.exit_code == 0, result.output
    told = ': ResourceClaim n/c: adminAccess needs the label resource.kubernetes.io/admin-access: "true" on'
    assert (told in result.output) == is_told, result.output
