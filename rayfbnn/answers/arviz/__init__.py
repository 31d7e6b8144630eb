"""The draws of a store as ArviZ takes them: groups and statistics with its names."""
