"""Sampling of a target, without knowledge of networks, files or workers."""
