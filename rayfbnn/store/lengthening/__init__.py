"""A longer run: the extension itself, and the record of the verdicts that led to it."""
