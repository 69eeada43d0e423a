"""The node agent: NVML readings become one ResourceSlice per node, written when something changes.

What does not belong here: anything of the scheduler.
"""

from extender.agent.reader import Reader
from extender.agent.slice_publisher import SlicePublisher

__all__ = [
    "Reader",
    "SlicePublisher",
]
