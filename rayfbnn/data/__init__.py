"""Files and tables of cases, for training and prediction, as arrays."""

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rayfbnn.data.dataset import Dataset as Dataset
    from rayfbnn.data.dataset import first_difference as first_difference
    from rayfbnn.data.dataset import make_dataset as make_dataset
    from rayfbnn.data.frames import Source as Source
    from rayfbnn.data.frames import is_path as is_path
    from rayfbnn.data.training import read_cases as read_cases
    from rayfbnn.data.training import read_dataset as read_dataset
    from rayfbnn.data.training import read_training as read_training
else:
    _NAMES = {
        "dataset": ["Dataset", "first_difference", "make_dataset"],
        "frames": ["Source", "is_path"],
        "training": ["read_cases", "read_dataset", "read_training"],
    }
    _FILES = {name: f"rayfbnn.data.{file}" for file, names in _NAMES.items() for name in names}

    def __getattr__(name):
        """Import a file when a name of it is first used, because `status`, for one, reads no table."""
        if name not in _FILES:
            raise AttributeError(f"module 'rayfbnn.data' has no attribute '{name}'")
        found = globals()[name] = getattr(import_module(_FILES[name]), name)
        return found
