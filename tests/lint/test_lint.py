"""`berth lint` names object, field and cause."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.sandbox import carried_machines, fabric_slice
from extender.sandbox.machines import gpu_slice
from tests.worlds.bad_values import FILES
from tests.worlds.commands import berth
from tests.worlds.lint_worlds import CLEAN, Json, claim, class_, dra, exactly, lint, written

ATTRIBUTES = 'device.attributes["gpu.nvidia.com"]'
BRIDGED = carried_machines()["a100-pcie-8-bridged"]


def world(class_selector: str = "true", selector: str = "true", class_name: str = "gpu", **edit: Any) -> list[Json]:
    """A class, a claim and a slice."""
    slice_ = gpu_slice("n", carried_machines()["t4-4"])
    slice_["spec"].update(edit)
    asking = claim(exactly(class_name, selector, name="gpus"))
    asking["metadata"]["namespace"] = "ns"
    return [class_("gpu", class_selector), asking, slice_]


def unknown_class(folder: Path) -> str:
    """A file with one finding: no DeviceClass 'gpuu'."""
    return str(written(folder / "world.yaml", *world(class_name="gpuu")))


def test_nothing_to_find(tmp_path: Path) -> None:
    found = lint(tmp_path, *world(selector=f'{ATTRIBUTES}.productName == "Tesla T4"'))
    assert (found.code, found.stdout) == (0, CLEAN)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"class_selector": "device.drivr == 'x'"},
            "DeviceClass gpu, spec.selectors[0]: compilation failed: undefined field 'drivr' (line 1, column 7)",
        ),
        ({"selector": "1"}, "ResourceClaim ns/c, request gpus, selectors[0]: must evaluate to bool"),
        ({"class_name": "gpuu"}, "request gpus, deviceClassName: no DeviceClass 'gpuu'"),
        ({"selector": f'{ATTRIBUTES}.vendor == "x"'}, "`gpu.nvidia.com/vendor` is published by 0 of 4 devices"),
        (
            {"selector": 'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("1Ti")) > 0'},
            "matches 0 of 4 devices",
        ),
        ({"selector": f'{ATTRIBUTES}.vendor == "x"'}, "first error: gpu.nvidia.com device"),
        ({"devices": [{"name": "g", "attributes": {"a": {"int": "x"}}}]}, "attributes[a].int: must be an integer"),
        (
            {"selector": f'{ATTRIBUTES}.roots.exists(r, r == "x")'},
            "with the feature gate DRAListTypeAttributes accepts it",
        ),
    ],
)
def test_findings_name_object_field_and_cause(tmp_path: Path, changes: dict, words: str) -> None:
    found = lint(tmp_path, *world(**changes))
    assert words in found.stdout
    assert found.code == 1


def test_cost_limits_apply_to_new_expressions_only(tmp_path: Path) -> None:
    nested = "a != b || c != d"
    for variable in "dcba":
        nested = f"{ATTRIBUTES}.all({variable}, {nested})"
    stored = lint(tmp_path, *world(selector=nested))
    assert (stored.code, "the API server would reject it as new" in stored.stdout) == (1, True)
    new = lint(tmp_path, *world(selector=nested), options=("--as-new", "1.36", "--output", "json"))
    assert (new.code, "exceeds cost limit" in new.stdout) == (1, True)


PODS = """
this: [is, no, object]
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers: [{name: main, image: i}]
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers: [{name: main, image: i, resources: {claims: [{name: other}]}}]
  resourceClaims: [{name: g, resourceClaimName: x}, {name: g, resourceClaimName: y}]
