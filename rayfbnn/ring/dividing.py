"""Divides the cases of a posterior into parts, all in one process."""

from __future__ import annotations

from collections.abc import Sequence

from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.ring.home import Home
from rayfbnn.ring.owner import Owner
from rayfbnn.ring.parts import parts_of
from rayfbnn.ring.ring import Ring
from rayfbnn.ring.shared_posterior import SharedPosterior
from rayfbnn.ring.transport import InProcess


def divided(
    whole: SampledPosterior,
    n_parts: int,
    *,
    recorded: str | None = None,
    owners: Sequence[Sequence[int]] | None = None,
) -> tuple[SharedPosterior, str]:
    """Return a posterior with its cases divided into parts, and the name of the kernel of its energies.

    recorded  the name of the kernel that a run started with; it is kept if this machine has it
    owners    the numbers of the parts of each owner; by default one owner has all parts. This has no
              influence on any result
    """
    parts, kernel = parts_of(whole, n_parts, recorded=recorded)
    shares = [range(n_parts)] if owners is None else owners
    transport = InProcess([Owner([parts[number] for number in share]) for share in shares])
    return SharedPosterior.from_whole(whole, Ring(Home(transport), n_parts)), kernel
