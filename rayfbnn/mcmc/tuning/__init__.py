"""Settings of trajectories, found by measuring trajectories in rounds pooled over all chains."""
