"""Show which workers gave the bad answers, as sentences and as a table."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from serve_eval.evidence.attribution.latency import describe_slow
from serve_eval.report.text import clean
from serve_eval.schema import Attribution, WorkerFigures, WorkerShare

COLUMNS = ("role", "worker", "measure", "answers", "bad", "others", "bad", "p (Holm)")
_CLOSE = 0.05
"""Largest p at which a pair that is not accused is shown."""


def sentences(told: Attribution) -> Iterator[str]:
    """Yield sentences about what is known and which workers are accused."""
    if told.how != "asked":
        yield (
            f"the server is known for {told.joined} of {told.planned} samples (identified by"
            f" {told.how})"
        )
        if 2 * told.joined < told.planned:
            yield (
                "the other samples have several possible servers; serve-eval check workers sends"
                " the prompts to each server separately"
            )
    if told.counted:
        yield (
            "wrong answers are counted only among prompts that a reference answered:"
            f" {told.counted}"
        )
    if told.dealt_by:
        yield (
            f"the router chooses a server by the prompt ({', '.join(told.dealt_by)}), so answers"
            " are compared only among similar prompts; serve-eval check workers sends all"
            " servers the same prompts"
        )
    yield from _conclusions(told)
    yield from (describe_slow(row) for row in told.times if row.loaded)
    if (transfer := _transfers(told.figures)) is not None:
        yield transfer
    cached = [
        one for one in told.figures if one.cached_tokens is not None and one.role == "context"
    ]
    if any(one.cached_tokens for one in cached):
        shown = ", ".join(
            f"{one.worker} {one.cached_tokens} of {one.prompt_tokens}" for one in cached
        )
        yield f"prompt tokens from the prefix cache: {shown}"


def accusations(told: Attribution) -> Iterator[str]:
    """Yield a sentence for each accused worker."""
    workers = {row.worker for row in told.rows if row.role not in ("pair", "transfer")}
    for row in told.rows:
        if row.accused:
            yield _sentence(row, workers)


def _conclusions(told: Attribution) -> Iterator[str]:
    """Yield a sentence for each accused worker, then the condition; else that none is accused."""
    yield from accusations(told)
    accused = [row for row in told.rows if row.accused]
    if accused and told.how != "asked" and not told.dealt_by:
        yield (
            f"this holds at level {told.alpha:g} if the router's choice of a server does not"
            " depend on how hard a prompt is"
        )
    if told.rows and not accused and all(row.role == "transfer" for row in told.rows):
        yield f"no pair is significantly worse than its servers alone (level {told.alpha:g})"
    elif told.rows and not accused:
        yield (
            f"no server is significantly worse than the others (level {told.alpha:g} over all rows)"
        )
    if not told.rows and told.how == "asked" and told.joined:
        yield "no answer is wrong or empty, and no request failed"


def table(told: Attribution) -> Table | None:
    """Return the table of bad answers per worker, or None if there are none."""
    if not (rows := list_workers(told)):
        return None
    found = Table(box=None, pad_edge=False, show_header=True, header_style="bold")
    for i, column in enumerate(COLUMNS):
        found.add_column(
            column, justify="left" if i < 3 else "right", overflow="fold", no_wrap=i != 1
        )
    for cells, accused in rows:
        found.add_row(*map(Text, map(clean, cells)), style="bold red" if accused else None)
    return found


def list_workers(told: Attribution) -> list[tuple[list[str], bool]]:
    """Return the cells of each worker in the order of COLUMNS, and whether it is accused."""
    found = []
    for row in told.rows:
        if row.role != "pair" or row.accused or row.p <= _CLOSE:
            worker = row.worker.replace("http://", "").replace("/v1", "")
            counts = map(str, (row.answers, row.bad, row.others, row.others_bad))
            cells = [row.role, worker, row.measure, *counts, _p(row.p_holm)]
            found.append((cells, row.accused))
    return found


def _sentence(row: WorkerShare, workers: set[str]) -> str:
    bad = {"wrong answers": "wrong", "empty answers": "empty", "failures": "failed"}.get(
        row.measure, row.measure
    )
    if row.role == "transfer":
        context, _, generation = row.worker.partition(" + ")
        return (
            f"context server {context} with generation server {generation}: {row.bad} of"
            f" {row.answers} {bad}, a server of them alone at most {row.others_bad} (p ="
            f" {_p(row.p_holm)}): the transfer between them, or how they fit together"
        )
    said = (
        f"{row.bad} of {row.answers} {bad}, the others {row.others_bad} of {row.others} (p ="
        f" {_p(row.p_holm)})"
    )
    if row.role != "pair":
        name = "server" if row.role == "server" else f"{row.role} server"
        return f"{name} {row.worker}: {said}"
    context, _, generation = row.worker.partition(" + ")
    pair = f"context server {context} with generation server {generation}: {said}"
    if workers.isdisjoint((context, generation)):
        return (
            f"{pair}; they always work together, so only serve-eval check workers can find which of"
            " them is the cause"
        )
    return f"{pair}; neither is worse with other servers"


def _transfers(figures: tuple[WorkerFigures, ...]) -> str | None:
    timed = [one for one in figures if one.kv_transfer_s is not None and one.role == "generation"]
    if not timed:
        return None
    shown = []
    for one in timed:
        size = "" if one.kv_bytes is None else f" for {one.kv_bytes / 2**20:.3g} MiB"
        shown.append(f"{one.worker} {1000 * (one.kv_transfer_s or 0.0):.3g} ms{size}")
    return f"transfer of the KV cache to generation servers (medians): {', '.join(shown)}"


def _p(p: float) -> str:
    return f"{p:.2g}" if p >= 1e-4 else f"{p:.0e}" if p > 1e-99 else "0"
