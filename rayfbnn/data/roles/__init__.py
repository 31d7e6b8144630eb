"""Columns of a table that have a role of their own: exposures, and where a time is censored."""
