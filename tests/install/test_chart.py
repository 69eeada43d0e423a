"""The Helm chart, rendered by Helm's engine, has the objects that kubectl renders of the kustomizations."""

from __future__ import annotations

import re
import shlex
from functools import reduce
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from extender import __version__
from tests.worlds.helm_chart import (
    CHART,
    NAMESPACE,
    Objects,
    Values,
    helm,
    merged,
    objects_of_chart,
    rendered_chart,
    without_labels,
)
from tests.worlds.manifests import MANIFESTS, PAIRS, needs_kubectl, rendered
from tests.worlds.oci_registry import oci_registry

CASES = yaml.safe_load((MANIFESTS.parent / "tests" / "cases" / "chart_values.yaml").read_text())
COMPONENTS: dict[str, Values] = CASES["components"]
ALL = [*COMPONENTS.values(), *(case["values"] for part in ("changes", "absent") for case in CASES[part])]


def comparable(objects: Objects) -> Objects:
    """Objects with the policy as a value: Helm writes its YAML in another way. Without the release's namespace."""
    policy = objects["ConfigMap", "berth-policy"]["data"]
    policy["policy.yaml"] = yaml.safe_load(policy["policy.yaml"])
    return {key: obj for key, obj in objects.items() if obj["kind"] != "Namespace"}


SETS = [(), *((name,) for name in COMPONENTS), *(pair for pair in PAIRS if set(pair) <= set(COMPONENTS))]


@needs_kubectl
@pytest.mark.parametrize("names", SETS, ids=" ".join)
def test_values_give_what_components_give(names: tuple[str, ...], tmp_path: Path) -> None:
    expected = comparable(without_labels(rendered(tmp_path, *names)))
    assert comparable(objects_of_chart(merged(*(COMPONENTS[name] for name in names)))) == expected


@pytest.mark.parametrize("case", CASES["changes"], ids=lambda case: str(case["values"]))
def test_a_value_changes_these_objects_only(case: dict) -> None:
    default = comparable(objects_of_chart(case.get("base", {})))
    found = comparable(objects_of_chart(case["values"]))
    assert found.keys() == default.keys()
    changed = [key for key in found if found[key] != default[key]]
    assert {f"{kind}/{name}" for kind, name in changed} == set(case["objects"])
    for key in changed:
        assert field(found[key], case["field"]) == case["value"]
        assert field(default[key], case["field"]) != case["value"]


def test_alerts_link_to_the_documentation_if_its_address_is_known() -> None:
    for docs, key, begins in (
        ("", "page", "docs/"),
        ("https://example.com/a", "runbook_url", "https://example.com/a/"),
    ):
        objects = objects_of_chart({"prometheus": {"enabled": True}, "docs": docs})
        groups = objects["PrometheusRule", "berth"]["spec"]["groups"]
        found = [rule["annotations"] for group in groups for rule in group["rules"]]
        assert all({"page", "runbook_url"} & one.keys() == {key} and one[key].startswith(begins) for one in found)


def field(tree: Any, path: list) -> object:
    """The value at a path; None if its last step is absent."""
    *steps, last = path
    parent = reduce(lambda part, step: part[step], steps, tree)
    return parent.get(last) if isinstance(parent, dict) else parent[last]


@pytest.mark.parametrize("case", CASES["absent"], ids=lambda case: str(case["values"]))
def test_a_value_leaves_these_objects_out(case: dict) -> None:
    default = comparable(objects_of_chart(case.get("base", {})))
    found = comparable(objects_of_chart(case["values"]))
    assert {f"{kind}/{name}" for kind, name in default.keys() - found.keys()} == set(case["objects"])
    assert found.keys() <= default.keys()


def test_existing_accounts_get_the_rights() -> None:
    default = objects_of_chart({})
    names = {"berth": "a", "berth-console": "b", "berth-scheduler": "c", "berth-agent": "d"}
    (case,) = [case["values"] for case in CASES["absent"] if "serviceAccounts" in case["values"]]
    found = objects_of_chart(case)
    for (kind, name), obj in found.items():
        if kind.endswith("RoleBinding"):
            (subject,) = obj["subjects"]
            (before,) = default[kind, name]["subjects"]
            assert subject == {**before, "name": names[before["name"]]}
        elif kind in ("Deployment", "DaemonSet"):
            account = default[kind, name]["spec"]["template"]["spec"]["serviceAccountName"]
            assert obj["spec"]["template"]["spec"]["serviceAccountName"] == names[account]
    secret = found["Secret", "berth-scheduler-token"]["metadata"]["annotations"]
    assert secret == {"kubernetes.io/service-account.name": "c"}
    (condition,) = found["ValidatingAdmissionPolicy", "berth-agent-own-slice"]["spec"]["matchConditions"]
    assert condition["expression"].endswith(f'"system:serviceaccount:{NAMESPACE}:d"')


