"""Declare the options of `serve-eval watch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

from serve_eval.cli._common_options import RequestTimeout
from serve_eval.frozen import freeze
from serve_eval.plan import shared_options
from serve_eval.plan import shared_options as shared
from serve_eval.plugins.setting import Setting


@freeze
class WatchPromptOptions:
    """Choose the prompts of each round: options of a plan, which `settings_of` reads."""

    title: ClassVar[str] = "Rounds and prompts"
    plan_only: ClassVar[tuple[str, ...]] = ("include_path",)
    tasks: Annotated[
        list[str] | None,
        Setting(
            "Task to ask (default: generated sums and copies).",
            flags=("--tasks", "-t"),
            metavar="NAME",
            parse=shared_options.names_of,
        ),
    ] = None
    cases: shared.Cases = None
    requests: shared.Requests = None
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


@freeze
class RoundOptions:
    """Choose how often and how much the endpoint is asked."""

    title: ClassVar[str] = WatchPromptOptions.title
    command: ClassVar[str] = "watch"
    model: shared.Model = None
    every: Annotated[
        str,
        Setting(
            "Time between the starts of two rounds: 90s, 10m (default), 1h.",
            metavar="TIME",
        ),
    ] = "10m"
    budget_tokens: Annotated[
        int | None, Setting("Prompt and answer tokens per round (default 16000).", metavar="N")
    ] = None
    smoke: Annotated[
        bool,
        Setting(
            "Also run the checks of serve-eval smoke (default).",
            flags=("--smoke/--no-smoke",),
            flag=False,
        ),
    ] = True
    seed: Annotated[
        int | None,
        Setting(
            "Seed of the choice of prompts (default: random).",
            metavar="N",
            flag=False,
        ),
    ] = None
    rounds: Annotated[int | None, Setting("End after N rounds.", metavar="N")] = None
    timeout: RequestTimeout = 60.0


@freeze
class WatchJudgedOptions:
    """Choose when an endpoint counts as worse."""

    title: ClassVar[str] = "Judgement"
    command: ClassVar[str] = "watch"
    passes: Annotated[
        int | None,
        Setting(
            "Answers per prompt for the baseline (default 8; 2 with --reference-value).",
            metavar="N",
            flag=False,
        ),
    ] = None
    baseline_hours: Annotated[
        float,
        Setting(
            "Go on with the baseline until it covers this time, and compare with its worst hours"
            " of the day: 24 covers a day (default 0: only watch.passes counts).",
            metavar="HOURS",
            flag=False,
        ),
    ] = 0.0
    reference_value: Annotated[
        float | None,
        Setting("Known value of these prompts, instead of a learned one.", metavar="POINTS"),
    ] = None
    tolerance: Annotated[float, Setting("Drop to tolerate (default 1).", metavar="POINTS")] = 1.0
    round_means: Annotated[
        bool,
        Setting(
            "Test one value per round. Valid even if whole rounds vary by chance, but slower.",
            flag=False,
        ),
    ] = False
    max_error_rate: Annotated[
        float,
        Setting(
            "Tolerated share of failed requests (default 0.05).",
            metavar="SHARE",
            flag=False,
        ),
    ] = 0.05


@freeze
class WatchProbeOptions:
    """Choose the reference whose probes each round asks."""

    title: ClassVar[str] = "Probes"
    command: ClassVar[str] = "watch"
    verify_reference: Annotated[
        Path | None,
        Setting(
            (
                "Also ask probes of this reference of serve-eval verify: an alarm if the endpoint"
                " is another model, from the first round on."
            ),
            metavar="FILE",
        ),
    ] = None
    probes_per_round: Annotated[
        int | None,
        Setting(
            "Probes per round (default 20).",
            metavar="N",
            flag=False,
        ),
    ] = None


@freeze
class AlarmOptions:
    """Choose the effects of an alarm."""

    title: ClassVar[str] = "Alarms"
    command: ClassVar[str] = "watch"
    on_alarm: Annotated[str, Setting("exit (with code 1; default) or go-on.", metavar="WHAT")] = (
        "exit"
    )
    on_alarm_command: Annotated[
        str | None,
        Setting("Run this command with the alarm as JSON on standard input.", metavar="'CMD'"),
    ] = None
    alarm_env: Annotated[
        list[str] | None,
        Setting(
            "Variable to pass to that command, such as its key. Repeatable.",
            metavar="NAME",
            flag=False,
        ),
    ] = None
    webhook: Annotated[
        str | None,
        Setting("POST the alarm as JSON; ${VARIABLE} is replaced by its value.", metavar="URL"),
    ] = None
    forget_alarms: Annotated[bool, Setting("Start with new evidence, after a repair.")] = False
    metrics_port: Annotated[
        int | None,
        Setting("Serve Prometheus metrics at 127.0.0.1:PORT (0: a free port).", metavar="PORT"),
    ] = None


@freeze
class WatchFolderOptions:
    """Choose the folder."""

    title: ClassVar[str] = "Output"
    output_dir: Annotated[
        Path | None,
        Setting(
            "Folder (default outputs/watch_<host>). A watch in it is resumed.",
            flags=("--output-dir", "-o"),
            metavar="DIR",
        ),
    ] = None
    dry_run: Annotated[bool, Setting("Show the cost; send nothing.")] = False
