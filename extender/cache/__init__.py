"""The picture of the cluster: events in, snapshots out. Pure: no sockets, no clock but the `now` it is given.

What belongs here: the object index, allocated devices, reservations, the NodeInfo builder.
"""
