"""Whatever a server answers, a bucket gives an error of one line, in which no secret is."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator

import pytest

from rayfbnn.errors import ConfigError, StoreError
from rayfbnn.store.storage import bucket as bucket_module
from rayfbnn.store.storage.bucket import Bucket, BucketError, Changed, explained, wrong_endpoint
from rayfbnn.store.storage.lease import Lease
from rayfbnn.store.storage.objects import ObjectStorage
from rayfbnn.store.storage.places import ObjectPath
from tests.support.store.buckets import BROKEN, CUT, Answer, answering, bucket_at

pytest.importorskip("obstore")

SECRET = "hunter2"
PLACE = ObjectPath("s3", "bucket", "run.zarr")
BODIES = {
    "no XML": f"this is no XML, but {SECRET}",
    "XML": f"<?xml version='1.0'?><Error><Code>ConditionalRequestConflict</Code>"
    f"<Message>https://account/box?sv=1&amp;sig={SECRET}</Message></Error>",
    "many lines": f"\n\n{SECRET}\nAuthorization: Bearer {SECRET}\n" * 50,
}
STATUSES = [200, 400, 401, 403, 404, 408, 409, 412, 416, 429, 500, 503, BROKEN, CUT]
REQUESTS: dict[str, Callable[[Bucket], object]] = {
    "get": lambda bucket: bucket.get("key"),
    "put": lambda bucket: bucket.put("key", b"x"),
    "put_new": lambda bucket: bucket.put_new("key", b"x"),
    "put_unchanged": lambda bucket: bucket.put_unchanged("key", b"x", {"e_tag": '"tag"'}),
    "delete": lambda bucket: bucket.delete("key"),
    "exists": lambda bucket: bucket.exists("key"),
    "modified": lambda bucket: bucket.modified("key"),
    "names": lambda bucket: bucket.names("key"),
    "keys": lambda bucket: bucket.keys("key"),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Answer]:
    with answering() as answer:
        yield answer


@pytest.fixture
def answer(server: Answer, monkeypatch: pytest.MonkeyPatch) -> Answer:
    monkeypatch.setattr(bucket_module, "_PAUSES", (0.001, 0.001))
    server.status, server.body, server.n_left, server.n_requests = 200, b"", None, 0
    return server


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("scheme", ["s3", "az"])
def test_every_answer_is_a_result_or_an_error_of_ours_without_a_secret(
    answer: Answer, scheme: str, status: int | str
) -> None:
    for body in BODIES.values():
        answer.status, answer.body = status, body.encode()
        for name, request in REQUESTS.items():
            try:
                request(bucket_at(answer.url, scheme, secret=SECRET))
            except (BucketError, Changed, FileNotFoundError) as exc:
                shown = "".join(traceback.format_exception(exc))
                assert SECRET not in shown, (name, shown)
                assert "\n" not in str(exc)


@pytest.mark.parametrize("status", [409, 412])
@pytest.mark.parametrize("name", [name for name in REQUESTS if name not in ("put_new", "put_unchanged")])
def test_a_conflict_with_a_request_that_has_no_condition_is_an_error_of_the_bucket(
    answer: Answer, name: str, status: int
) -> None:
    answer.status = status
    with pytest.raises(BucketError):
        REQUESTS[name](bucket_at(answer.url, "s3", secret=SECRET))


@pytest.mark.parametrize("scheme", ["s3", "az"])
@pytest.mark.parametrize("name", ["put", "put_new", "put_unchanged"])
def test_a_put_that_met_another_request_is_tried_again(answer: Answer, scheme: str, name: str) -> None:
    """With put_new the look that follows the conflict is answered 404: there is no such object."""
    answer.status, answer.n_left = 409, 1
    bucket = bucket_at(answer.url, scheme, secret=SECRET)
    if name == "put_new":
        bucket._head = lambda key: None  # type: ignore[method-assign]
    assert REQUESTS[name](bucket) == {"e_tag": '"tag"'}
    assert answer.n_requests == (3 if name == "put_unchanged" else 2)


def test_a_lease_that_meets_a_conflict_for_ever_is_given_up(answer: Answer) -> None:
    answer.status = 409
    with pytest.raises(BucketError):
        Lease(bucket_at(answer.url, "s3", secret=SECRET), "lock", seconds=0.03).acquire()


def test_a_status_is_named_with_the_code_of_the_service() -> None:
    text = f"status code: 409 Conflict: <Error><Code>OperationAborted</Code><Message>{SECRET}</Message>"
    assert str(explained(ValueError(text))) == "ValueError: HTTP 409 Conflict (OperationAborted)"
    assert str(explained(ValueError("status code: 599 Odd: <Code>hunter2</Code>"))) == "ValueError: HTTP 599"
    assert SECRET not in str(explained(ValueError(SECRET)))


@pytest.mark.parametrize("host", ["", f"{SECRET}:{SECRET}@"])
@pytest.mark.parametrize(("scheme", "name"), [("s3", "AWS_ENDPOINT_URL"), ("az", "AZURE_STORAGE_ENDPOINT")])
def test_an_http_endpoint_is_refused_with_what_allows_it(
    answer: Answer, monkeypatch: pytest.MonkeyPatch, scheme: str, name: str, host: str
) -> None:
    for variable in ("AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", SECRET)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")
    monkeypatch.setenv(name, answer.url.replace("//", f"//{host}"))
    with pytest.raises(StoreError, match="AWS_ALLOW_HTTP=true") as error:
        place = ObjectPath(scheme, "bucket", "run.zarr")
        ObjectStorage.from_place(place).write_atomic(place, b"")
    assert SECRET not in str(error.value)


@pytest.mark.parametrize(
    "value", ["127.0.0.1:9000", f"not an address {SECRET}", "ftp://host", "http://", "http://host:port"]
)
def test_an_endpoint_that_is_no_address_is_refused_before_anything_is_asked(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", value)
    with pytest.raises(ConfigError, match="AWS_ENDPOINT_URL") as error:
        Bucket.from_place(PLACE)
    assert SECRET not in str(error.value)


def test_endpoints_that_are_addresses_pass() -> None:
    assert wrong_endpoint({"AWS_ENDPOINT_URL": "https://host:9000/path", "AWS_REGION": "x y"}) is None
