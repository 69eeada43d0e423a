"""The picture of the cluster: events in, snapshots out. Pure: no sockets, no clock but the `now` it is given.

What belongs here: the store, usage accounting, the ledger of holds and reservations, the snapshot builder.
"""
