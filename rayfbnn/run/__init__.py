"""Runs: the job of a worker, the workers that do it, their progress, and resuming a run."""
