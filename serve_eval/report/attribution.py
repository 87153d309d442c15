"""Who gave the bad answers, for people: a sentence for each who is accused, and a table of the
others.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from serve_eval.report.text import clean
from serve_eval.schema import Attribution, WorkerFigures, WorkerShare

_COLUMNS = ("role", "worker", "measure", "answers", "bad", "others", "bad", "p (Holm)")
_CLOSE = 0.05
"""Pairs that nobody accuses are shown up to this p."""


def sentences(told: Attribution) -> Iterator[str]:
    """What is known, and who is accused."""
    if told.how != "asked":
        yield f"the servers of {told.joined} of {told.planned} samples are known, by {told.how}"
        if 2 * told.joined < told.planned:
            yield (
                "the others could have been answered by several; serve-eval attribute asks each"
                " server by itself"
            )
    if told.counted:
        yield f"wrong answers are counted among prompts that a reference answered: {told.counted}"
    if told.dealt_by:
        yield (
            f"the router's choice of a server depends on the prompt ({', '.join(told.dealt_by)}):"
            " answers are compared among alike prompts alone; serve-eval attribute asks all"
            " servers the same"
        )
    yield from _accusations(told)
    if (transfer := _transfers(told.figures)) is not None:
        yield transfer
    cached = [
        one for one in told.figures if one.cached_tokens is not None and one.role == "context"
    ]
    if any(one.cached_tokens for one in cached):
        shown = ", ".join(
            f"{one.worker} {one.cached_tokens} of {one.prompt_tokens}" for one in cached
        )
        yield f"prompt tokens out of the prefix cache: {shown}"


def _accusations(told: Attribution) -> Iterator[str]:
    """Tell who is accused and on what condition, or that nobody is."""
    workers = {row.worker for row in told.rows if row.role != "pair"}
    for row in told.rows:
        if row.accused:
            yield _sentence(row, workers)
    accused = [row for row in told.rows if row.accused]
    if accused and told.how != "asked" and not told.dealt_by:
        yield (
            f"level {told.alpha:g}, where the router's choice of a server has nothing to do with"
            " how hard a prompt is"
        )
    if told.rows and not accused:
        yield (
            f"no server is worse than the others beyond chance (level {told.alpha:g} over all rows)"
        )
    if not told.rows and told.how == "asked" and told.joined:
        yield "no answer is wrong or empty, and no request failed"


def table(told: Attribution) -> Table | None:
    """Worker x answers x bad; None without anything bad."""
    shown = [row for row in told.rows if row.role != "pair" or row.accused or row.p <= _CLOSE]
    if not shown:
        return None
    found = Table(box=None, pad_edge=False, show_header=True, header_style="bold")
    for i, column in enumerate(_COLUMNS):
        found.add_column(
            column, justify="left" if i < 3 else "right", overflow="fold", no_wrap=i != 1
        )
    for row in shown:
        worker = row.worker.replace("http://", "").replace("/v1", "")
        cells = [
            row.role,
            worker,
            row.measure,
            *map(str, (row.answers, row.bad, row.others, row.others_bad)),
        ]
        found.add_row(
            *map(Text, map(clean, (*cells, _p(row.p_holm)))),
            style="bold red" if row.accused else None,
        )
    return found


def _sentence(row: WorkerShare, workers: set[str]) -> str:
    bad = {"wrong answers": "wrong", "empty answers": "empty", "failures": "failed"}.get(
        row.measure, row.measure
    )
    said = (
        f"{row.bad} of {row.answers} {bad}, the others {row.others_bad} of {row.others} (p ="
        f" {_p(row.p_holm)})"
    )
    if row.role != "pair":
        name = "server" if row.role == "server" else f"{row.role} server"
        return f"{name} {row.worker} gives {said}"
    context, _, generation = row.worker.partition(" + ")
    pair = f"context server {context} with generation server {generation} gives {said}"
    if workers.isdisjoint((context, generation)):
        return (
            f"{pair}; they always work together, so that only serve-eval attribute can tell which"
            " of them it is"
        )
    return f"{pair}; neither does so with others"


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
