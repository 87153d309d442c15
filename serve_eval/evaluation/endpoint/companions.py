"""Count the requests of runs that ask the same endpoint at the same time, in this process.

A comparison asks its endpoints some prompts again, by runs of their own. Servers count the requests
of all runs, which would otherwise look like those of other clients.
"""

from __future__ import annotations

from serve_eval.client.client import Client


class Companions:
    """The clients of all runs that one command has at the same time."""

    def __init__(self) -> None:
        self._clients: list[Client] = []

    def join(self, client: Client) -> None:
        """Add the client of a run. It stays after the end of the run."""
        self._clients.append(client)

    def count_others(self, client: Client) -> int:
        """Return the requests that the others have sent so far to this client's endpoint."""
        url = client.endpoint.base_url
        return sum(
            one.attempts.sent
            for one in self._clients
            if one is not client and one.endpoint.base_url == url
        )
