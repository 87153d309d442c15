"""What a session of a run noted of the servers behind its endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serve_eval.errors import RunFolderError
from serve_eval.schema import ServerInfo


def server_info(session: Mapping[str, Any]) -> ServerInfo:
    """Read it of a session of environment.json. Raises RunFolderError for values that are none."""
    try:
        return ServerInfo.read(session.get("endpoint", {}).get("info") or {})
    except TypeError as error:
        raise RunFolderError(f"environment.json is damaged: {error}") from error
