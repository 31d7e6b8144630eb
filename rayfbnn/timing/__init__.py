"""Measures how fast this machine samples, and estimates how long a run takes."""
