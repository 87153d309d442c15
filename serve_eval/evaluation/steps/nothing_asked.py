"""Say that nothing was asked, so that old answers are not taken for those of today."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serve_eval.evaluation.run_session import RunSession

_WARNING = re.compile(
    r"nothing was asked: .*, the last one (?:since|at) (?P<at>[-\d]+ [:\d]+ UTC);"
)


def warn_of_old_answers(session: RunSession) -> None:
    """Add a warning with the time of the last answer, if the folder has one."""
    if at := find_last_answer([session.folder]):
        session.warnings.append(write_warning(at, "name another folder or give --rerun all"))


def find_last_answer(folders: Iterable[Path]) -> str:
    """Return the time of the last answer in run folders, in UTC; "" if they have none."""
    from serve_eval.storage.last_answer import read_last_answer

    times = [at for folder in folders if (at := read_last_answer(folder)) is not None]
    return f"{datetime.fromtimestamp(max(times), UTC):%Y-%m-%d %H:%M} UTC" if times else ""


def write_warning(at: str, to_ask: str) -> str:
    """Return the warning that all answers are old, the last one of the time `at`.

    `to_ask` says how to ask again. `describe_old_answers` finds the warning.
    """
    return (
        "nothing was asked: every answer was already in the folder, the last one at"
        f" {at}; to ask again, {to_ask}"
    )


def describe_old_answers(warnings: Sequence[str]) -> str:
    """Return that nothing was asked, and the time of the last answer; "" if a session asked."""
    at = find_stated_time(warnings)
    return write_notice(at) if at else ""


def find_stated_time(warnings: Sequence[str]) -> str:
    """Return the time of the last answer in a warning of `write_warning`; "" if there is none."""
    found = next(filter(None, map(_WARNING.match, warnings)), None)
    return "" if found is None else str(found["at"])


def write_notice(at: str) -> str:
    """Return the notice that comes before a result whose last answer is of the time `at`."""
    return f"nothing was asked: the last answer came at {at}"
