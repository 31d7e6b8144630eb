"""Tuning of trajectories by measurements in rounds, pooled over all chains."""
