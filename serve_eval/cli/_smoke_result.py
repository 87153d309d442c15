"""Print and save the result of a smoke test."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from serve_eval.cli._smoke_options import SmokeResultOptions
    from serve_eval.workflows.smoke.smoke import Smoke


def explain_death(done: Smoke, base_url: str) -> Smoke:
    """Return the result with how the server ended, if it died and `serve-eval serve` held it."""
    from dataclasses import replace
    from urllib.parse import urlsplit

    from serve_eval.errors import EndpointError
    from serve_eval.workflows.servers.lost import explain_lost

    if not done.died:
        return done
    place = urlsplit(base_url).netloc
    told = explain_lost(EndpointError(f"no server listens at {place} any more"))
    return replace(done, stopped=f"{done.stopped}: {told}")


def save_result(done: Smoke, base_url: str, folder: Path) -> None:
    """Write what was found into the folder, where `serve-eval view` reads it."""
    from datetime import UTC, datetime, timedelta

    from serve_eval.evaluation.storage.file_names import SMOKE_RESULT
    from serve_eval.evaluation.storage.private_files import pretty_json, write_private

    found = {
        "started_at": (datetime.now(UTC) - timedelta(seconds=done.seconds)).isoformat(),
        "base_url": base_url,
        "model": "" if done.deployment is None else done.deployment.model,
        **_as_json(done),
    }
    write_private(folder / SMOKE_RESULT, pretty_json(found))


def emit_end(done: Smoke, base_url: str, result: SmokeResultOptions) -> None:
    """Write what stands below the rows, or the JSON object in place of all of them."""
    from serve_eval.cli._smoke_rows import write_end
    from serve_eval.cli._streams import emit, is_quiet
    from serve_eval.cli._wrapping import find_width
    from serve_eval.report.text import clean
    from serve_eval.workflows.smoke.smoke import summary

    if result.as_json:
        import msgspec

        emit(msgspec.json.encode({"base_url": base_url, **_as_json(done)}).decode() + "\n")
    elif is_quiet():
        emit(clean(f"{next(summary(done))}\n"))
    else:
        lines = write_end(done, verbose=result.verbose, width=find_width())
        emit("".join(f"{line}\n" for line in lines))


def save_known(done: Smoke, file: Path | None) -> int:
    """Write the file of known failures, if one is wanted. Return the exit code."""
    from serve_eval.cli._streams import path_of, say
    from serve_eval.verdicts.exit_code import INFRASTRUCTURE, worst
    from serve_eval.workflows.smoke.known_file import write_known

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


def _as_json(done: Smoke) -> dict[str, Any]:
    return {name: getattr(done, name) for name in (*done.__slots__, "counts")}
