"""Predictions, diagnostics, checks and pictures from the draws in stores; nothing here samples."""
