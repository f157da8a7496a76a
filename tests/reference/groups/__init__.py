"""The KV groups of a model: one file a kind, and what all of them agree on."""
