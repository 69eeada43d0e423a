"""The node agent: reads the GPUs of its node by NVML and publishes one ResourceSlice when a reading changes.

Scheduling code does not belong here.
"""

from extender.agent.agent_app import AgentApp
from extender.agent.reader import Reader
from extender.agent.slice_publisher import SlicePublisher

__all__ = [
    "AgentApp",
    "Reader",
    "SlicePublisher",
]
