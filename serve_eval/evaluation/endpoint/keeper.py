"""Stop work on an endpoint when the task that keeps it up ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def while_kept(keeper: asyncio.Task[None]) -> AsyncIterator[None]:
    """Raise the keeper's error in the block as soon as the keeper fails."""
    task, over = asyncio.current_task(), False
    assert task is not None
    cancelling = task.cancelling()

    def note_end(_: object) -> None:
        if not over:
            task.cancel()

    keeper.add_done_callback(note_end)
    try:
        yield
    except asyncio.CancelledError:
        error = keeper.exception() if keeper.done() and not keeper.cancelled() else None
        if error is not None and task.uncancel() <= cancelling:
            raise error from None
        raise
    finally:
        over = True
        keeper.remove_done_callback(note_end)
