"""The functions of a network's CUDA source, looked up by name and compiled when they are needed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rayfbnn.kernels.cuda.build import Build, CudaFunction
from rayfbnn.kernels.cuda.generate import source_of
from rayfbnn.kernels.cuda.launch_plan import LaunchPlan
from rayfbnn.kernels.network_plan import NetworkPlan


@dataclass(frozen=True, eq=False)
class Functions:
    """The functions of a network's source for a plan, each compiled at its first launch.

    more_constants  further lines of the source
    kept            the compiled functions, by name and by whether they are for weighted targets
    """

    network: NetworkPlan
    plan: LaunchPlan
    dtype: str
    build: Build
    more_constants: tuple[str, ...] = ()
    kept: dict[tuple[str, bool], CudaFunction] = field(default_factory=dict)

    def launch(
        self,
        name: str,
        n_blocks: int,
        *arguments: Any,
        threads: int | None = None,
        is_weighted: bool = False,
    ) -> None:
        """Launch a function, with the plan's number of threads in a block unless `threads` is given."""
        if n_blocks == 0:  # a layer without units
            return
        # Looking up a function by its source takes longer than launching it.
        function = self.kept.get((name, is_weighted))
        shared_bytes = self.plan.shared_bytes
        if function is None:
            source = source_of(
                self.network,
                self.plan,
                dtype=self.dtype,
                is_weighted=is_weighted,
                more_constants=self.more_constants,
            )
            function = self.kept[name, is_weighted] = self.build(source, name, shared_bytes)
        function((n_blocks,), (threads or self.plan.threads,), arguments, shared_mem=shared_bytes)
