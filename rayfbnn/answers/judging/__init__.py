"""The verdicts on a run: what they are made from, and the advice that comes with them."""
