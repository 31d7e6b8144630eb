"""Fits of approximations as runs, with steps and draws in blocks that are committed to a store."""
