"""The command that runs the robot arm of Neal (1996)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rayfbnn.cli.program import command
from rayfbnn.output.printing import tell


@command
def demo(
    folder: Annotated[Path, typer.Argument()] = Path("demo"),
    workers: int | None = None,
    progress: bool = True,
) -> None:
    from rayfbnn.demo import demo as run_demo
    from rayfbnn.demo import demo_text

    tell(demo_text(run_demo(folder, workers=workers, progress=progress)))
