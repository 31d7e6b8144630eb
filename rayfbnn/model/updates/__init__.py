"""Updates of precisions, and of parameters with precisions."""
