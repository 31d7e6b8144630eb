"""Measurements of how fast this machine samples, and estimates of how long a run takes."""
