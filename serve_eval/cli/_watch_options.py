"""Declare the options of `serve-eval watch`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from serve_eval.evaluation.plan import flag_values
from serve_eval.evaluation.plan import shared_options as shared
from serve_eval.plugins.setting import Setting


@dataclass(frozen=True, kw_only=True)
class WatchPromptOptions:
    """Choose what each round asks: options of a plan, which `settings_of` reads."""

    title: ClassVar[str] = "What is asked"
    tasks: Annotated[
        list[str] | None,
        Setting(
            "A task (default: sums and copies).",
            flags=("--tasks", "-t"),
            metavar="NAME",
            parse=flag_values.names_of,
        ),
    ] = None
    cases: shared.Cases = None
    limit: Annotated[int | None, Setting("Prompts to choose from (default 200).", metavar="N")] = (
        None
    )
    dataset_root: shared.DatasetRoot = None
    settings: Annotated[
        list[str] | None,
        Setting(
            "Set an option of the task: gsm8k.max_tokens=256. Repeatable.",
            flags=("--set",),
            metavar="NAME.OPTION=VALUE",
            key="set",
        ),
    ] = None
    include_path: shared.IncludePath = None


@dataclass(frozen=True, kw_only=True)
class RoundOptions:
    """Choose how often the endpoint is asked, and how much."""

    title: ClassVar[str] = WatchPromptOptions.title
    model: shared.Model = None
    every: Annotated[
        str,
        Setting(
            "From the start of one round to that of the next: 90s, 10m (default), 1h.",
            metavar="TIME",
        ),
    ] = "10m"
    budget_tokens: Annotated[
        int | None, Setting("Tokens, read and generated, of a round (default 16000).", metavar="N")
    ] = None
    smoke: Annotated[bool, Setting("Also run checks (default).", flags=("--smoke/--no-smoke",))] = (
        True
    )
    seed: Annotated[
        int | None, Setting("Seed of what is asked when (default: drawn).", metavar="N")
    ] = None
    rounds: Annotated[int | None, Setting("End after N rounds.", metavar="N")] = None
    timeout: Annotated[
        float, Setting("Time that a request may take (default 60).", metavar="SECONDS")
    ] = 60.0


@dataclass(frozen=True, kw_only=True)
class WatchJudgedOptions:
    """Choose what counts as worse."""

    title: ClassVar[str] = "How it is judged"
    passes: Annotated[
        int | None,
        Setting("How often each prompt is asked for the baseline (default 8).", metavar="N"),
    ] = None
    reference_value: Annotated[
        float | None,
        Setting("The value of these prompts, instead of a learnt one.", metavar="POINTS"),
    ] = None
    tolerance: Annotated[
        float, Setting("A fall that does not matter (default 1).", metavar="POINTS")
    ] = 1.0
    round_means: Annotated[
        bool,
        Setting(
            "Bet on one value per round: also holds where whole rounds are worse or better by"
            " chance. Slower."
        ),
    ] = False
    max_error_rate: Annotated[
        float, Setting("Share of requests that may fail (default 0.05).", metavar="SHARE")
    ] = 0.05


@dataclass(frozen=True, kw_only=True)
class AlarmOptions:
    """Choose what an alarm does."""

    title: ClassVar[str] = "What an alarm does"
    on_alarm: Annotated[str, Setting("exit (code 1; default), or go-on.", metavar="WHAT")] = "exit"
    on_alarm_command: Annotated[
        str | None, Setting("Run this with the alarm as JSON on its input.", metavar="'CMD'")
    ] = None
    alarm_env: Annotated[
        list[str] | None,
        Setting(
            "A variable that the command gets, such as its own key. Repeatable.", metavar="NAME"
        ),
    ] = None
    webhook: Annotated[
        str | None,
        Setting("POST the alarm as JSON there; ${VARIABLE} is filled in.", metavar="URL"),
    ] = None
    forget_alarms: Annotated[bool, Setting("It is mended: begin with new evidence.")] = False
    metrics_port: Annotated[
        int | None,
        Setting("Serve figures for Prometheus at 127.0.0.1:PORT; 0: a free one.", metavar="PORT"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class WatchFolderOptions:
    """Choose the folder."""

    title: ClassVar[str] = "What is written"
    output_dir: Annotated[
        Path | None,
        Setting(
            "Folder (default outputs/watch_<host>). A watch there goes on.",
            flags=("--output-dir", "-o"),
            metavar="DIR",
        ),
    ] = None
    dry_run: Annotated[bool, Setting("Show what it costs; send nothing.")] = False
