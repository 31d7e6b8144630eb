"""Runs on Ray, on this machine or on a cluster: the workers, the executor, and the nodes."""
