"""Predictions, diagnostics, checks and comparisons from the draws in stores; nothing here samples."""
