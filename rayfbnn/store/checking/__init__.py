"""Checks of everything that is read from a store, against what was recorded when it was written."""
