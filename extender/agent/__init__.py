"""The node agent: reads the GPUs of its node by NVML and publishes one ResourceSlice when a reading changes.

Scheduling code does not belong here. This module imports nothing, because the reader process loads it.
"""
