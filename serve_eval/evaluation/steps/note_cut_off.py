"""Record what was in flight when a server ended, so that its answers are known to be lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from serve_eval.errors import JournalError, LaunchError, ServerEndedError
from serve_eval.evaluation.run_session import RunSession
from serve_eval.schema import Attempt, Failure, FailureKind, LostAnswer


@contextmanager
def note_cut_off(session: RunSession) -> Iterator[None]:
    """Write a failure for each sample in flight if a server ends or hangs within the block.

    A later session asks these samples again. Without the record, a server that ends with its bad
    answers would leave no trace of them. What the user stops loses nothing.
    """
    try:
        yield
    except (ServerEndedError, LaunchError):
        now = time.time()
        lost = Attempt(
            start_s=now,
            end_s=now,
            failure=FailureKind.DISCONNECTED,
            status=None,
            request_id="",
            lost=LostAnswer.RESTART,
        )
        told = "the server ended while the request was in flight"
        failure = Failure(kind=FailureKind.DISCONNECTED, message=told, attempts=(lost,))
        with suppress(JournalError):  # report the end of the server instead
            for lane, i in session.cut_off:
                if lane.accumulator.score(i) is None:
                    lane.keep(lane.accumulator.samples[i], failure)
        raise
