"""Say that a session asked nothing, so that old answers are not taken for those of today."""

from __future__ import annotations

from datetime import UTC, datetime

from serve_eval.evaluation.run_session import RunSession
from serve_eval.evaluation.storage.last_answer import read_last_answer


def warn_of_old_answers(session: RunSession) -> None:
    """Add a warning with the time of the last answer, if the folder has one."""
    at = read_last_answer(session.folder)
    if at is not None:
        session.warnings.append(
            "nothing was asked: every answer was already in the folder, the last one since"
            f" {datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC; to ask again, name another"
            " folder or give --run-all"
        )
