"""Updates and estimates that go through several temperatures."""