def test_existing_priority_classes_and_secrets_are_used() -> None:
    values = {
        "priorityClasses": {"create": False, "scheduler": "x", "agent": "y"},
        "verbs": "separate",
        "tls": {"secret": "s", "consoleSecret": "c"},
    }
    found = objects_of_chart(values)
    specs = {
        name: obj["spec"]["template"]["spec"]
        for (kind, name), obj in found.items()
        if kind in ("Deployment", "DaemonSet")
    }
    classes = {name: spec.get("priorityClassName") for name, spec in specs.items()}
    assert classes == {"berth": "x", "berth-scheduler": "x", "berth-console": None, "berth-agent": "y"}
    secrets = {
        name: [volume["secret"]["secretName"] for volume in spec.get("volumes", ()) if volume["name"] == "tls"]
        for name, spec in specs.items()
    }
    assert secrets == {"berth": ["s"], "berth-scheduler": ["s"], "berth-console": ["c"], "berth-agent": []}


def test_two_values_of_any_kind_render_together() -> None:
    with helm.Chart.load(CHART) as chart:
        for pair in combinations(ALL, 2):
            text = chart.render(merged(*pair), name="berth", namespace=NAMESPACE)["berth/templates/objects.yaml"]
            assert "<no value>" not in text, pair
            assert ("Deployment", "berth-scheduler") in without_labels(text)


def test_another_namespace_and_no_trace_of_the_usual_one() -> None:
    for values in ALL:
        texts = rendered_chart(values, namespace="gpu")
        assert NAMESPACE not in "".join(texts.values())
        namespaces = {
            obj["metadata"].get("namespace") for obj in without_labels(texts["berth/templates/objects.yaml"]).values()
        }
        assert namespaces == {None, "gpu", "kube-system"}


@pytest.mark.parametrize("case", CASES["rejected"], ids=lambda case: str(case["values"]))
def test_a_wrong_value_is_named(case: dict) -> None:
    with pytest.raises(helm.HelmValuesError) as caught:
        objects_of_chart(case["values"])
    assert case["words"] in str(caught.value)


@pytest.mark.parametrize("verbs", ["loopback", "mtls"])
def test_the_notes_say_how_to_verify(verbs: str) -> None:
    notes = rendered_chart({"verbs": verbs, "console": {"tokenSecret": "mine"}}, "gpu")["berth/templates/NOTES.txt"]
    for words in (
        "kubectl -n gpu rollout status deployment/berth-scheduler",
        "kubectl berth nodes --berth-namespace gpu\n",
        "kubectl -n gpu create secret generic mine --from-literal=token=",
        "berth doctor --berth-namespace gpu\n",
    ):
        assert words in notes
    assert ("berth-console-tls" in notes) == ("SSL_CERT_FILE" in notes) == (verbs == "mtls")


def commands_of_helm() -> list[list[str]]:
    """The commands that install or upgrade the chart, in the documentation's blocks."""
    pages = (MANIFESTS.parent / "docs" / "install.md", CHART / "README.md")
    lines = [line for page in pages for line in page.read_text().splitlines() if line.startswith("helm ")]
    return [shlex.split(line) for line in lines if "manifests/helm/berth" in line]


@pytest.mark.parametrize("words", commands_of_helm(), ids=" ".join)
def test_documented_commands_of_helm(words: list[str]) -> None:
    """They name the chart, the namespace and values that exist; the engine's library has no command line."""
    release, chart, option, namespace = words[2:6]
    assert (release, MANIFESTS.parent / chart, option, namespace) == ("berth", CHART, "--namespace", NAMESPACE)
    assert words[1] in ("install", "upgrade")
    flags = {"--create-namespace", "--reset-then-reuse-values", "--set"}
    assert {word for word in words[6:] if word.startswith("--")} <= flags
    given = merged(*(helm.parse_set_string(word) for before, word in pairwise(words) if before == "--set"))
    assert objects_of_chart(given) != objects_of_chart({})


def test_inline_values_of_the_page_exist() -> None:
    section = (MANIFESTS.parent / "docs" / "install.md").read_text().split("### With Helm")[1].split("\n## ")[0]
    for text in re.findall(r"`([a-z.]+=[^`]+)`", section):
        assert objects_of_chart(helm.parse_set_string(text)) != objects_of_chart({}), text


def test_helm_lint_finds_nothing() -> None:
    for values in COMPONENTS.values():
        report = helm.lint(CHART, values, strict=True, namespace=NAMESPACE)
        assert report["errors"] == []
        assert [m["error"] for m in report["messages"]] == ["icon is recommended"]


def test_the_chart_goes_through_a_registry(tmp_path: Path) -> None:
    """Pushed and pulled by Helm as an OCI artifact, it renders what the folder renders."""
    archive = helm.package(CHART, destination=tmp_path)
    pulled = tmp_path / "pulled"
    pulled.mkdir()
    with oci_registry() as host, helm.RegistryClient(plain_http=True, credentials_file=tmp_path / "none") as client:
        client.push(archive, f"oci://{host}/charts", plain_http=True)
        client.pull(f"oci://{host}/charts/berth", version=__version__, destination=pulled, plain_http=True)
    (found,) = pulled.iterdir()
    for values in ({}, {"verbs": "separate", "prometheus": {"enabled": True}}):
        with helm.Chart.load(found) as chart:
            packed = chart.render(values, name="berth", namespace=NAMESPACE)
        assert packed == rendered_chart(values)
