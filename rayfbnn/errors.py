"""The exceptions that users can see, and text with its control characters made visible.

A message of an error names the place, the value, and what would be right.

`exit_code` is the exit code of the command: 2 for wrong input or a wrong STORE; 73 for a store that is
in use; 75 for a full disk, a lost cluster or an object store that is away (in sysexits.h these are "cannot
create" and "try again later"); 1 for everything else.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator
from itertools import islice

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The numbers of the errors of a disk that is full, and of a quota or limit that is reached."""

TEMPORARY = re.compile(r"/rayfbnn-\w{8}/run\.zarr\b")
"""The end of the path of an estimator's temporary store."""
_LOST = (
    "the temporary store, or a part of it, is gone, because its estimator has ended or a cleaner of temporary"
    " folders removed it; fit again (without warm_start), with store= for a store that stays"
)


def at_most_ten(parts: Iterable[object]) -> Iterator[str]:
    """Yield the first ten parts of a message, and "and 250 more" for the others."""
    rest = iter(parts)
    yield from map(str, islice(rest, 10))
    if more := sum(1 for _ in rest):
        yield f"and {more:,} more"


NAMES_OF_SECRETS = r"(?:sig|signature|token|secret|password|credential|access_?key)[\w-]{0,40}(?:=|%3d)"
"""The beginning of an option of an address that may be a credential, as a regular expression."""

_WORD = re.compile(r"[^\s\"']+")
_SCHEME = re.compile(r":/{1,2}")
_BEFORE_ADDRESS = re.compile(r"[/=,(\[{]")
_HOST_AND_PORT = re.compile(r"[^:%]*(:\d{0,5}\W*)?")
_OPTION = re.compile(rf"({NAMES_OF_SECRETS})[^\s\"'&#]+", re.IGNORECASE)


_MOST_CHARACTERS = 20_000  # of a message, which may quote a text of a megabyte


def without_credentials(text: str) -> str:
    """Return a text with *** for users, passwords, and other possible credentials in addresses."""
    return _OPTION.sub(r"\1***", _WORD.sub(_without_user, text))


def _without_user(match: re.Match[str]) -> str:
    """Return a word of a text without the user and the password of an address; a message may cut it off."""
    word = match[0]
    user, at, host = word.rpartition("@")
    scheme = _SCHEME.search(user if at else word)
    start = 0 if scheme is None else scheme.end()
    if at and (":" in user[start:] or (scheme and "/" not in user[start:])):
        if scheme is None:  # as the address of a cluster
            before = [one.end() for one in _BEFORE_ADDRESS.finditer(user[: user.index(":")])]
            start = before[-1] if before else 0
        return f"{word[:start]}***@{host}"
    server, slash, path = word[start:].partition("/")
    if scheme and not _HOST_AND_PORT.fullmatch(server):
        return f"{word[:start]}***{slash}{path}"
    return word


def _message(text: str) -> str:
    cut = f"{text[:_MOST_CHARACTERS]}..." if len(text) > _MOST_CHARACTERS else text
    return without_credentials(cut)


class RayFBNNError(Exception):
    """Base of all errors about the user's input, files or machine. Any other exception is a bug.

    Its message never repeats credentials, because a value that is quoted may be an address typed in the
    wrong place.
    """

    exit_code = 1

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(_message(one) if isinstance(one, str) else one for one in arguments))


class ConfigError(RayFBNNError):
    """A key of a configuration, or an argument, is wrong: `key.path: what is wrong, got value`."""

    exit_code = 2


class DataError(RayFBNNError):
    """A data file cannot be read, or has an unusable value; names file, row and column."""

    exit_code = 2


class StoreError(RayFBNNError):
    """A store cannot be read or written; names the path and the reason.

    The message gives advice if an estimator's temporary store has lost files.
    """

    def __str__(self) -> str:
        text = super().__str__()
        is_lost = isinstance(self, StoreMissingError | StoreCorruptError) and TEMPORARY.search(text)
        return f"{text}; {_LOST}" if is_lost and _LOST not in text else text


class StoreMissingError(StoreError):
    """The path to read is not a store: nothing exists there, or something else."""

    exit_code = 2


class StoreFormatError(StoreError):
    """The store has a format that this version does not read; nothing was changed."""

    exit_code = 2


class StoreExistsError(StoreError):
    """The path to create already exists; nothing was changed."""

    exit_code = 2


class StoreForeignError(StoreError):
    """Files that belong to no store lie where a new store is created; nothing was changed."""

    exit_code = 2


class StoreBusyError(StoreError):
    """Another process is using the store; nothing was changed."""

    exit_code = 73


class StoreOvertakenError(StoreError):
    """Another worker committed the same iterations as part of another block; its commit is valid."""


class StoreFullError(StoreError):
    """The disk is full; everything committed so far is kept, and `resume` continues from there."""

    exit_code = 75


class StoreReadError(StoreError):
    """The system could not read a file of the store (an I/O error, no permission); names file and reason.

    The error says nothing about the content of the file, which may be intact.
    """


class StoreAwayError(StoreReadError):
    """An object store cannot be reached or failed, so nothing is known about the object; try again later.

    Also raised if it was to write, lock or remove something, which may have been done nevertheless.
    """

    exit_code = 75


class StoreRefusedError(StoreReadError):
    """An object store refuses a request, or does not answer like one; it will not answer later either."""


class StoreMismatchError(StoreError):
    """The store is of another configuration or of other data; names the keys that differ."""

    exit_code = 2


class StoreCorruptError(StoreError):
    """A file of a store does not match its checksum or commit record; names file, block and batch."""


class WorkerError(RayFBNNError):
    """Workers died more often than max_failures allows; names batch, node and cause."""


class RayStartError(WorkerError):
    """Ray did not start on this machine, in two attempts."""


class ClusterGoneError(WorkerError):
    """The head of the Ray cluster is gone; what is committed is kept, and `resume` continues from there."""

    exit_code = 75


class SamplingError(RayFBNNError):
    """Sampling cannot start or continue: the first energy is not finite, or no proposal is accepted."""


class OutputError(RayFBNNError):
    """A file of results cannot be written; names the file and the reason. The old file is kept."""


class OutputFullError(OutputError):
    """The disk is full, or a quota or limit is reached. The old file is kept, and no part of the new one."""

    exit_code = 75


class CheckFailed(RayFBNNError):
    """Two samples differ by more than chance allows; names quantity, statistic and threshold."""


# Control characters of ASCII and Latin-1, marks that turn the direction of text, and separators of lines.
_CONTROLS = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_IN_NAMES = re.compile(f"[{_CONTROLS}]")
_IN_TEXT = re.compile(f"(?![\t\n])[{_CONTROLS}]")
_STYLE = re.compile(r"(\x1b\[[\d;]*m)")  # a colour, or bold


def visible(text: str) -> str:
    r"""Return the text with each control character as an escape such as \x1b; its lines and tabs stay."""
    return _IN_TEXT.sub(_escape, text)


def visible_name(name: str) -> str:
    """Return the name as `visible` does, on one line: breaks of lines and tabs become escapes too."""
    return _IN_NAMES.sub(_escape, name)


def visible_but_styles(text: str) -> str:
    """Return the text as `visible` does, but with the colours of help and tracebacks."""
    return "".join(part if at % 2 else visible(part) for at, part in enumerate(_STYLE.split(text)))


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return {9: r"\t", 10: r"\n", 13: r"\r"}.get(code) or (
        rf"\x{code:02x}" if code < 256 else rf"\u{code:04x}"
    )
