"""Which draws of which stores are read, and the quantities that they give."""
