"""Print the result of asking each worker separately."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from serve_eval.evaluation.storage.file_names import ATTRIBUTION_FILE
from serve_eval.report.attribution import sentences, table
from serve_eval.report.layout import say, tell_rehearsal
from serve_eval.schema import Attribution
from serve_eval.workflows.attribute.attributed import Attributed


def render(done: Attributed, run: Path, console: Console) -> None:
    """Print the number of prompts and requests, the accused workers, and the tables."""
    tell_rehearsal(done.rehearsal, console)
    say(console, f"{done.asked} prompts, {done.requests} requests, {done.wall_s:.1f} s")
    for name, part in (("alone", done.alone), ("in pairs", done.in_pairs)):
        if part is not None:
            say(console, f"{name}: {part.joined} of {part.planned} requests were answered")
            if part.rows or part is done.alone:  # one pair alone is compared with no other
                attribution(part, name, console)
    if done.transfer is not None and done.transfer.rows:
        attribution(done.transfer, "transfer", console)
    for warning in done.warnings:
        say(console, f"warning: {warning}")
    say(console, f"attribution: {run / ATTRIBUTION_FILE}")


def attribution(told: Attribution, name: str, console: Console) -> None:
    """Print which workers gave the bad answers."""
    for sentence in sentences(told):
        say(console, f"{name}: {sentence}")
    if (rows := table(told)) is not None:
        console.print(rows)
