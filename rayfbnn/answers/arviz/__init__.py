"""The draws of a store for ArviZ: groups and statistics with its names."""
