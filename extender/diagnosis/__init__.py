"""Diagnosis: why pods go where they go or nowhere, what would happen if, what must not be, and figures of the fleet.

What belongs here: functions of a snapshot and a policy that people ask for, as plain values. They may take a hundred
milliseconds, so the process that answers kube-scheduler imports nothing of this package. No I/O, clocks, asyncio.
"""
