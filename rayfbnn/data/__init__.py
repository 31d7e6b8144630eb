"""Files and tables of cases, for training and prediction, as arrays."""

from rayfbnn.data.dataset import Dataset, first_difference, make_dataset
from rayfbnn.data.frames import Source, is_path
from rayfbnn.data.training import read_cases, read_dataset, read_training, read_training_file

__all__ = [
    "Dataset",
    "Source",
    "first_difference",
    "is_path",
    "make_dataset",
    "read_cases",
    "read_dataset",
    "read_training",
    "read_training_file",
]
