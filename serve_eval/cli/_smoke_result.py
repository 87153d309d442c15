"""Save the result of a smoke test."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serve_eval.workflows.smoke.smoke import Smoke


def explain_death(done: Smoke, base_url: str) -> Smoke:
    """Return the result with how the server ended, if it died and `serve-eval serve` held it."""
    from dataclasses import replace
    from urllib.parse import urlsplit

    from serve_eval.errors import EndpointError
    from serve_eval.workflows.servers.reuse import explain_lost

    if not done.died:
        return done
    place = urlsplit(base_url).netloc
    told = explain_lost(EndpointError(f"no server listens at {place} any more"))
    return replace(done, stopped=f"{done.stopped}: {told}")


def encode_result(done: Smoke, base_url: str, started_at: str) -> bytes:
    """Return all figures as JSON, in the form that `serve-eval runs view` reads in a folder."""
    from serve_eval.storage.json_files import pretty_json

    found = {
        "started_at": started_at,
        "base_url": base_url,
        "model": "" if done.deployment is None else done.deployment.model,
        **{name: getattr(done, name) for name in (*done.__slots__, "counts")},
    }
    return pretty_json(found)


def save_result(figures: bytes, folder: Path) -> None:
    """Write all figures into the folder; if that fails, warn and go on to tell the result."""
    from serve_eval.cli._streams import say
    from serve_eval.storage.json_files import write_private
    from serve_eval.storage.story_files import SMOKE

    try:
        write_private(folder / SMOKE.result, figures)
    except OSError as error:
        say(f"warning: {folder / SMOKE.result} could not be written: {error.strerror}")


def save_known(done: Smoke, file: Path | None) -> int:
    """Write the file of known failures, if one is wanted. Return the exit code."""
    from serve_eval.cli._streams import path_of, say
    from serve_eval.verdicts.exit_code import INFRASTRUCTURE, worst
    from serve_eval.workflows.smoke.known import write_known

    if file is None:
        return done.exit_code
    if done.stopped or done.deployment is None:
        say(f"error: --write-known: {file} was not written, because not all checks ran")
        return worst([done.exit_code, INFRASTRUCTURE])
    try:
        here = done.deployment
        write_known(path_of(file), list(done.rows), model=here.model, server=here.server)
    except OSError as error:
        say(f"error: --write-known: {file} cannot be written: {error.strerror}")
        return worst([done.exit_code, INFRASTRUCTURE])
    say(f"known failures: {file}; next time: --known {file}")
    return done.exit_code
