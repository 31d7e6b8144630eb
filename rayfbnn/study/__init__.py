"""Studies: many runs of one posterior, or of several, that are run, judged and reported together."""

from rayfbnn.study.rule import Rule
from rayfbnn.study.study import Study

__all__ = ["Rule", "Study"]
