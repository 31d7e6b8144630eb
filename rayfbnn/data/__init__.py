"""The cases that a network is trained on or predicts: data files as arrays."""

from rayfbnn.data.dataset import (
    Dataset,
    first_difference,
    make_dataset,
    read_cases,
    read_dataset,
    read_training_file,
)

__all__ = [
    "Dataset",
    "first_difference",
    "make_dataset",
    "read_cases",
    "read_dataset",
    "read_training_file",
]
