"""Compiled trajectories on a CPU."""
