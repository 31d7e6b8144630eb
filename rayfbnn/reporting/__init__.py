"""The report on one or several runs: one self-contained page of HTML."""
