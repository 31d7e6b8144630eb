"""Data models: the distributions of targets given a network's outputs."""
