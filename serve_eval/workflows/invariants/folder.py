"""Bind the folder of the checks to a plan, and keep the texts around chunk boundaries in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from serve_eval.evaluation.endpoint.deployment import chunk_sizes
from serve_eval.evaluation.passes import check_same_passes
from serve_eval.schema import Plan
from serve_eval.storage.reports.invariants_files import find_chunks, write_chunks
from serve_eval.storage.reports.report_file import has_report, read_report
from serve_eval.storage.story_files import INVARIANTS
from serve_eval.workflows.invariants.arms import COLD, Placed
from serve_eval.workflows.invariants.chunk_lengths import Lengths


class InvariantsPlan(msgspec.Struct, frozen=True):
    """The content of invariants_plan.json."""

    plan: Plan


def bind_folder(out_dir: Path, plan: Plan) -> None:
    """Record what is asked, and of which endpoint.

    Raises RunFolderError if the folder has answers to something else, which would be mixed up with
    these. The concurrency is part of it, since `alone` is compared with it.
    """
    saved = INVARIANTS.find_plan(out_dir, InvariantsPlan)
    known = None if saved is None else saved.plan
    check_same_passes(out_dir, known, plan, ("concurrency", "stream", "order"))
    INVARIANTS.write_plan(out_dir, InvariantsPlan(plan=plan))


def chunk_boundaries(out_dir: Path, chunk_tokens: Sequence[int]) -> list[str]:
    """Return the boundaries to try: `chunk_tokens`, and those of the servers' configs.

    The first pass reports the servers' configs. They are ignored if `chunk_tokens` is empty.
    """
    known: list[int] = []
    if chunk_tokens and has_report(out_dir / COLD):
        known = chunk_sizes(read_report(out_dir / COLD).endpoint.info)
    return [str(size) for size in dict.fromkeys((*chunk_tokens, *known))]


def read_texts(out_dir: Path) -> dict[str, Lengths | str]:
    """Return the texts that earlier sessions settled on."""
    return find_chunks(out_dir, Lengths | str)


def write_texts(out_dir: Path, placed: Placed) -> None:
    """Keep the texts around the boundaries for later sessions."""
    write_chunks(out_dir, placed)
