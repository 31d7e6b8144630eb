"""A block is one file, and the driver gathers complete ones into the chunks of a segment."""
