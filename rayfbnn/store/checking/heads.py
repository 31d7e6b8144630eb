"""The head of a batch: a small file that says how many commit records there are at least.

It is replaced after each record is published, so that a crash may leave it one record behind, and never
ahead. Without it a batch whose last records are gone would look like one that is not as far.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from rayfbnn.errors import StoreCorruptError
from rayfbnn.store.catalogue import COMMITS
from rayfbnn.store.checking.documents import HeadDocument, as_document
from rayfbnn.store.records import NO_SEAL, SEAL, Record, seal, unseal
from rayfbnn.store.storage.places import Place
from rayfbnn.store.storage.protocol import Storage

HEAD = "head.json"


@dataclass(frozen=True)
class Head:
    """The number of records of a batch, and the digest of the last.

    store   digest of the store's root metadata
    blocks  number of blocks that were published
    last    digest of the last of them, "" if there is none
    """

    store: str
    batch: int
    blocks: int = 0
    last: str = ""

    @staticmethod
    def from_record(record: Record) -> Head:
        """Return the head of a batch whose last record this is."""
        return Head(record.store, record.batch, record.block + 1, record.last_digest)

    def to_bytes(self) -> bytes:
        """Return the head as a sealed JSON file."""
        return seal({**asdict(self), SEAL: NO_SEAL})

    def check(self, record: Record, path: Place) -> None:
        """Raise StoreCorruptError if a record, read from `path`, is not what the head says of its place."""
        if record.block == self.blocks - 1 and record.last_digest != self.last:
            raise StoreCorruptError(f"{path}: is not the record that {HEAD} of batch {self.batch} names")
        if record.first_block == self.blocks and record.previous != self.last:
            raise StoreCorruptError(
                f"{path}: does not follow the record that {HEAD} of batch {self.batch} names"
            )


def batch_folder(store: Place, batch: int) -> Place:
    """Return the folder of a batch's commits in the store at `store`."""
    return store / COMMITS / f"batch{batch:04d}"


def write_head(fs: Storage, folder: Place, head: Head) -> None:
    """Put the head of a batch into its folder, durably."""
    fs.write_atomic(folder / HEAD, head.to_bytes())
    fs.fsync_dir(folder)


def read_head(fs: Storage, folder: Place, store: str, batch: int) -> Head:
    """Read the head of a batch; StoreCorruptError if it is missing, damaged or that of another batch."""
    path = folder / HEAD
    try:
        document = unseal(fs.read(path), path)
    except FileNotFoundError:
        raise StoreCorruptError(f"{path}: missing: how many commits batch {batch} has") from None
    parsed = as_document(HeadDocument, document, path, "the head of a batch")
    head = Head(parsed.store, parsed.batch, parsed.blocks, parsed.last)
    if (head.store, head.batch) != (store, batch):
        raise StoreCorruptError(f"{path}: belongs to another store, or to another batch")
    return head
