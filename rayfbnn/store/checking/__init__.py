"""Checks of all data read from a store against the records made when they were written."""
