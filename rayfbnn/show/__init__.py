"""A configuration in words."""
