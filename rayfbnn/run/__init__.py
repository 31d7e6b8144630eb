"""Runs: the job of a worker, the workers that do it, their progress, and a run's continuation."""
