"""Compiled code for trajectories; array code computes the same, and tests compare the two."""
