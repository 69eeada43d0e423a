"""The policy: what the ConfigMap may say. Schema and defaults live here; reading files does not."""

from extender.policy.policy_schema import (
    MOST_POLICY,
    Intent,
    Policy,
    PolicyError,
    UnreadablePolicy,
    Weights,
    faults_of,
    load_policy,
)

__all__ = ["MOST_POLICY", "Intent", "Policy", "PolicyError", "UnreadablePolicy", "Weights", "faults_of", "load_policy"]
