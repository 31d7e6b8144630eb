"""The command that runs the robot arm of Neal (1996)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rayfbnn.cli.parameters import ShowProgress, Workers
from rayfbnn.cli.program import command
from rayfbnn.output.printing import tell


@command
def demo(
    folder: Annotated[
        Path, typer.Argument(help="The folder for the data, the store, the predictions and the pictures.")
    ] = Path("demo"),
    workers: Workers = None,
    progress: ShowProgress = True,
) -> None:
    """Run the robot arm of Neal (1996), from sampling to predictions and pictures.

    A second call continues where an earlier one stopped, or reports again.
    """
    from rayfbnn.demo import demo as run_demo
    from rayfbnn.demo import demo_text

    tell(demo_text(run_demo(folder, workers=workers, progress=progress)))
