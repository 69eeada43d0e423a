"""Nouns of the scheduler: frozen, slotted, standard library only.

What belongs here: devices, pools, claims, nodes, pods, quantities, reasons and the snapshot that holds them.
What does not: JSON, clocks, logging, decisions.
"""
