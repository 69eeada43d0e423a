"""HTTP of `berth console`: what people and their programs read."""
