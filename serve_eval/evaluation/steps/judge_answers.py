"""Have answers judged, by other judges or by the endpoint that gave them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from serve_eval.client.client import Client
from serve_eval.evaluation.judges import JudgeSession, ask_judges
from serve_eval.evaluation.run_session import RunSession
from serve_eval.evaluation.task_run import TaskRun
from serve_eval.schema import Judge
from serve_eval.storage.records.judgements import Judgements, judges_of
from serve_eval.storage.reports.report_file import drop_report


def list_pending_judges(tasks: Iterable[TaskRun]) -> list[Judge]:
    """Return the judges that will be asked, each once.

    Raises PlanError for two judges of a task with the same name.
    """
    found: list[Judge] = []
    for w in tasks:
        if w.judgements is not None and (w.unfinished or w.list_unjudged(itself=False)):
            judges = judges_of(w.prepared.task, w.prepared.dataset.samples)
            found += [judge for judge, _ in judges if judge not in found]
    return found


async def judge_answers(session: RunSession, itself: Client | None = None) -> None:
    """Have the unjudged answers judged, in tasks that need it.

    If `itself` is given, the endpoint judges its own answers; otherwise the other judges do.
    """
    judging = JudgeSession(
        plan=session.plan,
        environ=session.environ,
        notify=session.notify,
        itself=itself,
        progress=session.progress,
        at_first=partial(drop_report, session.folder),
    )
    for w in session.tasks:
        if w.judgements is None or not (pending := w.list_unjudged(itself=itself is not None)):
            continue
        await ask_judges(judging, w.prepared.task.name, pending, w.judgements.path)
        w.judgements = Judgements(w.judgements.path)
