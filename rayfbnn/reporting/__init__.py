"""The report on one or several runs: one page of HTML that needs no network."""
