"""Posteriors with variables integrated out."""
