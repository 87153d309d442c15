"""Say how servers that `serve-eval serve` kept have ended, where a command lost them."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

from serve_eval.errors import EndpointError, ServerEndedError
from serve_eval.workflows.servers import held_servers
from serve_eval.workflows.servers.held_servers import Held

LATER_S = 10.0
"""Seconds in which a holder reports how its servers ended, once nothing listens there."""
POLL_S = 0.1
CONNECT_S = 1.0
_REASON = ". Its log is "


def explain_lost(error: EndpointError, registry: Path | None = None) -> EndpointError:
    """Return an error with how the kept servers that it names have ended, or the error as it is.

    Waits up to LATER_S for their holder to report. Servers that still listen are not explained.
    """
    folder = registry or held_servers.find_folder()
    if _REASON in str(error) or not folder.is_dir():
        return error
    entry = next((one for one in held_servers.list_all(folder) if _names(error, one)), None)
    if entry is None or _listens(entry):
        return error
    deadline = time.monotonic() + LATER_S
    while (now := held_servers.now(folder, entry)) is not None and now.state != "ended":
        if time.monotonic() > deadline:
            return error
        time.sleep(POLL_S)
    if now is None:
        said, hint = f"process {entry.pid}, which kept its servers up, is gone", ""
    else:
        said, hint = now.error, now.hint
    first, _, rest = said.partition("\n")
    log = (
        hint if hint.startswith(_REASON.removeprefix(". ")) else f"Its logs are in {entry.log_dir}"
    )
    told = f"{str(error).partition(': every ')[0]}: {first}. {log.rstrip('.')}"
    return ServerEndedError("\n".join(filter(None, (told, rest))), hint=error.hint)


def _names(error: EndpointError, entry: Held) -> bool:
    if entry.endpoint is None:
        return False
    place = urlsplit(entry.endpoint.base_url).netloc
    return re.search(rf"(?<![\w.]){re.escape(place)}(?!\d)", str(error)) is not None


def _listens(entry: Held) -> bool:
    assert entry.endpoint is not None
    url = urlsplit(entry.endpoint.base_url)
    try:
        socket.create_connection((url.hostname or "", url.port or 80), CONNECT_S).close()
    except OSError:
        return False
    return True
