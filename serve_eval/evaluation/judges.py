"""Ask judges to rate answers, each at its own endpoint, through the same engine as the samples."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from serve_eval.client import connection
from serve_eval.client.client import UNREACHABLE_HINT, Client
from serve_eval.client.connection import connect
from serve_eval.client.preflight import trial
from serve_eval.errors import EndpointError, PlanError
from serve_eval.evaluation.engine.lane import Lane
from serve_eval.evaluation.engine.load_session import MOST, LoadSession
from serve_eval.evaluation.engine.runner import CircuitBreaker, ask
from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.frozen import freeze
from serve_eval.processes.resources import ensure_descriptors
from serve_eval.schema import (
    Dataset,
    Endpoint,
    Failure,
    FailureKind,
    Hypothesis,
    Judge,
    JudgeReport,
    Metric,
    Outcome,
    Plan,
    Progress,
    Question,
    Response,
    Sample,
    Score,
    Task,
)
from serve_eval.storage.answer_origins import Proofs, judges_proofs
from serve_eval.storage.journal import Journal, withdrawals

LEAST_RETRY_BUDGET = 100
"""Minimum number of retries of a judge, even if there are few questions."""
SHORT_TOKENS = 16
"""Tokens of the answer to a short request: some servers refuse fewer."""


async def check_judges(plan: Plan, judges: Iterable[Judge], environ: Mapping[str, str]) -> None:
    """Send a short request to every judge with its own endpoint, before any answers are paid for.

    Raises PlanError for a faulty connection, and EndpointError for a judge that does not answer;
    both name the judge.
    """
    for judge in judges:
        if judge.base_url is None:
            continue
        with _name_judge(judge):
            given = {
                "api_key_env": judge.connection.api_key_env or None,
                "headers": judge.connection.headers,
                "client_cert": judge.connection.client_cert,
                "client_key": judge.connection.client_key,
                "client_key_password_env": judge.connection.client_key_password_env,
            }
            problems = [
                f"{'.'.join(path)}: {problem}"
                for path, problem in connection.problems(given, environ)
            ]
            if problems:
                raise PlanError(problems)
            async with _client(plan, judge, environ) as client:
                sampling = replace(judge.sampling, max_tokens=SHORT_TOKENS)
                failure = await trial(client, chat=True, sampling=sampling, extra=judge.extra)
            if failure is not None:
                message = f"{judge.base_url} does not answer a short request: {failure.message}"
                raise EndpointError(message, hint=_hint(failure))


@freeze
class JudgeSession:
    """The settings for asking all judges of a run.

    `itself` is the client of the evaluated endpoint, for the judge without its own endpoint.
    `at_first` is called once the first record is written. `notify` receives a line about what the
    session waits for.
    """

    plan: Plan
    environ: Mapping[str, str]
    notify: Callable[[str], None]
    itself: Client | None = None
    progress: Progress | None = None
    at_first: Callable[[], None] | None = None


async def ask_judges(
    session: JudgeSession, task: str, pending: Mapping[str, Question], file: Path
) -> None:
    """Ask these questions (by record id), judge after judge, and add the replies to `file`.

    Raises EndpointError, with the name of the judge, if a judge is given up; the replies so far are
    kept.
    """
    by_judge: dict[str, tuple[Judge, dict[str, Question]]] = {}
    for name, question in pending.items():
        by_judge.setdefault(question.judge.name, (question.judge, {}))[1][name] = question
    file.parent.mkdir(mode=0o700, exist_ok=True)
    with Journal(file) as journal:
        for judge, questions in by_judge.values():
            asked = ScoreAccumulator(
                _as_task(f"{task}, judged by {judge.name}", judge, questions), _samples(questions)
            )
            with _name_judge(judge), closing(judges_proofs(file)) as known:
                if judge.base_url is None:
                    assert session.itself is not None
                    await _ask(session, session.itself, asked, journal, known)
                else:
                    async with _client(session.plan, judge, session.environ) as client:
                        client.liveness.notify = session.notify
                        await _ask(session, client, asked, journal, known)


async def _ask(
    session: JudgeSession, client: Client, asked: ScoreAccumulator, journal: Journal, known: Proofs
) -> None:
    """Ask one judge, and repeat the questions whose failure may have been temporary."""
    limits, progress = session.plan.limits, session.progress
    if limits.retry_budget is None:
        client.retry_budget = client.retries + max(LEAST_RETRY_BUDGET, len(asked.samples) // 4)
    load = LoadSession(  # Questions are asked in their own order.
        client, order_seed=0, at_first=session.at_first, proofs=known, notify=session.notify
    )
    name = asked.task.name
    watch = CircuitBreaker(
        answered=0, planned=len(asked.samples), max_error_rate=limits.max_error_rate
    )
    gone = withdrawals(journal.path)
    alone = [i for i, one in enumerate(asked.samples) if one.id in gone]
    lane = Lane(name, asked, journal, array("q", range(len(asked.samples))), alone=alone)
    await ask(load, [lane], progress=progress, watch=watch)
    once_more = array("q", asked.worth_another_pass())
    again = Lane(f"{name}, the failed once more", asked, journal, once_more, alone=lane.alone)
    await ask(load, [again], progress=progress)


def _samples(questions: Mapping[str, Question]) -> Sequence[Sample]:
    return [
        Sample(id=name, prompt=question.prompt, target="") for name, question in questions.items()
    ]


def _as_task(name: str, judge: Judge, questions: Mapping[str, Question]) -> Task:
    """Return a judge's questions as a task. Its score says if the verdict was readable."""

    def score(sample: Sample, response: Response) -> Score:
        readable = questions[sample.id].read(response.text) is not None
        return Score(
            value=float(readable), outcome=Outcome.CORRECT if readable else Outcome.UNPARSED
        )

    return Task(
        name=name,
        version=1,
        reference_file="",
        metric=Metric(name="readable"),
        hypothesis=Hypothesis(),
        sampling=judge.sampling,
        extra=judge.extra,
        protocol={},
        chat=True,
        load=lambda roots, wanted: Dataset(
            samples=_samples(questions), files=(), total=len(questions)
        ),
        score=score,
        answers=lambda sample: ("", ""),
        scoring="inline",
    )


