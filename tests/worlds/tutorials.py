"""Manifests as tutorials print them, for older versions of DRA or with their usual mistakes."""

from __future__ import annotations


def claim(request: str, version: str = "v1alpha3", more: str = "") -> str:
    return f"""
apiVersion: resource.k8s.io/{version}
kind: ResourceClaimTemplate
metadata: {{name: gpu}}
spec:
  spec:
    devices:
      requests:
      - name: gpu
        {request}
{more}
"""


def selecting(expression: str) -> str:
    cel = f"selectors: [{{cel: {{expression: '{expression}'}}}}]"
    return claim(f"deviceClassName: gpu.nvidia.com\n        {cel}", "v1beta1") + POD


POD = """
---
apiVersion: v1
kind: Pod
metadata: {name: pod1}
spec:
  restartPolicy: Never
  containers:
  - name: ctr
    image: ubuntu:22.04
    command: [bash, -c, "nvidia-smi -L; trap 'exit 0' TERM; sleep 9999 & wait"]
    resources: {claims: [{name: gpu}]}
  resourceClaims: [{name: gpu, resourceClaimTemplateName: gpu}]
"""
OLD_POD = POD.replace(
    "{name: gpu, resourceClaimTemplateName: gpu}", "{name: gpu, source: {resourceClaimTemplateName: gpu}}"
)
CLASSIC = """
apiVersion: resource.k8s.io/v1alpha2
kind: ResourceClaimTemplate
metadata: {name: gpu}
spec:
  spec:
    resourceClassName: gpu.nvidia.com
"""
PARAMETERS = """
apiVersion: gpu.resource.nvidia.com/v1alpha1
kind: GpuClaimParameters
metadata: {name: four}
spec: {count: 4}
---
"""
DEPLOYMENT = """
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: server}
spec:
  replicas: 2
  selector: {matchLabels: {app: server}}
  template:
    metadata: {labels: {app: server}}
    spec:
      containers: [{name: ctr, image: vllm, resources: {claims: [{name: gpu}]}}]
      resourceClaims: [{name: gpu, source: {resourceClaimTemplateName: gpu}}]
"""
MEMORY = 'device.attributes["gpu.nvidia.com"].memory'
# Manifests that `berth lint --fix` changes into manifests that the API server accepts.
CORRECTED: dict[str, str] = {
    "one GPU, classic": CLASSIC + OLD_POD,
    "a shared claim, classic": CLASSIC.replace("ResourceClaimTemplate", "ResourceClaim").replace(
        "  spec:\n    resourceClassName", "  allocationMode: WaitForFirstConsumer\n  resourceClassName"
    ) + OLD_POD.replace("resourceClaimTemplateName", "resourceClaimName"),
    "a deployment, classic": CLASSIC + DEPLOYMENT,
    "ResourceClass": """
apiVersion: resource.k8s.io/v1alpha2
kind: ResourceClass
metadata: {name: gpu.example.com}
driverName: gpu.resource.example.com
structuredParameters: true
""",
    "v1alpha3": claim("deviceClassName: gpu.nvidia.com") + POD,
    "controller of v1alpha3": claim("deviceClassName: gpu.nvidia.com", more="    controller: gpu.nvidia.com") + POD,
    "class of v1alpha3": """
apiVersion: resource.k8s.io/v1alpha3
kind: DeviceClass
metadata: {name: big}
spec:
  suitableNodes: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}
  selectors: [{cel: {expression: 'device.driver == "gpu.nvidia.com"'}}]
""",
    "slice of v1alpha3": """
apiVersion: resource.k8s.io/v1alpha3
kind: ResourceSlice
metadata: {name: n1-gpu}
spec:
  driver: gpu.example.com
  nodeName: n1
  pool: {name: n1, generation: 1, resourceSliceCount: 1}
  devices:
  - name: gpu-0
    basic:
      attributes: {model: {string: LATEST-GPU-MODEL}, index: {int: 0}}
      capacity: {memory: 80Gi}
""",
    "v1beta1 with MIG": claim(
        """deviceClassName: mig.nvidia.com
        selectors: [{cel: {expression: "device.attributes['gpu.nvidia.com'].profile == '1g.5gb'"}}]
      - name: other
        deviceClassName: mig.nvidia.com
        allocationMode: ExactCount
        count: 2""", "v1beta1",
        "      constraints: [{requests: [], matchAttribute: gpu.nvidia.com/parentUUID}]",
    ) + POD,
    "v1beta1 with sharing": claim(
        "deviceClassName: gpu.nvidia.com", "v1beta1", """
      config:
      - requests: [gpu]
        opaque:
          driver: gpu.nvidia.com
          parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig, sharing: {strategy: TimeSlicing}}
""",
    ) + DEPLOYMENT,
    "v1beta1 with alternatives": claim(
        "firstAvailable: [{name: a, deviceClassName: gpu.nvidia.com}, {name: b, deviceClassName: mig.nvidia.com}]",
        "v1beta1",
    ) + POD,
    "v1beta2": claim("exactly: {deviceClassName: gpu.nvidia.com}", "v1beta2") + POD,
    "v1 without exactly": claim("deviceClassName: gpu.nvidia.com\n        count: 2", "v1") + POD,
    "no container uses the claim": claim("exactly: {deviceClassName: gpu.nvidia.com}", "v1")
    + POD.replace("    resources: {claims: [{name: gpu}]}\n", ""),
    "a claim with spec.spec": claim("deviceClassName: gpu.nvidia.com").replace(
        "ResourceClaimTemplate", "ResourceClaim"
    ) + POD.replace("resourceClaimTemplateName", "resourceClaimName"),
    "a template without spec.spec": """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: gpu}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}
""" + POD,
    "a claim of the core group": """
apiVersion: v1
kind: ResourceClaimTemplate
metadata: {name: gpu}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}}
""" + POD,
    "claims as text": claim("deviceClassName: gpu.nvidia.com", "v1beta1") + POD.replace("[{name: gpu}]}", "[gpu]}"),
    "a pod without name": claim("deviceClassName: gpu.nvidia.com", "v1beta1")
    + POD.replace("{name: pod1}", "{generateName: pod-}"),
    "a pod without version": claim("deviceClassName: gpu.nvidia.com", "v1beta1") + POD.replace("apiVersion: v1", ""),
    "a deployment of the core group": CLASSIC + DEPLOYMENT.replace("apps/v1", "v1"),
    "a domain with the attribute": selecting('device.attributes["gpu.nvidia.com/type"].string == "gpu"'),
    "a domain with the capacity": selecting('device.capacity["gpu.nvidia.com/memory"].isGreaterThan(quantity("9Gi"))'),
    "an expression in the place of cel": selecting("true").replace("{expression: 'true'}", "'true'"),
    "an expression beside cel": selecting("true").replace("{cel: {expression: 'true'}}", "{cel: , expression: 'true'}"),
    "bytes": selecting(f"{MEMORY} >= 42949672960"),
    "a product": selecting(f"{MEMORY} >= 24 * 1024 * 1024 * 1024 && true"),
    "a quantity": selecting(f'{MEMORY} >= quantity("40Gi")'),
    "a text": selecting(f'{MEMORY} >= "40Gi"'),
    "a unit": selecting(f"{MEMORY} >= 40.GiB"),
    "a method": selecting(f'{MEMORY}.isGreaterThan(quantity("39Gi"))'),
    "compareTo": selecting(f'true && {MEMORY}.compareTo(quantity("40Gi")) >= 0'),
    "a capacity as a number": selecting('device.capacity["gpu.nvidia.com"].memory >= quantity("40Gi")'),
}  # fmt: skip
# Manifests that `berth lint` rejects, with its reason.
REFUSED: dict[str, tuple[str, str]] = {
    "parameters, classic": (
        PARAMETERS + CLASSIC + "    parametersRef: {apiGroup: g, kind: GpuClaimParameters, name: four}"
        + OLD_POD, "write what GpuClaimParameters says into spec.spec.devices",
    ),
    "structured parameters": (
        """
apiVersion: resource.k8s.io/v1alpha2
kind: ResourceClaimParameters
metadata: {name: p}
driverRequests: [{driverName: d, requests: [{namedResources: {selector: 'attributes.string["a"] == "b"'}}]}]
---
""" + CLASSIC + POD, "the API removed ResourceClaimParameters (classic DRA)",
    ),
    "parameters of a class": (
        """
apiVersion: resource.k8s.io/v1alpha2
kind: ResourceClass
metadata: {name: gpu}
driverName: d
parametersRef: {apiGroup: g, kind: DeviceClassParameters, name: p}
""" + POD, "write a DeviceClass with CEL selectors",
    ),
    "PodSchedulingContext": (
        "apiVersion: resource.k8s.io/v1alpha2\nkind: PodSchedulingContext\nmetadata: {name: p}\nspec: {}\n" + POD,
        "the API removed PodSchedulingContext (classic DRA)",
    ),
    "memory without a unit": (selecting(f"{MEMORY} >= 80"), "with your amount and its unit"),
    "memory times a variable": (selecting(f"{MEMORY} >= 4 * x"), "memory is a capacity, not an attribute"),
    "a constraint with CEL": (
        claim("deviceClassName: gpu.nvidia.com", more="      constraints: [{cel: {expression: 'true'}}]") + POD,
        "a constraint cannot have CEL",
    ),
    "a misspelt field": (
        claim("exactly: {deviceClasName: gpu.nvidia.com}", "v1") + POD, "did you mean deviceClassName?",
    ),
    "a field at the wrong place": (
        claim("exactly: {deviceClassName: g}", "v1", "      deviceClassName: g") + POD, "has no such field"
    ),
    "a misspelt kind": (
        claim("exactly: {}", "v1").replace("Template", "Templte") + POD, "did you mean ResourceClaimTemplate?"
    ),
    "a number that must be text": (
        claim("exactly: {deviceClassName: gpu.nvidia.com}", "v1")
        + POD.replace("{name: pod1}", "{name: pod1, annotations: {berth.dev/group-min: 4}}"), 'write "4"',
    ),
    "text that must be a number": (
        claim("exactly: {deviceClassName: gpu.nvidia.com, count: 'two'}", "v1") + POD, "must be an integer, is 'two'"
    ),
    "a name with dots": (
        claim("exactly: {deviceClassName: gpu.nvidia.com}", "v1") + POD.replace("{name: gpu", "{name: mig-1g.5gb"),
        "the name 'mig-1g.5gb' must be a DNS label",
    ),
    "a variable as name": (
        claim("exactly: {deviceClassName: gpu.nvidia.com}", "v1") + POD.replace("pod1", "'${POD}'"),
        "the name '${POD}' must have lower-case letters",
    ),
    "memory as a field of the device": (
        selecting("device.memory >= 24Gi"),
        'write device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("24Gi")) >= 0, with your driver',
    ),
    "a model as a field of the device": (
        selecting('device.model == "H100"'), 'write device.attributes["gpu.nvidia.com"].model, with your driver',
    ),
    "memory without a domain": (
        selecting('device.attributes["memory"].isGreaterThan(quantity("20Gi"))'),
        'write the domain first: device.capacity["gpu.nvidia.com"].memory',
    ),
    "a name outside of metadata": (
        "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nname: gpu\nspec: {}\n" + POD, "did you mean metadata.name?",
    ),
    "no source at all": (
        claim("exactly: {deviceClassName: gpu.nvidia.com}", "v1") + POD.replace(", resourceClaimTemplateName: gpu", ""),
        "needs exactly one of resourceClaimName and resourceClaimTemplateName",
    ),
}  # fmt: skip
