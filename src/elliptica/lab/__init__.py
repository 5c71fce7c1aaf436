"""The laboratory: what reproduces the paper (data, networks, training, experiments, demo)."""
