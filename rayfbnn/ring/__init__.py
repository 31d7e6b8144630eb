"""Training cases divided into parts: chains travel from part to part, and cases stay where they are."""
