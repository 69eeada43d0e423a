"""`berth lint` finds mistakes that the schema of the API allows."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from extender.sandbox import carried_machines
from extender.sandbox.machines import gpu_slice
from tests.worlds.commands import berth
from tests.worlds.lint_worlds import CLEAN, Json, claim, class_, dra, exactly, lint, says, written
from tests.worlds.process_starter import ROOT

MISTAKES = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: two-same}
spec:
  spec:
    devices:
      requests:
      - name: gpu
        exactly: {deviceClassName: gpu.nvidia.com, count: 2}
      constraints: [{matchAttribute: gpu.nvidia.com/productName, requests: [gpu]}]
---
apiVersion: v1
kind: Pod
metadata: {name: p, annotations: {berth.dev/topology: required}}
spec:
  schedulerName: berth-scheduler
  containers: [{name: c, image: pause, resources: {claims: [{name: gpu, request: gpu}]}}]
  resourceClaims: [{name: gpu, resourceClaimTemplateName: two-same}]
"""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("request: gpu}", "request: gpux}"), "error: claim gpu has no request gpux"),
        (("{claims:", "{limits: {nvidia.com/gpu: 2}, claims:"), "warning: .limits: nvidia.com/gpu asks for GPUs of"),
        (("Name: two-same", "Name: two-sames"), "warning: no ResourceClaimTemplate two-sames: did you mean two-same?"),
        (("berth-scheduler", "berth"), "warning: the pod names scheduler berth: did you mean berth-scheduler?"),
        (("schedulerName: berth-scheduler", ""), "warning: names no scheduler: write schedulerName: berth-scheduler"),
        (("berth-scheduler", "bert-scheduler"), "warning: scheduler bert-scheduler: did you mean berth-scheduler?"),
        (("berth-scheduler", "kueue"), "warning: .schedulerName: names scheduler kueue"),
    ],
)
def test_mistakes_that_the_schema_allows(tmp_path: Path, change: tuple[str, str], words: str) -> None:
    found = lint(tmp_path, MISTAKES.replace(*change))
    assert says(found.stdout, words), found.stdout
    assert found.stdout.endswith("1 finding\n"), found.stdout
    assert found.code == 1


@pytest.mark.parametrize(
    "change",
    [
        ("[{name: c, image: pause, resources: {claims: [{name: gpu, request: gpu}]}}]", "[c]"),
        ("[{name: gpu, resourceClaimTemplateName", "[{name: {a: 1}, resourceClaimTemplateName"),
        ("{name: gpu, request: gpu}", "{name: [gpu]}"),
    ],
)
def test_a_value_of_another_type_is_a_finding(tmp_path: Path, change: tuple[str, str]) -> None:
    found = lint(tmp_path, MISTAKES.replace(*change))
    assert (found.code, "error: " in found.stdout, "must be a" in found.stdout) == (1, True, True), found.stdout


CLASSIC = """
apiVersion: resource.k8s.io/v1alpha2
kind: ResourceClaimTemplate
metadata: {name: gpus}
spec:
  spec:
    resourceClassName: gpu.nvidia.com
    parametersRef: {kind: GpuClaimParameters, name: four}
---
apiVersion: resource.k8s.io/v1beta1
kind: ResourceClaim
metadata: {name: c}
spec: {devices: {requests: [{name: gpu, deviceClassName: gpu.nvidia.com}]}}
"""


def test_fix_marks_what_it_corrects_and_keeps_the_version_of_what_it_does_not(tmp_path: Path) -> None:
    found = lint(tmp_path, CLASSIC, options=("--fix",))
    versions = [obj["apiVersion"] for obj in yaml.safe_load_all(found.stdout)]
    assert versions == ["resource.k8s.io/v1alpha2", "resource.k8s.io/v1"]
    told = [line for line in found.stderr.splitlines() if "correction:" not in line]
    assert [line.partition(":")[0] for line in told[:-1]] == ["error", "error", "error", "fixed", "fixed"]
    assert told[-1] == "5 findings, 2 fixed, 3 left"


