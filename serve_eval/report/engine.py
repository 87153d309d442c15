"""Say in one line for each kind of server what its engine counted during the run. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from serve_eval.client.questions.engine_metrics import add
from serve_eval.evidence.path_facts import ROLES
from serve_eval.schema import EngineCounts, EngineReport, Report

GENERATION = ROLES["generation_servers"]


def describe_engines(report: Report) -> list[str]:
    """Return a line per role of the servers whose counts are known and say something."""
    if report.engine is None:
        return []
    by_role: dict[str | None, list[EngineCounts]] = {}
    for one in report.engine.servers:
        if one.counts is not None:
            by_role.setdefault(one.role, []).append(one.counts)
    told = any(task.traffic.acceptance is not None for task in report.tasks)
    found = []
    for role, ones in by_role.items():
        who = "engine" if len(ones) == 1 else f"{len(ones)} engines"
        if role in ROLES.values():
            who += f" ({role})"
        if said := "; ".join(_figures(role, add(ones), acceptance=not told)):
            found.append(f"{who}: {said}{_count_companions(report.engine)}")
    return found


def _count_companions(engine: EngineReport) -> str:
    others = engine.companions
    return f"; includes up to {others:,} requests of other runs of this command" if others else ""


def _figures(role: str | None, counts: EngineCounts, *, acceptance: bool) -> Iterator[str]:
    """Yield the known figures; an acceptance length only if the answers report none."""
    if counts.prompt_tokens is not None:
        moved = counts.moved_tokens
        more = (
            f", {moved:,} of them by KV transfer"
            if moved or (moved == 0 and role == GENERATION)
            else ""
        )
        yield f"{counts.prompt_tokens:,} prompt tokens{more}"
    if counts.generated_tokens is not None:
        yield f"{counts.generated_tokens:,} generated tokens"
    if counts.preemptions is not None:
        yield f"{counts.preemptions:,} preemptions"
    if counts.prefix_cache_hits is not None:
        asked = counts.prefix_cache_queries
        of = "" if asked is None else f" of {asked:,}"
        if asked != 0:
            yield f"prefix cache hit {counts.prefix_cache_hits:,}{of} tokens"
    if acceptance and (length := counts.acceptance_length) is not None:
        yield (
            f"acceptance length {length:.2f} by its counters"
            f" (1 + {counts.accepted_tokens:,} accepted tokens / {counts.drafts:,} drafts)"
        )
