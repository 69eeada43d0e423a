"""Bad input of users and broken tools: files, and correct objects with one wrong part."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from extender.sandbox import carried_machines, fabric_slice
from extender.sandbox.machines import gpu_slice, node_object

Json = dict[str, Any]
ROOT = Path(__file__).parents[2]


def bomb(levels: int = 9, width: int = 9) -> str:
    """Aliases of aliases: a few hundred bytes that stand for width ** levels values."""
    lines = ["a: &a [" + ",".join("x" * width) + "]"]
    for i in range(1, levels + 1):
        above, name = chr(ord("a") + i - 1), chr(ord("a") + i)
        lines.append(f"{name}: &{name} [" + ",".join([f"*{above}"] * width) + "]")
    return "\n".join(lines)


# Contents that no command may show a trace for, by what is wrong with them.
FILES: dict[str, bytes] = {
    "empty": b"",
    "blank": b" \n\n",
    "comment": b"# nothing\n",
    "null": b"null\n",
    "documents": b"a: 1\n---\nb: 2\n",
    "binary": b"\x7fELF\x02\x01\x01\x00\x00",
    "gzip": b"\x1f\x8b\x08\x00abc",
    "bytes": b"candidates: 3 # \xff\xfe",
    "control": b"a: \x01\n",
    "utf16": "kind: Pod\n".encode("utf-16"),
    "bom": b"\xef\xbb\xbfkind: Pod\n",
    "bomb": bomb().encode(),
    "json bomb": json.dumps({"a": [[[[]]]]}).encode() * 2,
    "merge bomb": (bomb(3) + "\nz: {<<: [*a]}").encode(),
    "deep flow": b"[" * 5000,
    "deep json": b'{"a":' * 2000 + b"1" + b"}" * 2000,
    "deep block": b"- " * 3000,
    "deep keys": b"? " * 3000,
    "self": b"a: &a [*a]\n",
    "alias": b"*a\n",
    "object key": b"{? {a: 1} : 2}\n",
    "number key": b"1: 2\ntrue: 3\n",
    "null key": b"~: 1\n",
    "twice": b"kind: Pod\nkind: Pod\n",
    "tag": b"a: !!python/object:os.system x\n",
    "big": b"kind: Pod\nspec: {x: 99999999999999999999999}\n",
    "huge": b"x: " + b"9" * 10000,
    "infinite": b"x: [.inf, .nan, 1e999]\n",
    "date": b"kind: Pod\nmetadata: {name: 2024-01-01}\n",
    "string": b"hello\n",
    "number": b"42\n",
    "list": b"- 1\n- 2\n",
    "list of objects": b'[{"kind": "Pod"}]',
    "cut": b'{"kind": "Pod", "metad',
    "tab": b"a:\n\tb: 1\n",
    "long": b"kind: " + b"x" * 100_000,
    "no kind": b"metadata: {name: x}\n",
    "kind": b"kind: [Pod]\n",
    "items": b"kind: List\nitems: {a: 1}\n",
    "item": b"kind: List\nitems: [1, null, [], {}]\n",
    "metadata": b"kind: Pod\nmetadata: [x]\n",
    "spec": b"kind: Pod\nmetadata: {name: x}\nspec: x\n",
    "config map": b"kind: ConfigMap\ndata: [1]\n",
    "config map policy": b"kind: ConfigMap\ndata: {policy.yaml: 'weights: {link: x}'}\n",
    "kubeconfig": b"current-context: c\nclusters: 3\ncontexts: []\n",
    "certificate": b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
}
BAD: st.SearchStrategy[Any] = st.sampled_from(
    [
        None, True, 0, -1, 1 << 63, 1 << 64, 10**40, 1.5, "", "x", "\u0000", "²", "é" * 300, "9" * 400, "1Gi", "-",
        [], {}, [None], [1], ["x"], [[]], [{}], {"x": 1}, {"": None}, {"name": 1}, {"name": "x"}, [{"name": "x"}],
        "true", "*", "&a", "!!int", "{{ .Values.x }}", "a\nb", "[bold]", "\u001b[31m",
    ]
)  # fmt: skip


RAW = st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode), st.sampled_from(list(FILES.values())))


def _objects() -> list[Json]:
    """A node, its slices, and objects that use them; `honest` picks some by their position."""
    machine = carried_machines()["h100-pcie-8-bridged"]
    request = {
        "name": "g",
        "exactly": {
            "deviceClassName": "gpu",
            "allocationMode": "ExactCount",
            "count": 2,
            "selectors": [{"cel": {"expression": "true"}}],
        },
    }
    spec = {
        "devices": {"requests": [request], "constraints": [{"requests": ["g"], "matchAttribute": "gpu.nvidia.com/x"}]}
    }
    pod_spec = {
        "containers": [{"name": "m", "resources": {"claims": [{"name": "g"}], "limits": {"example.com/card": 1}}}],
        "resourceClaims": [{"name": "g", "resourceClaimTemplateName": "t"}],
        "schedulerName": "berth-scheduler",
    }
    template = {
        "kind": "ResourceClaimTemplate",
        "apiVersion": "resource.k8s.io/v1",
        "metadata": {"name": "t"},
        "spec": {"spec": spec},
    }
    return [
        node_object("n", machine, {}),
        gpu_slice("n", machine),
        fabric_slice("n", machine),
        template,
        {
            "kind": "DeviceClass",
            "apiVersion": "resource.k8s.io/v1",
            "metadata": {"name": "gpu"},
            "spec": {"selectors": [{"cel": {"expression": "true"}}]},
        },
        {
            "kind": "ResourceClaim",
            "apiVersion": "resource.k8s.io/v1",
            "metadata": {"name": "c", "namespace": "default"},
            "spec": spec,
        },
        {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {"name": "p", "namespace": "default", "annotations": {"berth.dev/topology": "required"}},
            "spec": pod_spec,
        },
        {
            "kind": "Job",
            "apiVersion": "batch/v1",
            "metadata": {"name": "j"},
            "spec": {"template": {"metadata": {}, "spec": pod_spec}},
        },
    ]


def honest() -> dict[str, Any]:
    """A correct example of each kind of file that users write."""
    objects = _objects()
    case = {
        "name": "one",
        "features": [],
        "node": objects[0],
        "resourceSlices": [objects[1]],
        "deviceClasses": [objects[4]],
        "claims": [objects[5]],
        "allocatedDevices": [{"driver": "gpu.nvidia.com", "pool": "n", "device": "gpu-1"}],
        "allocatedShares": [],
        "consumedCapacity": [],
        "expect": {},
    }
    selection = {
        "name": "s",
        "expression": "true",
        "driver": "d",
        "features": [],
        "attributes": {"a": {"int": 1}},
        "capacity": {"m": {"value": "1Gi"}},
    }
    return {
        "objects": {"apiVersion": "v1", "kind": "List", "items": objects},
        "case": case,
        "selections": [selection],
        "policy": {
            "weights": {"link": 3},
            "candidates": 3,
            "overrides": [{"namespaces": ["a"], "weights": {"link": 0}}],
        },
        "machine": yaml.safe_load((ROOT / "extender/sandbox/machines/h100-pcie-8-bridged.yaml").read_text()),
        "scheduler": yaml.safe_load((ROOT / "scheduler-config/berth-scheduler.yaml").read_text()),
        "kubeconfig": kubeconfig("http://127.0.0.1:9"),
    }


def kubeconfig(server: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "users": [{"name": "u", "user": {"token": "t"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }


def spots(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of a value that can be replaced."""
    found = [path]
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in steps:
        found += spots(inner, (*path, key))
    return found


@st.composite
def damaged(draw: st.DrawFn, value: Any) -> bytes:
    """The value with one or two parts made wrong, as JSON or YAML."""
    made = {"root": copy.deepcopy(value)}
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from(spots(made)[1:]))
        target: Any = made
        for step in path[:-1]:
            target = target[step]
        if draw(st.booleans()) or path == ("root",):
            target[path[-1]] = copy.deepcopy(draw(BAD))
        else:
            del target[path[-1]]
    found = made["root"]
    return (
        json.dumps(found).encode()
        if draw(st.booleans())
        else yaml.safe_dump(found, allow_unicode=True).encode("utf-8", "replace")
    )


def contents(value: Any) -> st.SearchStrategy[bytes]:
    """Bytes of any kind; most differ little from correct ones."""
    return st.one_of(damaged(value), damaged(value), damaged(value), RAW)
