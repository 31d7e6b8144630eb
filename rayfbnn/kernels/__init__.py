"""Compiled code for trajectories. Array code computes the same results, and tests compare the two."""
