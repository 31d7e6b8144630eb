"""Where draws are kept."""
