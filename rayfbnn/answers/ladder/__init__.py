"""Verdicts on ladders of levels: evidence from two sides, phases, and their weights."""
