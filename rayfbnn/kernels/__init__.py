"""The hot loops compiled, each beside the plain version that it must equal."""
