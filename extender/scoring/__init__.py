"""Numbers with reasons: what is good about a choice of devices, and which devices to try first.

What belongs here: the parts of the score, their combination, the order of preference. What does not: feasibility.
"""
