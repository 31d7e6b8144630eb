"""Runs of ladders: their blocks, and their states as the store keeps them."""
