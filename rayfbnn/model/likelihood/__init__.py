"""Data models: how targets are distributed given a network's outputs."""
