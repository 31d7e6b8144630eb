"""Pictures of a run, each drawn by one function from panels."""
