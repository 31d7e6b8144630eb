"""What a driver does beside its loop."""
