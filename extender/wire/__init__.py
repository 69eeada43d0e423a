"""Decoding of JSON into model values, and encoding: resource.k8s.io/v1, parts of core/v1, and extender v1.

The package contains field names, shapes and the paths of errors, but no decisions.
"""

from extender.wire.core import decode_bound_pod, decode_labels, decode_node, decode_pod, decode_pod_group
from extender.wire.documents import (
    DocumentPart,
    Positions,
    one_value,
    parts_of,
    text_of,
    values_of,
)
from extender.wire.encoded_claims import encode_allocation, encode_consumer, encode_simple_spec
from extender.wire.extender_v1 import (
    decode_args,
    decode_bind,
    encode_bind,
    encode_filter,
    encode_filter_error,
    encode_passed,
    encode_preempt,
    encode_scores,
    is_object_name,
)
from extender.wire.fields import (
    Json,
    amount,
    get,
    many,
    need,
    quantities,
    quantity,
    readable,
    string_list,
    strings,
    wrong,
)
from extender.wire.json_text import MOST_JSON, MOST_YAML, json_value
from extender.wire.lenient import lenient_loads
from extender.wire.node_names import NameOffsets, estimated_len, has_all
from extender.wire.pod_annotations import ANNOTATION_PREFIX, ANNOTATION_READERS, PodIntent, intent_of
from extender.wire.pod_groups import (
    OWN_ANNOTATIONS,
    READ_ANNOTATIONS,
    decode_core_policy,
    decode_leader_worker_set,
    decode_scheduler_plugins_policy,
    group_policy_of,
    leader_worker_set_marks,
)
from extender.wire.protobuf import PROTOBUF, merged_claim, read_fields, write_fields
from extender.wire.resource_claims import decode_claim, decode_claim_spec, decode_class
from extender.wire.resource_slices import SliceDecoder, decode_taint_rule

__all__ = [
    "ANNOTATION_PREFIX",
    "ANNOTATION_READERS",
    "MOST_JSON",
    "MOST_YAML",
    "OWN_ANNOTATIONS",
    "PROTOBUF",
    "READ_ANNOTATIONS",
    "DocumentPart",
    "Json",
    "NameOffsets",
    "PodIntent",
    "Positions",
    "SliceDecoder",
    "amount",
    "decode_args",
    "decode_bind",
    "decode_bound_pod",
    "decode_claim",
    "decode_claim_spec",
    "decode_class",
    "decode_core_policy",
    "decode_labels",
    "decode_leader_worker_set",
    "decode_node",
    "decode_pod",
    "decode_pod_group",
    "decode_scheduler_plugins_policy",
    "decode_taint_rule",
    "encode_allocation",
    "encode_bind",
    "encode_consumer",
    "encode_filter",
    "encode_filter_error",
    "encode_passed",
    "encode_preempt",
    "encode_scores",
    "encode_simple_spec",
    "estimated_len",
    "get",
    "group_policy_of",
    "has_all",
    "intent_of",
    "is_object_name",
    "json_value",
    "leader_worker_set_marks",
    "lenient_loads",
    "many",
    "merged_claim",
    "need",
    "one_value",
    "parts_of",
    "quantities",
    "quantity",
    "read_fields",
    "readable",
    "string_list",
    "strings",
    "text_of",
    "values_of",
    "write_fields",
    "wrong",
]
