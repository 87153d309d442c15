"""Find the CI job or the folder that a line for chat points at, and write to the job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_JOB_URLS = ("CI_JOB_URL", "BUILD_URL")
"""Variables of GitLab and Jenkins with the address of the job."""


def is_github(environ: Mapping[str, str]) -> bool:
    """Return True in a job of GitHub Actions."""
    return environ.get("GITHUB_ACTIONS") == "true"


def find_place(folder: Path | None, environ: Mapping[str, str]) -> str:
    """Return the address of the CI job, or else the folder of the result, if there is one."""
    if is_github(environ):
        server, repository, run = (
            environ.get(f"GITHUB_{name}", "") for name in ("SERVER_URL", "REPOSITORY", "RUN_ID")
        )
        if server and repository and run:
            return f"{server}/{repository}/actions/runs/{run}"
    found = next((url for name in _JOB_URLS if (url := environ.get(name, ""))), "")
    if found.startswith(("http://", "https://")):
        return found
    return str(folder) if folder is not None and folder.exists() else ""


def add_to_job_summary(file: str, text: str) -> None:
    """Append Markdown to the summary of a GitHub job, with halves of surrogate pairs escaped.

    The file belongs to GitHub. Raises OSError.
    """
    with Path(file).open("ab") as out:
        out.write(f"{text}\n".encode(errors="backslashreplace"))
