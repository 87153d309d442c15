"""Find what a line for chat points at: the CI job, or the folder of the result."""

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
