"""The verbs, with the same names and parameters as the commands of the shell.

This file is the list of the verbs: whatever it names is public, here and in `rayfbnn`. `help(rayfbnn)` shows
all of them, and docs/api.md sorts them by subject. The file of a verb is imported when the verb is first
used, so that no verb waits for the modules of the others; type checkers and the documentation read the
imports in rayfbnn/__init__.py.

Wrong input raises ConfigError or DataError, which name the key, the value, and what would be right. Every
error that is not a bug is a RayFBNNError (rayfbnn/errors.py).
"""

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rayfbnn import *  # noqa: F403
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
