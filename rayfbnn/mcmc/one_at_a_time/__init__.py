"""Updates that change one parameter at a time."""
