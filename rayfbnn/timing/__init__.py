"""How fast this machine samples."""
