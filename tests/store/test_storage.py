"""The storage protocol, over folders, buckets in memory, and servers of S3 and Azure on loopback."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayfbnn.errors import (
    ConfigError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreExistsError,
    StoreForeignError,
    StoreFullError,
    StoreReadError,
)
from rayfbnn.store.creation import is_ours
from rayfbnn.store.storage import storage_of
from rayfbnn.store.storage.bucket import Bucket, Tag
from rayfbnn.store.storage.objects import ObjectStorage
from rayfbnn.store.storage.places import ObjectPath, Place, key_below, place_of
from rayfbnn.store.storage.posix import FileSystem
from rayfbnn.store.storage.protocol import Storage
from rayfbnn.store.storage.system_calls import SystemCalls
from tests.support.store.buckets import ENVIRONMENT, MemoryBucket, azure_server, half_way, opened, s3_server

Home = tuple[Storage, Place]
LOCK = "commits/lock"


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    with s3_server() as environment:
        yield environment


@pytest.fixture(scope="module")
def azure() -> Iterator[dict[str, str]]:
    with azure_server() as environment:
        yield environment


@pytest.fixture(params=["posix", "memory", "obstore", "moto", pytest.param("azure", marks=pytest.mark.long)])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    """The storage, and a place in it where nothing is."""
    if request.param == "posix":
        return FileSystem(), tmp_path / "home"
    place = ObjectPath("s3", "bucket", f"{tmp_path.name}/home")
    if request.param == "memory":
        return ObjectStorage(MemoryBucket(), lease_seconds=3), place
    if request.param == "obstore":
        from obstore.store import MemoryStore

        return ObjectStorage(Bucket(MemoryStore()), lease_seconds=3), place
    if request.param == "azure":
        place = ObjectPath("az", "bucket", place.key)
    request.getfixturevalue("azure" if request.param == "azure" else "server")
    return ObjectStorage(Bucket.from_place(place), lease_seconds=3), place


@pytest.fixture
def folder(home: Home) -> Home:
    home[0].mkdir(home[1])
    return home


def anything(key: str) -> bool:
    return True


def never(place: Place, content: bytes, existing: bytes) -> bool:
    return existing == content


def test_a_write_replaces_the_content_and_leaves_nothing_else(folder: Home) -> None:
    storage, place = folder
    for content in (b"old", b"x", b"new" * 100_000):
        storage.write_atomic(place / "file", content)
        assert storage.read(place / "file") == content
        assert storage.listdir(place) == ["file"]


def test_an_exclusive_write_never_replaces(folder: Home) -> None:
    storage, place = folder
    assert storage.write_exclusive(place / "file", b"first")
    assert not storage.write_exclusive(place / "file", b"second")
    assert storage.read(place / "file") == b"first"


def test_one_of_many_exclusive_writes_wins(folder: Home) -> None:
    storage, place = folder
    won: list[int] = []

    def write(number: int) -> None:
        if storage.write_exclusive(place / "file", b"%d" % number):
            won.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert storage.read(place / "file") == b"%d" % won[0]


def test_what_is_missing_is_told_from_what_cannot_be_read(folder: Home) -> None:
    storage, place = folder
    with pytest.raises(FileNotFoundError):
        storage.read(place / "none")
    assert not storage.exists(place / "none")
    storage.unlink(place / "none", below=place)
    storage.write_atomic(place / "file", b"x")
    assert storage.exists(place / "file")
    assert storage.exists(place)


def test_reads_of_several_files_come_in_their_order(folder: Home) -> None:
    storage, place = folder
    contents = [b"%d" % number for number in range(40)]
    for number, content in enumerate(contents):
        storage.write_atomic(place / f"{number:02d}", content)
    places = [place / f"{number:02d}" for number in range(40)]
    assert storage.each(storage.read, places) == contents
    with pytest.raises(FileNotFoundError):
        storage.each(storage.read, [places[0], place / "none", places[1]])


def test_a_store_in_a_bucket_is_opened_with_several_requests_at_once() -> None:
    at_once = threading.Barrier(8, timeout=20)  # each of the first eight reads of arrays waits for the others

    class Waiting(MemoryBucket):
        n_waiting = 0

        def get(self, key: str, at_most: int = sys.maxsize) -> tuple[bytes, Tag]:
            if key.endswith("zarr.json") and "/posterior/" in key:
                with self.turn:
                    self.n_waiting += 1
                    is_first = self.n_waiting <= at_once.parties
                if is_first:
                    at_once.wait()
            return super().get(key, at_most)

    bucket = half_way()
    assert opened(Waiting(bucket.objects)).committed_draws == opened(bucket).committed_draws


def test_a_file_larger_than_expected_is_not_read(folder: Home) -> None:
    storage, place = folder
    storage.write_atomic(place / "file", bytes(100))
    assert len(storage.read(place / "file", at_most=100)) == 100
    with pytest.raises(StoreCorruptError):
        storage.read(place / "file", at_most=99)


def test_a_rename_never_replaces(folder: Home) -> None:
    storage, place = folder
    for name in ("a", "b"):
        storage.write_atomic(place / name, name.encode())
    with pytest.raises(StoreExistsError):
        storage.rename_new(place / "a", place / "b", below=place)
    storage.rename_new(place / "a", place / "c", below=place)
    assert storage.listdir(place) == ["b", "c"]
    assert storage.read(place / "c") == b"a"


def test_a_block_is_written_whole_and_may_fill_up_chunks(folder: Home) -> None:
    storage, place = folder
    for length in (1, 3):
        files = {place / f"{number}": bytes([number]) * length for number in range(20)}
        storage.write_block(files, never)
        assert all(storage.read(file) == content for file, content in files.items())


def test_a_bucket_keeps_a_chunk_that_holds_the_block() -> None:
    bucket, place = MemoryBucket(), ObjectPath("s3", "bucket", "chunk")
    storage = ObjectStorage(bucket)
    storage.write_atomic(place, b"longer")
    storage.write_block({place: b"long  "}, lambda place, content, existing: True)
    assert storage.read(place) == b"longer"
    storage.write_block({place: b"other"}, never)
    assert storage.read(place) == b"other"


def test_a_lock_is_held_once_and_let_go(folder: Home) -> None:
    storage, place = folder
    with storage.lock(place / "lock"):
        with pytest.raises(StoreBusyError), storage.lock(place / "lock"):
            raise AssertionError
    with storage.lock(place / "lock"):
        pass


def test_a_lock_is_seen_by_those_who_do_not_take_it(folder: Home) -> None:
    storage, place = folder
    lock = place / "lock"
    assert not storage.is_locked(place / "none" / "lock") and not storage.is_locked(lock)
    with storage.lock(lock):
        assert storage.is_locked(lock) and storage.is_locked(lock)
    assert not storage.is_locked(lock)
    with storage.lock(lock):  # asking took nothing
        pass


def test_a_creation_is_there_at_its_end_and_never_replaces(home: Home) -> None:
    storage, place = home
    with storage.creation(place, LOCK, anything) as building:
        storage.mkdir(building / "array")
        storage.write_files({building / "array" / "c.0": b"1"})
        storage.write_root(building / "zarr.json", b"root")
    assert storage.read(place / "array" / "c.0") == b"1"
    assert storage.is_taken(place)
    with pytest.raises(StoreExistsError), storage.creation(place, LOCK, anything) as building:
        storage.write_root(building / "zarr.json", b"other")
    assert storage.read(place / "zarr.json") == b"root"


def test_a_creation_that_failed_leaves_nothing_that_the_next_one_does_not_clear(home: Home) -> None:
    storage, place = home
    with pytest.raises(StoreFullError), storage.creation(place, LOCK, anything) as building:
        storage.mkdir(building / "array")
        storage.write_files({building / name: b"first" for name in ("file", "other", "array/c.0")})
        raise StoreFullError("failed")
    assert not storage.is_taken(place)
    with storage.creation(place, LOCK, anything) as building:
        storage.write_atomic(building / "file", b"second")
        storage.write_root(building / "zarr.json", b"root")
    assert storage.is_taken(place)
    assert [name for name in ("array", "file", "other") if storage.exists(place / name)] == ["file"]
    assert storage.read(place / "file") == b"second"


def test_a_file_that_was_removed_can_be_written_again(folder: Home) -> None:
    """In a bucket an empty object is left, which counts as none."""
    storage, place = folder
    for content in (b"first", b"second"):
        assert storage.write_exclusive(place / "file", content)
        assert storage.read(place / "file") == content
        storage.unlink(place / "file", below=place)
        storage.unlink(place / "file", below=place)
        assert not storage.exists(place / "file")
        assert storage.listdir(place) == []
        with pytest.raises(FileNotFoundError):
            storage.read(place / "file")


def test_a_replacement_needs_the_content_that_was_read(folder: Home) -> None:
    storage, place = folder
    storage.write_atomic(place / "file", b"first")
    assert not storage.replace(place / "file", b"third", b"second")
    assert storage.replace(place / "file", b"second", b"first")
    assert storage.read(place / "file") == b"second"


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EXDEV, errno.EACCES])
def test_a_file_system_without_links_is_refused_at_creation(tmp_path: Path, code: int) -> None:
    class WithoutLinks(SystemCalls):
        def link(self, source: Path, destination: Path) -> None:
            raise OSError(code, os.strerror(code))

    storage = FileSystem(WithoutLinks())
    creating = storage.creation(tmp_path / "home", LOCK, anything)
    with pytest.raises(StoreError, match="cannot write it"), creating:
        raise AssertionError
    assert storage.listdir(tmp_path) == []


def test_a_creation_leaves_objects_of_others_alone() -> None:
    bucket, place = MemoryBucket(), ObjectPath("s3", "bucket", "home")
    bucket.put("home/thesis.tex", b"years")
    with pytest.raises(StoreExistsError), ObjectStorage(bucket).creation(place, LOCK, anything):
        raise AssertionError
    assert bucket.keys("home") == ["home/thesis.tex"]


@pytest.mark.parametrize("key", ["thesis.tex", "posterior/io/thesis.tex", "commits/batch0000/thesis.tex"])
def test_a_creation_clears_no_objects_of_others_beside_those_that_a_crash_left(key: str) -> None:
    bucket, place = MemoryBucket(), ObjectPath("s3", "bucket", "home")
    for name in (".creating", "posterior/zarr.json", key):
        bucket.put(f"home/{name}", b"content")
    before = bucket.keys("home")
    with pytest.raises(StoreForeignError, match=key), ObjectStorage(bucket).creation(place, LOCK, is_ours):
        raise AssertionError
    assert bucket.keys("home") == before
    bucket.delete(f"home/{key}")
    storage = ObjectStorage(bucket)
    with storage.creation(place, LOCK, is_ours) as building:
        storage.write_root(building / "zarr.json", b"root")
    assert bucket.keys("home") == ["home/zarr.json"]


@pytest.mark.parametrize(
    "address", ["s3://bucket/runs/run.zarr", "gs://bucket/run.zarr", "az://container/run.zarr/"]
)
def test_an_address_is_read_also_after_pathlib_changed_it(address: str) -> None:
    place = place_of(address)
    assert place == place_of(Path(address)) == place_of(place)
    assert str(place) == address.rstrip("/")
    assert str(place / "commits" / "lock") == f"{address.rstrip('/')}/commits/lock"
    assert (place / "a").parent == place
    assert (place / "000012.json").stem == "000012"
    assert key_below(place / "a" / "b", place) == "a/b"


@pytest.mark.parametrize("address", ["s3://", "s3://bucket", "s3://bucket/", "s3://b/../c", "az://b/a//c"])
def test_an_address_without_bucket_or_key_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        place_of(address)


@pytest.mark.parametrize("address", ["s3://key:hunter2@bucket/run", "az://box/run?sig=hunter2"])
def test_an_address_with_a_secret_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(ConfigError) as error:
        place_of(address)
    assert "hunter2" not in str(error.value)


def test_errors_of_a_server_hold_no_credentials(server: dict[str, str]) -> None:
    place = ObjectPath("s3", "no-such-bucket", "run.zarr")
    with pytest.raises((StoreReadError, FileNotFoundError)) as error:
        storage_of(place).listdir(place)
    text = f"{error.value!r} {error.value.__cause__!r}"
    assert not any(ENVIRONMENT[name] in text for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