"""


def test_each_document_has_its_findings(tmp_path: Path) -> None:
    found = lint(tmp_path, class_("c", 'device.capacity["d.x"].memory.quantity > 1'), PODS)
    assert found.code == 1
    for words in (
        "document 1: DeviceClass c, spec.selectors[0]: compilation failed: undefined field 'quantity'",
        "compare with quantity(",
        "document 2: kind: is missing: this is no Kubernetes object",
        "document 4: Pod p: has the same name as the one in",
        "two entries are called 'g'",
        "a container uses claim 'other'",
    ):
        assert words in found.stdout, (words, found.stdout)


def test_counts_that_no_node_has(tmp_path: Path) -> None:
    objects = world()
    objects[1]["spec"]["devices"]["requests"][0]["exactly"]["count"] = 9
    assert "no node has 9 free devices for request gpus; 1 node has 4" in lint(tmp_path, *objects).stdout


def test_one_broken_object_does_not_hide_the_others(tmp_path: Path) -> None:
    found = lint(tmp_path, *world(class_selector="device.drivr == 'x'"), claim({"name": "r"}, name="b"))
    assert "undefined field 'drivr'" in found.stdout
    assert "needs `exactly` or `firstAvailable`" in found.stdout


def test_a_file_that_is_not_kubernetes(tmp_path: Path) -> None:
    found = lint(tmp_path, "- 1\n- 2\n")
    assert (found.code, "holds a list where a Kubernetes object is expected" in found.stdout) == (1, True)


def test_topologies_that_no_node_has(tmp_path: Path) -> None:
    objects = [class_("gpu", "true"), gpu_slice("n", BRIDGED), fabric_slice("n", BRIDGED)]
    for count in (2, 4):
        objects.append(claim(exactly("gpu", count=count), name=f"c{count}"))
        spec = {
            "schedulerName": "berth-scheduler",
            "containers": [{"name": "m", "resources": {"claims": [{"name": "g"}]}}],
            "resourceClaims": [{"name": "g", "resourceClaimName": f"c{count}"}],
        }
        metadata = {"name": f"p{count}", "annotations": {"berth.dev/topology": "required"}}
        objects.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    out = lint(tmp_path, *objects).stdout
    assert "Pod p4: fits on no node even with all devices free: no free device set has the required topology" in out
    assert "no node has 4 free matching GPUs that links join; 1 node has 2" in out
    assert "p2" not in out


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
    code, out, stderr = berth(["lint", str(bad), unknown_class(tmp_path)])
    assert "no DeviceClass 'gpuu'" in out
    assert (code, stderr != "") == ((2, True) if name in UNREADABLE else (1, False))
    if name in UNREADABLE:
        assert stderr.startswith(f"berth: {bad}: {UNREADABLE[name]}")
        assert stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("path", "text", "place"), [("nowhere", "", ""), (".", "", ""), ("bad", "a: [\n---\n", ", document 1")]
)
def test_a_file_or_document_that_cannot_be_read_hides_no_other(
    tmp_path: Path, path: str, text: str, place: str
) -> None:
    if text:
        (tmp_path / path).write_text(text + Path(unknown_class(tmp_path)).read_text())
    code, out, stderr = berth(["lint", str(tmp_path / path), *([] if text else [unknown_class(tmp_path)])])
    assert (code, "no DeviceClass 'gpuu'" in out) == (2, True)
    assert stderr.startswith(f"berth: {tmp_path / path}{place}: ")


@pytest.mark.parametrize(("text", "code"), [("a: [", 2), ("a: 1", 1)])
def test_fix_prints_no_manifests_that_lack_one(tmp_path: Path, text: str, code: int) -> None:
    (tmp_path / "bad").write_text(text)
    found = lint(tmp_path, *world(), options=("--fix", str(tmp_path / "bad")))
    assert (found.code, found.stdout) == (code, "")
    assert "--fix prints no manifests, because they would lack what it cannot read" in found.stderr


def test_an_item_of_a_list_that_is_no_object_hides_no_other_item(tmp_path: Path) -> None:
    objects = world(class_name="gpuu")
    found = lint(tmp_path, {"kind": "List", "items": [objects[0], 1, objects[1]]})
    assert found.code == 1
    assert "x.yaml: .items[1]: must be an object, is 1" in found.stdout
    assert "no DeviceClass 'gpuu'" in found.stdout


def test_a_class_may_be_in_the_cluster_unless_the_files_have_its_slices(tmp_path: Path) -> None:
    found = lint(tmp_path, class_("nic", ""), claim(exactly("nic", name="nic"), exactly("gpu.nvidia.com")))
    assert found.code == 0
    assert "note: " in found.stdout
    assert "no DeviceClass 'gpu.nvidia.com' in these files: the cluster must have it" in found.stdout


def test_a_patch_is_told_from_an_object(tmp_path: Path) -> None:
    found = lint(tmp_path, {"$patch": "delete", **dra("DeviceClass", "gpu", {})})
    assert found.code == 1
    assert "correction: this is a patch, not an object: check what kubectl kustomize prints" in found.stdout


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
    found = lint(tmp_path, claim(yaml.safe_load(request_)))
    assert (found.code, words in found.stdout) == (1, True)


@pytest.mark.parametrize(("labels", "is_told"), [({}, True), ({"resource.kubernetes.io/admin-access": "true"}, False)])
def test_admin_access_needs_a_label_of_the_namespace(tmp_path: Path, labels: dict, is_told: bool) -> None:
    asking = claim(exactly("g", allocationMode="All", adminAccess=True))
    asking["metadata"]["namespace"] = "n"
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n", "labels": labels}}
    found = lint(tmp_path, namespace, asking)
    told = ': ResourceClaim n/c: adminAccess needs the label resource.kubernetes.io/admin-access: "true" on'
    assert (found.code, told in found.stdout) == (0, is_told)