@pytest.mark.parametrize("resources", ["resource: {claims: [{name: gpu}]}", "resources: {claim: [{name: gpu}]}"])
def test_fix_gives_no_second_claims_to_a_container_with_misspelt_ones(tmp_path: Path, resources: str) -> None:
    text = MISTAKES.replace("resources: {claims: [{name: gpu, request: gpu}]}", resources)
    found = lint(tmp_path, text, options=("--fix",))
    (container,) = list(yaml.safe_load_all(found.stdout))[1]["spec"]["containers"]
    assert container == {"name": "c", "image": "pause", **yaml.safe_load(resources)}
    assert found.stderr.splitlines()[-1] == "2 findings, 0 fixed, 2 left"
    assert "has no such field" in found.stderr


def test_berths_own_class_matches_nothing_by_design(tmp_path: Path) -> None:
    own = (ROOT / "manifests" / "base" / "marker-class.yaml").read_text()
    assert lint(tmp_path, own, gpu_slice("n", carried_machines()["t4-4"])).stdout == CLEAN


@pytest.mark.parametrize(("word", "operator"), [("and", "&&"), ("or", "||")])
@pytest.mark.parametrize("expression", ["true {} false", "(true {} false)"])
def test_words_of_other_languages_get_the_operator(word: str, operator: str, expression: str) -> None:
    _, _, error = berth(["select", expression.format(word)])
    assert f": write {operator}, not {word}" in error


def test_every_faulty_annotation_of_a_group_is_told(tmp_path: Path) -> None:
    notes = (
        "berth.dev/group: g, berth.dev/group-min: 2, berth.dev/group-timeout: 5 minutes, berth.dev/group-topology: x"
    )
    out = lint(tmp_path, MISTAKES.replace("{berth.dev/topology: required}", f"{{{notes}}}")).stdout
    assert out.endswith("3 findings\n"), out
    for name in ("group-min]: must be a string", "group-timeout: '5 minutes'", "group-topology: 'x'"):
        assert f"berth.dev/{name}" in out


def test_findings_of_the_compiler_name_the_document_once(tmp_path: Path) -> None:
    wrong = "exactly: {deviceClassName: gpu.nvidia.com, selectors: [{cel: {expression: '1'}}]}"
    first = MISTAKES.replace("exactly: {deviceClassName: gpu.nvidia.com, count: 2}", wrong)
    second = MISTAKES.split("---")[1].replace("name: p,", "name: q,")
    lines = lint(tmp_path, class_("gpu.nvidia.com", "1"), first, second).stdout.splitlines()
    path = tmp_path / "x.yaml"
    places = [line.partition(": must")[0] for line in lines if "selectors[0]" in line]
    assert places == [
        f"error: {path}, document 1: DeviceClass gpu.nvidia.com, spec.selectors[0]",
        f"error: {path}, document 2: ResourceClaimTemplate two-same, request gpu, selectors[0]",
    ]


def test_warnings_are_findings_and_notes_are_not(tmp_path: Path) -> None:
    found = lint(tmp_path, MISTAKES.replace("berth-scheduler", "kueue"))
    assert (found.code, found.stdout.splitlines()[-1]) == (1, "1 finding"), found.stdout
    found = lint(tmp_path, MISTAKES.replace("count: 2", "adminAccess: true"))
    assert (found.code, found.stdout.splitlines()[-1]) == (0, "0 findings"), found.stdout
    assert "note: " in found.stdout
    found = lint(tmp_path, MISTAKES.replace("{claims: [{name: gpu, request: gpu}]}", "{}"), options=("--fix",))
    assert found.code == 1, "--fix prints the correction, and the file still has the mistake"


