"""Why an object store failed, in our own words, because a server's text may contain credentials."""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import urlsplit

_STATUS = re.compile(r"status code: (\d{3})\b")  # obstore's words, before the text of the server
_CODE = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")  # such as ConditionalRequestConflict
_HTTP = (
    "the server's address begins with http://; use https, or allow it by AWS_ALLOW_HTTP=true"
    " (AZURE_ALLOW_HTTP, GOOGLE_ALLOW_HTTP)"
)
# Words in a message of obstore -> the reason for the user; the first match counts.
_SIGNS = {
    "BadScheme": _HTTP,
    "dns error": "the name of the server is not known",
    "TimedOut": "the server did not answer in time",
    "Timeout": "the server did not answer in time",
    "Connect": "cannot connect to the server",
    "error sending request": "the connection broke off",
    "request or response body": "the connection broke off",
    "Interrupted": "the connection broke off",
    "Got invalid": "the server does not answer like an object store",
    "MissingAccount": "no account is named; set AZURE_STORAGE_ACCOUNT_NAME",
    "MissingSasComponent": "AZURE_STORAGE_SAS_KEY is not a query of names and values",
    "InvalidAccessKey": "AZURE_STORAGE_ACCOUNT_KEY is not base64",
    "OpenCredentials": "the file of credentials cannot be opened",
    "DecodeCredentials": "the credentials are not in the form of the service",
    "Config": "a variable of the environment has a value that is not allowed",
}
_ENDPOINTS = re.compile(r"(AWS|AZURE|GOOGLE)_\w*(ENDPOINT|BASE_URL)\w*")


def reason(error: BaseException) -> str:
    """Return why a request failed, in one line without text from a server, an address or a setting."""
    name, text = type(error).__name__, str(error)
    if status := _STATUS.search(text):
        code = _CODE.search(text)
        return f"{name}: HTTP {_in_words(int(status[1]))}{f' ({code[1]})' if code else ''}"
    found = next((words for sign, words in _SIGNS.items() if sign in text), "no reason that can be shown")
    return f"{name}: {found}"


def wrong_endpoint(environment: Mapping[str, str]) -> str | None:
    """Return the name of an endpoint variable that is not the address of a server; None if all are."""
    return next(
        (
            name
            for name, value in sorted(environment.items())
            if _ENDPOINTS.fullmatch(name) and value and not _is_address_of_server(value)
        ),
        None,
    )


def _in_words(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _is_address_of_server(text: str) -> bool:
    try:
        parts = urlsplit(text)
        _ = parts.port  # ValueError for one that is no number
    except ValueError:
        return False
    is_plain = text.isascii() and text.isprintable() and not set(text) & set(' <>"{}|\\^`')
    return is_plain and parts.scheme in ("http", "https") and bool(parts.hostname)
