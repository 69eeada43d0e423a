"""The policy: the schema and the defaults of the file that the ConfigMap carries. Other modules read the file."""

from extender.policy.policy_schema import (
    MOST_POLICY,
    Policy,
    PolicyError,
    UnreadablePolicy,
    Weights,
    faults_of,
    in_plain_words,
    load_policy,
)

__all__ = [
    "MOST_POLICY",
    "Policy",
    "PolicyError",
    "UnreadablePolicy",
    "Weights",
    "faults_of",
    "in_plain_words",
    "load_policy",
]
