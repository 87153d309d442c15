"""Describe a run as commands in a folder of data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Step:
    """A command.

    `shown`: its standard output is compared too. `otherwise` is tried if the tool does not know the
    command.
    """

    arguments: Sequence[str]
    shown: bool = False
    otherwise: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """Successive commands in a folder of data, and the folders and files with their results.

    `ordered`: requests follow each other, so the order of the records is compared. `needs` is a
    package; without it the run is left out. `last` always runs, even after a failure. `{held}` in a
    step is the base URL that an earlier step printed.
    """

    name: str
    prepare: Callable[[Path], None]
    steps: Sequence[Step]
    folders: Sequence[str]
    ordered: bool = False
    files: Sequence[str] = ()
    needs: str = ""
    last: Step | None = None


def run(name: str, *more: str, out: str | None = None) -> Step:
    """Evaluate a plan in a folder of its name, without a reference unless there are some."""
    flags = (
        "--set",
        "limits.order_seed=7",
        *(("--no-reference",) if "--references-dir" not in more else ()),
        *more,
    )
    return Step(("run", name, *flags, "-o", out or name.removesuffix(".yaml")))


def shown(*arguments: str, otherwise: Sequence[str] = ()) -> Step:
    """Compare the output of a command, too."""
    return Step(arguments, shown=True, otherwise=otherwise)


def simulated(**options: object) -> Mapping[str, object]:
    """Return a launcher."""
    return {"name": "simulated", "seed": 3, **options}


def common(concurrency: int, **limits: object) -> dict[str, Any]:
    """Return the fields of every plan."""
    return {"model": "m", "dataset_root": "data", "limits": {"concurrency": concurrency, **limits}}
