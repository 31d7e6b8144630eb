"""The head of a batch: a small file with the number of its blocks and the digest of the last.

It is replaced after a block is published. A crash may therefore leave it one block behind, but never ahead.
Without a head, nobody would notice that the last blocks of a batch are gone.
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
    """The number of blocks of a batch, and the digest of the last.

    store   digest of the store's root metadata
    blocks  number of published blocks
    last    digest of the last block, "" before the first
    """

    store: str
    batch: int
    blocks: int = 0
    last: str = ""

    @staticmethod
    def from_record(record: Record) -> Head:
        """Return the head of a batch that ends with this record."""
        return Head(record.store, record.batch, record.block + 1, record.last_digest)

    def to_bytes(self) -> bytes:
        """Return the head as a sealed JSON file."""
        return seal({**asdict(self), SEAL: NO_SEAL})

    def check(self, record: Record, path: Place) -> None:
        """Raise StoreCorruptError if a record, read from `path`, contradicts the head."""
        if record.block == self.blocks - 1 and record.last_digest != self.last:
            raise StoreCorruptError(f"{path}: is not the block that {HEAD} of batch {self.batch} names")
        if record.first_block == self.blocks and record.previous != self.last:
            raise StoreCorruptError(
                f"{path}: does not follow the block that {HEAD} of batch {self.batch} names"
            )


def batch_folder(store: Place, batch: int) -> Place:
    """Return the folder of a batch's commits in the store at `store`."""
    return store / COMMITS / f"batch{batch:04d}"


def write_head(fs: Storage, folder: Place, head: Head) -> None:
    """Write the head of a batch into its folder, durably."""
    fs.write_atomic(folder / HEAD, head.to_bytes())
    fs.fsync_dir(folder)


def read_head(fs: Storage, folder: Place, store: str, batch: int) -> Head:
    """Read the head of a batch; StoreCorruptError if it is missing, damaged or of another batch."""
    path = folder / HEAD
    try:
        document = unseal(fs.read(path), path)
    except FileNotFoundError:
        raise StoreCorruptError(f"{path}: missing: the head of batch {batch}") from None
    parsed = as_document(HeadDocument, document, path, "the head of a batch")
    head = Head(parsed.store, parsed.batch, parsed.blocks, parsed.last)
    if (head.store, head.batch) != (store, batch):
        raise StoreCorruptError(f"{path}: belongs to another store or batch")
    return head
