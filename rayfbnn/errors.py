"""The exceptions a user can meet, each naming the place, the value, and what would be right.

RayFBNNError
  ConfigError            a key of the configuration
  DataError              a file, row, column
  StoreError             a store cannot be read or written
    StoreExistsError       sample never writes over something that is there
    StoreBusyError         another process is running on this store
    StoreFullError         no space: what is committed is kept
    StoreMismatchError     made by another spec or from other data
    StoreCorruptError      a file does not match its checksum or record
  WorkerError            a worker failed max_failures times
  SamplingError          the sampler cannot start or go on
  CheckFailed            two samples differ more than chance allows

`exit_code` is what the command line ends with: 2 for bad input, 73 for a store that is in use, 75 for
a full disk (the codes of sysexits.h for "cannot create" and "try again later"), 1 for the rest.
"""


class RayFBNNError(Exception):
    """Base of every error that is about the user's input, files or machine rather than a bug."""

    exit_code = 1


class ConfigError(RayFBNNError):
    """A configuration key has a value that makes no sense: `key.path: what is wrong, got value`."""

    exit_code = 2


class DataError(RayFBNNError):
    """A data file is unreadable or holds something that cannot be used: file, row, column."""

    exit_code = 2


class StoreError(RayFBNNError):
    """A store cannot be read or written: which path, and why."""


class StoreExistsError(StoreError):
    """The path to create is already there; nothing was changed."""

    exit_code = 2


class StoreBusyError(StoreError):
    """Another process holds the store; nothing was changed."""

    exit_code = 73


class StoreFullError(StoreError):
    """The disk is full; everything committed so far is kept and `resume` goes on from there."""

    exit_code = 75


class StoreMismatchError(StoreError):
    """The store was made by another spec or from other data: which keys differ."""

    exit_code = 2


class StoreCorruptError(StoreError):
    """A file of the store does not match its checksum or its commit record: which file, block, batch."""


class WorkerError(RayFBNNError):
    """A worker failed more often than max_failures allows: batch, node, cause."""


class SamplingError(RayFBNNError):
    """Sampling cannot start or go on: a non-finite starting energy, or no proposal accepted."""


class CheckFailed(RayFBNNError):
    """Two samples differ more than chance allows: quantity, statistic, threshold."""
