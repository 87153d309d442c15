"""Say that a session asked nothing, so that old answers are not taken for those of today."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serve_eval.evaluation.run_session import RunSession

_WARNING = re.compile(r"nothing was asked: .*, the last one since (?P<at>[-\d]+ [:\d]+ UTC);")


def warn_of_old_answers(session: RunSession) -> None:
    """Add a warning with the time of the last answer, if the folder has one."""
    from serve_eval.evaluation.storage.last_answer import read_last_answer

    at = read_last_answer(session.folder)
    if at is not None:
        session.warnings.append(
            "nothing was asked: every answer was already in the folder, the last one since"
            f" {datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC; to ask again, name another"
            " folder or give --run-all"
        )


def describe_old_answers(warnings: Sequence[str]) -> str:
    """Return that nothing was asked, and the time of the last answer; "" if a session asked."""
    found = next(filter(None, map(_WARNING.match, warnings)), None)
    return "" if found is None else f"nothing was asked: the last answer is of {found['at']}"
