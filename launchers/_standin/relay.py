"""A worker's 4xx at an orchestrator of `main`.

The status stays, the message is unwrapped, and the URL is left out.
"""

from __future__ import annotations

import msgspec


class WorkerRefused(Exception):
    """A worker answered with a status of 400 to 499. `told` is the message within its body."""

    def __init__(self, status: int, body: str) -> None:
        self.status, self.told = status, _message(body)
        super().__init__(f"{status}: {self.told}")


def _message(body: str) -> str:
    try:
        found = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body
    if not isinstance(found, dict):
        return body
    told = found.get("message", found.get("error", found.get("detail", body)))
    return told if isinstance(told, str) else body
