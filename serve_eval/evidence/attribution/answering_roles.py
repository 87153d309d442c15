"""List the roles of the servers that are known to have answered a run, by their addresses."""

from __future__ import annotations

from pathlib import Path

from serve_eval.schema.base_url import find_address
from serve_eval.stats.contingency import CONTEXT, GENERATION
from serve_eval.storage.records.traces import read_traces


def list_answering_roles(folder: Path) -> set[str]:
    """Return the roles of servers that answered a run under a name that is an address."""
    named = {
        (role, name)
        for of_task in (read_traces(folder) or {}).values()
        for lines in of_task.values()
        for one in lines
        for role, name in ((CONTEXT, one.context), (GENERATION, one.generation))
        if name is not None
    }
    return {role for role, name in named if find_address(name) is not None}
