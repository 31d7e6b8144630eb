"""Fits of approximations as runs: their steps and draws in blocks that are committed to a store."""
