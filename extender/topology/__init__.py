"""The links between the GPUs of a node, and how good a choice of devices is. Each module is a face by itself."""
