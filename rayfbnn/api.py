"""The verbs, with the same names and parameters as the commands of the shell.

This file is the list of the verbs: whatever it names is public, here and in `rayfbnn`. `help(rayfbnn)` shows
all of them, and docs/api.md sorts them by subject. The file of a verb is imported when the verb is first
used, so that no verb waits for the modules of the others; type checkers read the imports.

Wrong input raises ConfigError or DataError, which name the key, the value, and what would be right. Every
error that is not a bug is a RayFBNNError (rayfbnn/errors.py).
"""

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rayfbnn.verbs.benchmarking import bench as bench
    from rayfbnn.verbs.checking import check as check
    from rayfbnn.verbs.checking import diagnose as diagnose
    from rayfbnn.verbs.checking import verify as verify
    from rayfbnn.verbs.comparing import compare as compare
    from rayfbnn.verbs.predicting import loo as loo
    from rayfbnn.verbs.predicting import predict as predict
    from rayfbnn.verbs.reporting import plot as plot
    from rayfbnn.verbs.reporting import report as report
    from rayfbnn.verbs.sampling import resume as resume
    from rayfbnn.verbs.sampling import sample as sample
    from rayfbnn.verbs.sampling import sample_or_resume as sample_or_resume
    from rayfbnn.verbs.serving import export as export
    from rayfbnn.verbs.serving import function_values as function_values
    from rayfbnn.verbs.serving import load as load
    from rayfbnn.verbs.serving import open as open
    from rayfbnn.verbs.serving import to_datatree as to_datatree
    from rayfbnn.verbs.showing import show as show
    from rayfbnn.verbs.showing import status as status
    from rayfbnn.verbs.without_chains import evidence as evidence
    from rayfbnn.verbs.without_chains import prior as prior
    from rayfbnn.verbs.without_chains import reject as reject
else:
    _VERBS = {
        "benchmarking": ["bench"],
        "checking": ["check", "diagnose", "verify"],
        "comparing": ["compare"],
        "predicting": ["loo", "predict"],
        "reporting": ["plot", "report"],
        "sampling": ["resume", "sample", "sample_or_resume"],
        "serving": ["export", "function_values", "load", "open", "to_datatree"],
        "showing": ["show", "status"],
        "without_chains": ["evidence", "prior", "reject"],
    }
    _FILES = {verb: f"rayfbnn.verbs.{file}" for file, verbs in _VERBS.items() for verb in verbs}
    __all__ = sorted(_FILES)

    def __getattr__(name):
        if name not in _FILES:
            raise AttributeError(f"module 'rayfbnn.api' has no attribute '{name}'")
        verb = globals()[name] = getattr(import_module(_FILES[name]), name)
        return verb
