"""The verbs, with the same names and parameters as the commands of the shell.

sample    draw from the posterior that a configuration describes, into a new store
resume    continue a run that was stopped or killed, or make a finished run longer
sample_or_resume  bring a run to its end, wherever it stands (`rayfbnn run` in the shell)
reject    draw exactly and independently by rejection, for small problems
prior     draw networks, functions and data sets from the prior
evidence  estimate the log marginal likelihood
predict   predict the targets of new cases
diagnose  say whether the chains of a run agree
check     compare a run with exact draws of the same posterior
compare   fit a model by several methods, and compare them with the exact posterior
plot      draw pictures of a run
report    write a page of HTML on one or several runs
show      describe a configuration or a store in words
status    say how far a run is, how fast, and whether anyone is at work
open      open the draws of a store as an xarray DataTree
to_datatree  open them with the groups that ArviZ needs computed
load      load draws of a run into memory, as a predictor that answers in milliseconds
function_values  return the function values of each draw's network at some cases
export    write draws of a run to a file from which NumPy alone can predict
verify    check every file of a store
bench     time leapfrog steps on this machine, and estimate the time of a run

Wrong input raises ConfigError or DataError, which name the key, the value, and what would be right; every
error that is not a bug is a RayFBNNError (rayfbnn/errors.py).
"""

from rayfbnn.verbs.benchmarking import bench
from rayfbnn.verbs.checking import check, diagnose, verify
from rayfbnn.verbs.comparing import compare
from rayfbnn.verbs.functions import function_values
from rayfbnn.verbs.jobs import sample_or_resume
from rayfbnn.verbs.opening import open, to_datatree
from rayfbnn.verbs.plotting import plot
from rayfbnn.verbs.predicting import predict
from rayfbnn.verbs.reporting import report
from rayfbnn.verbs.sampling import resume, sample
from rayfbnn.verbs.serving import export, load
from rayfbnn.verbs.showing import show, status
from rayfbnn.verbs.without_chains import evidence, prior, reject

__all__ = [
    "bench",
    "check",
    "compare",
    "diagnose",
    "evidence",
    "export",
    "function_values",
    "load",
    "open",
    "plot",
    "predict",
    "prior",
    "reject",
    "report",
    "resume",
    "sample",
    "sample_or_resume",
    "show",
    "status",
    "to_datatree",
    "verify",
]
