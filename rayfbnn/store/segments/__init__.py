"""Blocks and segments: a block is one file, and the driver gathers complete blocks into a segment."""
