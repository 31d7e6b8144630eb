"""The verdicts on a run, the evidence for them, and advice."""
