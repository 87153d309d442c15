"""Make the document of the servers that are kept up on this machine, or were stopped. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from serve_eval.report.document import Block, Conclusion, Document, make_header
from serve_eval.report.page.content import DataCell, DataColumn, DataTable
from serve_eval.verdicts.exit_code import PASS
from serve_eval.workflows.servers.held_servers import Held

RESULT_SCHEMA = 1
"""Version of the JSON of servers."""


def make_document(entries: Sequence[Held], *, stopped: bool = False) -> Document:
    """Return the document of servers: state, model and address of each, the ended ones first."""
    conclusions = [_conclude(one, stopped=stopped) for one in entries]
    nothing = Conclusion("this machine", "NO SERVERS", figures="no servers are running")
    return Document(
        "serve",
        f"serve-eval serve {'--stop' if stopped else '--list'}",
        make_header(PASS),
        conclusions=conclusions or [nothing],
        noun="servers",
        blocks=[Block(_tabulate(entries))] if entries and not stopped else [],
        commands=[] if stopped else [f"serve-eval serve --stop {one.id}" for one in entries],
    )


def describe_servers(entries: Sequence[Held]) -> dict[str, object]:
    """Return what JSON has of servers."""
    return {
        "schema_version": RESULT_SCHEMA,
        "servers": [
            {
                "id": one.id,
                "state": one.state,
                "launcher": one.launcher,
                "model": one.model,
                "base_url": _find_url(one),
                "pid": one.pid,
                "since": one.since,
                "started_in": one.started_in,
                "log_dir": one.log_dir,
                "error": one.error,
            }
            for one in entries
        ],
    }


def _conclude(one: Held, *, stopped: bool) -> Conclusion:
    url = _find_url(one)
    return Conclusion(
        one.id,
        "STOPPED" if stopped else one.state.upper(),
        figures=f"{one.launcher}: {one.model}{f' at {url}' if url else ''}",
        cause="" if stopped else one.error,
    )


def _tabulate(entries: Sequence[Held]) -> DataTable:
    """Return the table of the holders: their processes, since when, and where their files are."""
    rows = [
        (one.id, one.state.upper(), str(one.pid), one.since, one.started_in or "-", one.log_dir)
        for one in entries
    ]
    names = ("server", "outcome", "process", "since", "started in", "logs")
    return DataTable(
        "Holders",
        columns=[DataColumn(name) for name in names],
        rows=[[DataCell(text) for text in row] for row in rows],
    )


def _find_url(one: Held) -> str:
    return "" if one.endpoint is None else one.endpoint.base_url
