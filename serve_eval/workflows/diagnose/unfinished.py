"""The rule about a run without a report: what ended it, the end of each log, and what goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from serve_eval.launchers._logs.last_error import cause
from serve_eval.shell_words import quote_path
from serve_eval.storage.server_logs import LogLine, read
from serve_eval.workflows.diagnose.ended import describe_end, find_end, write_continue_command
from serve_eval.workflows.diagnose.evidence import Evidence
from serve_eval.workflows.diagnose.finding import Finding
from serve_eval.workflows.diagnose.unanswered import LAST_LINES, name_cause

RULE = "unfinished"
LOG_TAIL = 200
"""Last lines of a server's log that are read."""


def find_unfinished(run: Evidence) -> Iterator[Finding]:
    """Yield a finding if the run did not finish, because it or a server of its own was stopped.

    The finding shows the errors at the end of each log, or else its last lines.
    """
    if run.report is not None:
        return
    asked = sum(len(task.asked) for task in run.tasks)
    planned = sum(task.planned for task in run.tasks)
    end = describe_end(find_end(run.folder))
    failed = sum(len(task.missing) for task in run.tasks)
    told = f"{end or 'the run did not finish'}; {asked - failed} of {planned} samples were answered"
    told += f" before, {failed} failed"
    again, log, read_too = write_continue_command(run.folder, run.resume), [], []
    change = again
    for path in run.logs:
        lines = [line.text for line in deque(read(path), LOG_TAIL)]
        if (found := cause("\n".join(lines))) is not None:
            told += f"; {path.name} shows that {name_cause(found[0])}"
            change = found[1]
        errors = [text for text in lines if LogLine(None, text).error]
        log += [f"{path.name}: {run.mask(text)}" for text in (errors or lines)[-LAST_LINES:]]
        read_too.append(f"read {quote_path(path)}")
    known = () if change == again else (change,)
    yield Finding(
        rule=RULE,
        told=told,
        change=(*known, *read_too[:LAST_LINES], again),
        count=asked,
        of=planned,
        log=tuple(log),
    )
