"""The API: a kind per file, with its value, its decoding from JSON, and its encoding. Each module is a face by itself.

Values are frozen and slotted. Decoders read what Berth needs, and raise WireError with the path of a field. JSON comes
in three ways: as a body from kube-scheduler (`extender_v1`), as an object of the API server (`fields.lenient_loads`,
then the decoder of its kind), or as a user's file (`documents`). `gpu_topology` has Berth's own words for GPUs, and
`reasons` all texts for kube-scheduler. No module has clocks, logging or decisions.
"""
