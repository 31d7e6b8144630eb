"""Output besides stores: text on the standard streams, and files of results."""
