"""The checks of `berth lint`: they take the objects of files and return findings. linter.py lists them all."""

from extender.lint.device_findings import one_sentence
from extender.lint.linter import CheckedManifests, Placed, check_devices, check_manifests

__all__ = [
    "CheckedManifests",
    "Placed",
    "check_devices",
    "check_manifests",
    "one_sentence",
]
