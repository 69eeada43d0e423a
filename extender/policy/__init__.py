"""The policy: what the ConfigMap may say. Schema and defaults live here; reading files does not."""

from extender.policy.schema import Intent, Policy, PolicyError, Weights, load_policy

__all__ = ["Intent", "Policy", "PolicyError", "Weights", "load_policy"]
