"""Define what the client and the ledger of steps know of a connection."""

from __future__ import annotations

from typing import Protocol


class Channel(Protocol):
    """One connection, as far as the client and the ledger of steps know it.

    It gave `turns` whole answers, of which the first `proven` were surely those to their requests,
    and was `sent` so many requests. `out`: it is out of step. `usable`: it may take another
    request. `last_id` and `last_text` are of its last answer (see `Echoes`).
    """

    number: int
    turns: int
    proven: int
    sent: int
    out: bool
    usable: bool
    last_id: str | None
    last_text: int
