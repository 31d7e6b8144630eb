"""Orders for visiting the partitions of the training cases along a trajectory."""

from __future__ import annotations

from typing import Literal, TypeAlias

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.streams import Purpose, Streams

Order: TypeAlias = Literal["cyclic"]


def check_order(order: Order | None, partitions: int) -> None:
    """Raise ValueError if an order is given although there is only one partition."""
    if order is not None and partitions == 1:
        raise ValueError(
            f'order: needs partitions > 1, since one block has no order, got "{order}"; leave it out'
        )


def drawn_order(streams: Streams, partitions: int, order: Order | None) -> Array | None:
    """Draw the order of the partial gradients of a trajectory, for each chain.

    Without `order` it is a random permutation. With "cyclic" it is a[j] = d j mod K with K = partitions and a
    direction d = +1 or -1, each with probability 1/2.

    Each chain draws its own order for each trajectory. A trajectory run backwards takes the reversed order
    (`reversed_order`), so an update with a fixed order would not be reversible for K > 2. If several chains
    shared an order, each chain's distribution would be invariant but their joint distribution would not: the
    chains would become dependent.

    Returns
    -------
    (n_chains, partitions) int64, or None if there is only one partition.
    """
    if partitions == 1:
        return None
    if order is None:
        return streams.permutation(partitions, Purpose.PARTITION_ORDER)
    xp = array_namespace(streams.chains)
    direction = 1 - 2 * streams.integers(2, Purpose.PARTITION_ORDER)
    return direction[:, None] * xp.arange(partitions) % partitions


def reversed_order(order: Array) -> Array:
    """Return the order a[0], a[K-1], ..., a[1], which undoes a step in the order a; (n_chains, K)."""
    xp = array_namespace(order)
    return xp.concatenate([order[:, :1], order[:, :0:-1]], axis=1)
