"""Declare the options that several commands take and that no plan has."""

from __future__ import annotations

from typing import Annotated

from serve_eval.cli._include import TRUST_HELP
from serve_eval.plugins.setting import Setting

TrustPlan = Annotated[bool, Setting(TRUST_HELP, variable="never")]
Reuse = Annotated[bool, Setting("Use the same servers where they are held already.")]
RerunWhat = Annotated[
    str, Setting("What to ask again: never, failed (default), changed, version, all.", metavar="WHAT")
]
RunAll = Annotated[bool, Setting("The same as --rerun all; old answers are archived.")]
Strict = Annotated[bool, Setting("Exit with 1 instead of 3.")]
ReportAsJson = Annotated[bool, Setting("Print the report as one JSON object.", flags=("--json",))]
