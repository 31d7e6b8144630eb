"""Approximate posteriors held against the exact posterior of the same model on the same data."""
