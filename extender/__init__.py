"""Berth: an out-of-tree kube-scheduler extender for clusters that allocate GPUs by claim."""

__version__ = "0.1.0"
