"""Options of `serve-eval bisect`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from serve_eval.plugins.setting import Setting


@dataclass(frozen=True, kw_only=True)
class OptionSearchOptions:
    """Choose two plans between which options are searched."""

    title: ClassVar[str] = "Options between two plans"
    command: ClassVar[str] = "bisect"
    good: Annotated[Path | None, Setting("Plan file that serves well.", metavar="PLAN")] = None
    bad: Annotated[Path | None, Setting("Plan file that serves worse.", metavar="PLAN")] = None
    keep: Annotated[
        list[str] | None,
        Setting(
            "Option that keeps its good value everywhere. Repeatable.",
            metavar="NAME",
            flag=False,
        ),
    ] = None
    together: Annotated[
        list[str] | None,
        Setting(
            "Options that change at once, such as tp,pp. Repeatable.",
            metavar="A,B",
            flag=False,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class StepSearchOptions:
    """Choose a plan and the steps in a row that are searched."""

    title: ClassVar[str] = "Steps in a row"
    command: ClassVar[str] = "bisect"
    plan: Annotated[
        Path | None,
        Setting("Plan file with {step} in place of a tag or commit.", metavar="PLAN"),
    ] = None
    steps: Annotated[
        str | None, Setting("The steps, the good one first and the bad one last.", metavar="A,B,C")
    ] = None
    steps_file: Annotated[
        Path | None,
        Setting(
            "File with one step per line instead.",
            metavar="FILE",
            flag=False,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class BisectTestOptions:
    """Choose the drop that counts, and when to give up."""

    title: ClassVar[str] = "Test and budget"
    command: ClassVar[str] = "bisect"
    margin: Annotated[
        float | None,
        Setting(
            "Drop in points that counts as worse (default: half of the drop that the bad"
            " configuration shows).",
            metavar="POINTS",
        ),
    ] = None
    budget_starts: Annotated[
        int | None,
        Setting(
            "Start at most N servers.",
            metavar="N",
        ),
    ] = None
    budget_gpu_hours: Annotated[
        float | None,
        Setting(
            "Begin no further step after this many GPU hours.",
            metavar="HOURS",
            flag=False,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class BisectOutputOptions:
    """Choose the folder."""

    title: ClassVar[str] = "Output"
    output_dir: Annotated[
        Path | None,
        Setting(
            "Folder (default outputs/<time>_bisect). An existing one goes on.",
            flags=("--output-dir", "-o"),
            metavar="DIR",
        ),
    ] = None
    dry_run: Annotated[
        bool, Setting("Show the first three steps and the expected starts; send nothing.")
    ] = False
