"""Define what the client and the step ledger know of a connection."""

from __future__ import annotations

from typing import Protocol


class Channel(Protocol):
    """One connection, as the client and the step ledger see it.

    It delivered `turns` whole answers. The first `proven` of them certainly belong to their
    requests. `sent` counts the requests sent on it. `out`: the connection is out of step. `usable`:
    it may take another request. `ends_unproven`: it was reported that some of its answers stay
    unproven. `last_id` and `last_text` describe its last answer (see `Echoes`). `round_trip_s` is
    the time that opening it took, at least a round trip (0: not known).
    """

    number: int
    turns: int
    proven: int
    sent: int
    out: bool
    usable: bool
    ends_unproven: bool
    last_id: str | None
    last_text: int
    round_trip_s: float
