"""Declare the options of `serve-eval smoke`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from serve_eval.plan import shared_options as shared
from serve_eval.plugins.setting import Setting


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """Choose the checks."""

    title: ClassVar[str] = "Checks"
    command: ClassVar[str] = "smoke"
    model: shared.Model = None
    level: Annotated[
        str,
        Setting(
            "quick or full; full adds requests that crashed earlier server versions.",
            metavar="LEVEL",
        ),
    ] = "quick"
    require: Annotated[
        list[str] | None,
        Setting(
            "Checks that must not be UNSUPPORTED: chat,json_schema,... Repeatable.",
            metavar="NAMES",
        ),
    ] = None
    known: Annotated[
        Path | None,
        Setting(
            "File of known failures: a check that fails as before is KNOWN, not FAIL.",
            metavar="FILE",
        ),
    ] = None
    passkey: Annotated[
        int | None,
        Setting(
            "Also hide a key in a prompt of this length, and ask for it.",
            metavar="TOKENS",
            flag=False,
        ),
    ] = None
    tokenizer: Annotated[
        Path | None,
        Setting(
            "Also compare the tokens of prompts with the tokenizer and template of this folder.",
            metavar="DIR",
            flag=False,
        ),
    ] = None
    context_tokens: Annotated[
        int | None,
        Setting(
            "Context length, if the endpoint does not report it.",
            metavar="N",
            flag=False,
        ),
    ] = None
    timeout: Annotated[
        float,
        Setting(
            "Time limit of a request (default 60).",
            metavar="SECONDS",
            flag=False,
        ),
    ] = 60.0


@dataclass(frozen=True, kw_only=True)
class SmokeResultOptions:
    """Choose the folder and other files."""

    title: ClassVar[str] = "Output"
    command: ClassVar[str] = "smoke"
    output_dir: Annotated[
        Path | None,
        Setting(
            "Folder for junit.xml, summary.md and report.html (default: none is written).",
            flags=("--output-dir", "-o"),
            metavar="DIR",
        ),
    ] = None
    page: Annotated[
        Path | None,
        Setting(
            "Write the table as a page.",
            metavar="FILE",
            flag=False,
        ),
    ] = None
    write_known: Annotated[
        Path | None,
        Setting(
            "Write what fails now as a file for --known. The exit code stays: 1 if a check fails.",
            metavar="FILE",
        ),
    ] = None
    dry_run: Annotated[bool, Setting("Show the checks and their cost; send nothing.")] = False
