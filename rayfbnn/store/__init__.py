"""The store: files that keep the draws of a run, and what reads, writes and checks them."""
