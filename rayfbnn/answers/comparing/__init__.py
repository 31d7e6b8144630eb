"""Comparisons of approximate posteriors with the exact posterior of the same model on the same data."""
