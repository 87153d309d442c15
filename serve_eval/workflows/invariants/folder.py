"""The folder of the checks: what it is bound to, and the texts around chunk boundaries that are kept in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.errors import RunFolderError
from serve_eval.evaluation.agreement import answer_pairs
from serve_eval.evaluation.endpoint.deployment import chunk_sizes
from serve_eval.evaluation.storage import run_folder
from serve_eval.schema import Plan
from serve_eval.workflows.invariants.arms import COLD, Placed
from serve_eval.workflows.invariants.chunk_lengths import Lengths
from serve_eval.workflows.invariants.result import SCHEMA_VERSION

PLAN_FILE, RESULT_FILE, CHUNKS_FILE = "invariants_plan.json", "invariants.json", "chunks.json"


def bind_folder(out_dir: Path, plan: Plan) -> None:
    """Write down what is asked and of whom. Raises RunFolderError where the folder has answers to something else: they
    would be taken for these. How much is asked at a time belongs to it, since `alone` is compared with that."""
    file = out_dir / PLAN_FILE
    content = {"schema_version": SCHEMA_VERSION, "plan": plan}
    if file.exists() and any(one.stat().st_size for one in out_dir.glob("*/samples/*.jsonl")):
        try:
            saved = msgspec.convert(msgspec.json.decode(file.read_bytes())["plan"], Plan)
        except (msgspec.MsgspecError, KeyError, TypeError) as error:
            raise RunFolderError(f"{file} cannot be read: {error}", hint="Use another folder with -o.") from error
        if differing := run_folder.differences(_binding(saved), _binding(plan)):
            raise RunFolderError(
                f"{out_dir} holds such checks of something else:\n" + "\n".join(f"  {line}" for line in differing),
                hint="Use another folder with -o.",
            )
    run_folder.write_private(file, run_folder.pretty_json(content))


def _binding(plan: Plan) -> dict[str, Any]:
    """What of a plan may not change, as plain JSON."""
    found: dict[str, Any] = msgspec.to_builtins(plan)
    limits = found.pop("limits")
    for name in run_folder.FREE_FIELDS:
        found.pop(name, None)
    return {**found, "limits": {name: limits[name] for name in ("concurrency", "stream", "order")}}


def chunk_boundaries(out_dir: Path, chunk_tokens: Sequence[int]) -> list[str]:
    """Return the boundaries to try: `chunk_tokens` and, where these are not none, those of the servers' own configs.

    The first pass tells the latter.
    """
    known: list[int] = []
    if chunk_tokens and (out_dir / COLD / run_folder.REPORT_FILE).exists():
        known = chunk_sizes(answer_pairs.read_report(out_dir / COLD).endpoint.info)
    return [str(size) for size in dict.fromkeys((*chunk_tokens, *known))]


def read_texts(out_dir: Path) -> dict[str, Lengths | str]:
    """Return the texts that earlier sessions settled on."""
    try:
        return msgspec.json.decode((out_dir / CHUNKS_FILE).read_bytes(), type=dict[str, Lengths | str])
    except (OSError, msgspec.MsgspecError):
        return {}


def write_texts(out_dir: Path, placed: Placed) -> None:
    """Keep the texts around the boundaries for later sessions."""
    run_folder.write_private(out_dir / CHUNKS_FILE, run_folder.pretty_json(placed))
