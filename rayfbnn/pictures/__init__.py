"""Pictures of a run: each function draws one of them, of which the panels are in panels.py and chains.py."""
