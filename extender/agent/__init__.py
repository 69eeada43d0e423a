"""The node agent: reads the GPUs of its node by NVML, and publishes one ResourceSlice.

It writes when a reading changes, and every five minutes.

Scheduling code does not belong here. This module imports nothing, because the reader process loads it.
"""
