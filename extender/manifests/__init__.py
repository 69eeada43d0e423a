"""The manifests of users: their objects, the templates of pods in these, and the pods that they would create.

`berth lint`, explain and the sandbox read manifests. `berth serve` does not load this package.
"""

from extender.manifests.decoded_objects import (
    DecodedObjects,
    checked,
    decoded_objects,
    objects_of_document,
    objects_or_faults,
)
from extender.manifests.hypothetical_pods import (
    Hypothetical,
    HypotheticalGroup,
    HypotheticalPod,
    hypothetical,
    is_device_class,
)
from extender.manifests.pod_templates import PodTemplate, pod_templates

__all__ = [
    "DecodedObjects",
    "Hypothetical",
    "HypotheticalGroup",
    "HypotheticalPod",
    "PodTemplate",
    "checked",
    "decoded_objects",
    "hypothetical",
    "is_device_class",
    "objects_of_document",
    "objects_or_faults",
    "pod_templates",
]
