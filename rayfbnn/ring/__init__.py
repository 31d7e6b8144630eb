"""Training cases divided into parts: chains travel round the parts, and cases stay where they are."""
