"""What serve tells the console: records, and how they travel. What does not belong here: HTTP, tasks, clocks."""

from extender.records.schema import Attempted, Batch, Bound, PolicyState, Record, Released, Reserved

__all__ = ["Attempted", "Batch", "Bound", "PolicyState", "Record", "Released", "Reserved"]
