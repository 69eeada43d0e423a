"""The node agent: NVML readings become one ResourceSlice per node, written when something changes.

What does not belong here: anything of the scheduler.
"""