def _client(plan: Plan, judge: Judge, environ: Mapping[str, str]) -> Client:
    """Return the client of a judge: its own key, headers and rate, the plan's time limits."""
    limits = replace(
        plan.limits,
        concurrency=plan.limits.concurrency if judge.concurrency is None else judge.concurrency,
        rate_limit=judge.rate_limit,
        requests_per_minute=judge.requests_per_minute,
        stream=False,
    )
    ensure_descriptors(MOST if limits.concurrency == "auto" else limits.concurrency)
    endpoint = Endpoint(base_url=judge.base_url or "", model=judge.model)
    return connect(replace(plan, connection=judge.connection, limits=limits), endpoint, environ)


@contextmanager
def _name_judge(judge: Judge) -> Iterator[None]:
    """Add the name of the judge to errors."""
    try:
        yield
    except PlanError as error:
        raise PlanError(
            [f"judge {judge.name}: {problem}" for problem in error.problems], hint=error.hint
        ) from error
    except EndpointError as error:
        raise EndpointError(f"judge {judge.name}: {error}", hint=error.hint) from error


def _hint(failure: Failure) -> str:
    if failure.kind is FailureKind.DISCONNECTED:
        return UNREACHABLE_HINT
    if failure.status in (401, 403):
        return "Set api_key_env to the variable with its key, next to the judge's base_url."
    if "max_completion_tokens" in failure.message:
        return "Set max_tokens_field: max_completion_tokens, next to the judge's base_url."
    return "Check base_url, model and sampling of that judge in the scorer's configuration."


def remarks(plan: Plan, judges: Sequence[JudgeReport]) -> list[str]:
    """Return what a reader should know about the judgements."""
    told = [
        f"the model judges itself ({judge.name}): models tend to favour what they wrote"
        for judge in judges
        if judge.base_url is None or judge.model == plan.model
    ]
    told += [
        f"{judge.truncated} judgements of {judge.name} were cut off before the verdict: raise its"
        " sampling.max_tokens"
        for judge in judges
        if judge.truncated
    ]
    if missing := sum(judge.missing for judge in judges):
        told.append(f"{missing} judgements are still missing: run --resume asks for them")
    return told
