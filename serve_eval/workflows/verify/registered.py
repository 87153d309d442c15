"""Print what a registered reference holds."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from serve_eval.report.nats import write_nats
from serve_eval.report.summary.print_rows import print_commands, print_rows
from serve_eval.schema import VerificationReference
from serve_eval.shell_words import quote_path
from serve_eval.workflows.verify.floors import warn_of_floor


def render_reference(made: VerificationReference, file: Path, console: Console) -> None:
    """Print what a new reference holds, and how to use it."""
    floor = "unknown: verify needs --floor, or a --sibling here" if made.floor is None else ""
    count = max((len(probe.healthy) for probe in made.probes), default=0)
    siblings = f" of {count} siblings" if count > 1 else ""
    print_rows(
        console,
        (
            ("made", f"reference of {made.model} at {made.source}: {len(made.probes)} probes"),
            (
                "noise",
                f"{write_nats(made.noise)} nat, floor"
                f" {floor or f'{write_nats(made.floor or 0.0)} nat'}{siblings}",
            ),
            *(("warning", line) for line in warn_of_floor(made)),
            ("written", f"{file} ({file.stat().st_size / 1000:.0f} KB)"),
        ),
    )
    print_commands(console, [f"serve-eval verify HOST --reference {quote_path(file)}"])