@pytest.mark.parametrize("text", ["kind: Pod\nmetadata:\n\tname: p\n", "kind: Pod\nmetadata:\n  \tname: p\n"])
def test_a_tab_is_called_a_tab(tmp_path: Path, text: str) -> None:
    found = lint(tmp_path, text)
    assert (found.code, found.stdout, found.stderr.count("\n")) == (2, "", 1)
    assert "is not YAML or JSON: a tab, but YAML indents with spaces (line 3, column " in found.stderr


@pytest.mark.parametrize(
    ("claims", "requests", "problem"),
    [
        (64, 8, ""),
        (65, 1, "pod has more than 64 claims"),
        (64, 9, "pod has more than 512 device requests in its claims, all alternatives counted"),
    ],
)
def test_a_pod_with_more_claims_or_requests_than_berth_reads_is_an_error(
    tmp_path: Path, claims: int, requests: int, problem: str
) -> None:
    template, pod = yaml.safe_load_all(MISTAKES)
    asked = [exactly("gpu.nvidia.com", name=f"r{i}") for i in range(requests)]
    template["spec"]["spec"]["devices"] = {"requests": asked}
    pod["spec"]["resourceClaims"] = [{"name": f"c{i}", "resourceClaimTemplateName": "two-same"} for i in range(claims)]
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "c0"}]}
    out = lint(tmp_path, template, pod).stdout
    assert problem in out
    assert ("Pod p, spec.resourceClaims" in out) == bool(problem), out


POLICY = {"default": "1Gi", "validRange": {"min": "1Gi", "max": "40Gi", "step": "2Gi"}}
SHARED = {
    "name": "gpu-0",
    "allowMultipleAllocations": True,
    "attributes": {"resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"}, "model": {"string": "m"}},
    "capacity": {"memory": {"value": "80Gi", "requestPolicy": POLICY}, "other.example.com/cores": {"value": "8"}},
}


@pytest.mark.parametrize(
    ("constraint", "requests", "words"),
    [
        ("resource.kubernetes.io/pcieRoot", {}, ""),
        ("gpu.example.com/model", {"memory": "39Gi"}, ""),
        ("gpu.example.com/model", {"gpu.example.com/memory": "1Gi", "other.example.com/cores": 8}, ""),
        (
            "gpu.example.com/pcieRoot",
            {},
            "0 of 1 device have gpu.example.com/pcieRoot (they have resource.kubernetes.io/pcieRoot)",
        ),
        ("gpu.example.com/numa", {}, "0 of 1 device have gpu.example.com/numa"),
        ("gpu.example.com/model", {"mem": "1Gi"}, "a device has no capacity mem, but memory, other.example.com/cores"),
        ("gpu.example.com/model", {"cores": 1}, "a device has no capacity cores, but memory"),
        ("gpu.example.com/model", {"memory": "100Gi"}, "asks for 100Gi of memory; the largest device has 80Gi"),
        ("gpu.example.com/model", {"memory": "45Gi"}, "may have 39Gi of memory at most, in steps of 2Gi, not 45Gi"),
    ],
)
@pytest.mark.parametrize("beside", [True, False])
def test_what_no_device_has(tmp_path: Path, constraint: str, requests: dict, words: str, beside: bool) -> None:
    """The slices are in a file beside the claim, or in a snapshot."""
    capacity: Json = {"capacity": {"requests": requests}} if requests else {}
    asked = claim(exactly("gpu", **capacity), constraints=[{"matchAttribute": constraint}])
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    slice_ = {"driver": "gpu.example.com", "nodeName": "n", "pool": pool, "devices": [SHARED]}
    cluster = class_("gpu", 'device.driver == "gpu.example.com"'), dra("ResourceSlice", "gpu", slice_)
    snapshot = str(written(tmp_path / "snapshot.yaml", *cluster))
    output = lint(tmp_path, asked, options=(snapshot,) if beside else ("--snapshot", snapshot)).stdout
    assert output.endswith("1 finding\n" if words else CLEAN), output
    assert says(output, words) or not words, output
