"""How a run is made longer, and the record of why."""
