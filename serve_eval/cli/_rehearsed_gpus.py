"""Refuse a rehearsal that names the GPUs of servers that are rehearsed next to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from serve_eval.schema import Plan


def check_rehearsed_gpus(plan: Plan, output_dir: Path | None) -> None:
    """Raise PlanError if rehearsed servers with a folder next to this one name the same GPUs.

    Real servers of both plans would not start together, and stand-ins need no GPU.
    """
    from serve_eval.errors import PlanError

    own = _list_gpus(plan.launcher.options)
    if output_dir is None or not own:
        return
    for folder, other in _list_others(output_dir.absolute()):
        if shared := own & _list_gpus(other):
            numbers = ", ".join(map(str, sorted(shared)))
            raise PlanError(
                f"launcher.gpus: the servers in {folder}, which are up, have the same GPUs:"
                f" {numbers}",
                hint="Give each of two plans that run together GPUs of its own.",
            )


def _list_others(own: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the folders of rehearsals next to this one that are up, with their options."""
    from serve_eval import yaml_source
    from serve_eval.errors import PlanError
    from serve_eval.schema import REHEARSAL
    from serve_eval.workflows.servers import held_servers

    for entry in held_servers.entries(held_servers.registry()):
        folder = Path(entry.log_dir).parent
        elsewhere = folder == own or folder.parent != own.parent
        if entry.launcher != REHEARSAL or entry.state == "ended" or elsewhere:
            continue
        with suppress(PlanError, OSError):
            found = yaml_source.read(folder / "plan.yaml", PlanError).value
            yield folder, found["launcher"]


def _list_gpus(launcher: Mapping[str, Any]) -> set[Any]:
    """Return the GPUs that the options of a rehearsal name, or none if they leave the choice."""
    gpus = launcher.get("options", {}).get("gpus")
    return set(gpus) if isinstance(gpus, list) else set()
