"""Trajectories on a CUDA device."""
