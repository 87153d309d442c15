"""Read a run folder for the rules, with the error that ended its command.

Reading sends no requests, writes nothing, and needs no data set. Rules may use one that is there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.client.connection import SecretMask
from serve_eval.errors import ServeEvalError
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.trust import adopt_code
from serve_eval.evidence.attribution.matching import list_answering_roles
from serve_eval.frozen import freeze
from serve_eval.plan.command_line import write_resume_command, write_serve_command
from serve_eval.plugins.registry import name_folders
from serve_eval.schema import (
    HOLDOUT,
    FailureKind,
    Plan,
    Report,
    ServerInfo,
    SuiteRunReport,
    TaskReport,
    VerdictOutcome,
    is_mutable,
)
from serve_eval.shell_words import quote_path, quote_word
from serve_eval.storage import run_folder
from serve_eval.storage.file_names import SUITE_RUNS
from serve_eval.storage.folder_results import find_served_plans, shorten_url
from serve_eval.storage.report_file import find_report
from serve_eval.storage.run_folder import holds_run
from serve_eval.storage.server_logs import log_files
from serve_eval.storage.sessions import INTERRUPTED, SessionRecord, find_session_end, read_sessions
from serve_eval.storage.story_files import COMPARE, SUITE, VERIFY
from serve_eval.storage.story_results import find_suite_report
from serve_eval.workflows.diagnose.finding import AskedSample, read_asked

FEW_TOKENS = 2
"""Value of max_tokens up to which answers are truncated by design."""


@dataclass(frozen=True, kw_only=True)
class TaskEvidence:
    """One task of a run. `report` is None if the run did not finish.

    `share` is the share of the levels that the rules may spend on this task.
    """

    name: str
    fingerprint: Mapping[str, str]
    repeats: int = 1
    asked: tuple[AskedSample, ...]
    report: TaskReport | None
    share: float = 1.0

    @property
    def word(self) -> str:
        """The name, quoted for a shell."""
        return quote_word(self.name)

    def option(self, name: str) -> Any:
        """Return an option of the protocol, or None if it has no option of that name."""
        return msgspec.json.decode(self.fingerprint[name]) if name in self.fingerprint else None

    @property
    def planned(self) -> int:
        """Number of samples in the fingerprint, times the number of repeats."""
        return int(self.fingerprint.get("samples", "0").split()[0]) * self.repeats

    @cached_property
    def scored(self) -> list[AskedSample]:
        return [one for one in self.asked if one.line is not None and one.response is not None]

    @cached_property
    def texts(self) -> list[AskedSample]:
        """The scored samples whose answers are texts, not log-probabilities."""
        return [
            one
            for one in self.scored
            if one.response is not None
            and one.response.prompt_logprobs is None
            and one.response.choice_logprobs is None
        ]

    def witnesses(self, asked: Sequence[AskedSample]) -> list[AskedSample]:
        """Return the samples of the first repeat.

        Repeats of a prompt get similar answers, so a test of shares counts each prompt once.
        """
        return [one for one in asked if self.repeats == 1 or base_of(one.id) == one.id]

    @cached_property
    def missing(self) -> list[AskedSample]:
        return [one for one in self.asked if one.response is None]

    @property
    def unscored(self) -> int:
        """Number of answers without a score. They count as missing."""
        failures = {} if self.report is None else self.report.result.failures
        return sum(
            failures.get(kind, 0) for kind in (FailureKind.SCORER_ERROR, FailureKind.JUDGE_ERROR)
        )

    @cached_property
    def lost(self) -> list[AskedSample]:
        return [one for one in self.asked if one.lost]

    @property
    def max_tokens(self) -> int:
        told = self.option("max_tokens")
        return told if isinstance(told, int) else 0

    @property
    def outcome(self) -> VerdictOutcome | None:
        return None if self.report is None else self.report.verdict.outcome

    @property
    def passes(self) -> bool:
        return self.outcome is VerdictOutcome.PASS

    @property
    def red(self) -> bool:
        """True if the task failed, is undecided, or did not finish."""
        return self.outcome in (
            None,
            VerdictOutcome.FAIL,
            VerdictOutcome.INCONCLUSIVE,
            VerdictOutcome.ERROR,
        )


@freeze
class Evidence:
    """The contents of one run folder. `report` is None if the run did not finish.

    `share` is the share of the levels that the rules may spend on this run.
    """

    folder: Path
    plan: Plan
    sessions: Sequence[SessionRecord]
    report: Report | None
    tasks: tuple[TaskEvidence, ...]
    logs: tuple[Path, ...]
    mask: Callable[[str], str] = str
    """Masks keys in a line of a log: a run that was killed leaves them there."""
    share: float = 1.0
    include_path: tuple[str, ...] = ()
    """Folders of code that the user named."""
    own: bool = False
    """True if this user saved the plan, so that its folders of code may stand in commands."""

    @property
    def place(self) -> str:
        """The folder, quoted for a shell."""
        return quote_path(self.folder)

    @property
    def place_and_code(self) -> str:
        """The folder and the flags that name its folders of code, quoted for a shell."""
        return f"{self.place}{name_folders(self._folders)}"

    @property
    def resume(self) -> str:
        """The command that resumes the run, or words about that of its comparison."""
        plan = replace(self.plan, include_path=self._folders)
        return describe_again(self.folder) or write_resume_command(self.folder, plan)

    @property
    def serve(self) -> str:
        """The command that starts the servers of the run again."""
        return write_serve_command(replace(self.plan, include_path=self._folders))

    @property
    def may_answer(self) -> bool:
        """True if its servers may still be there: those that the run started ended with it."""
        return self.plan.launcher.name == "external" or self.target != quote_word(self.base_url)

    @property
    def attribute(self) -> str:
        """The command that asks each server of the run, or advice if they ended with it."""
        command = f"serve-eval check workers {self.place_and_code}"
        return command if self.may_answer else f"{command}, while its servers run (--keep-servers)"

    @property
    def address(self) -> str:
        """The endpoint in a command, or URL if it ended with the run."""
        return self.target if self.may_answer and self.base_url else "URL"

    @property
    def _folders(self) -> tuple[str, ...]:
        return self.include_path or (self.plan.include_path if self.own else ())

    @property
    def info(self) -> ServerInfo:
        """Information that the endpoint reported in the last session."""
        return self.last.endpoint.info

    @property
    def base_url(self) -> str:
        return self.last.endpoint.base_url

    @property
    def target(self) -> str:
        """The endpoint in a command, quoted for a shell.

        That is its address, or the plan of servers that `serve -o` started next to this run, since
        they are stopped after a night and get another address when they start again.
        """
        folders = (self.folder.absolute().parent, self.folder)
        found = [find_served_plans(one).get(shorten_url(self.base_url)) for one in folders]
        return quote_word(next(filter(None, found), self.base_url))

    @property
    def last(self) -> SessionRecord:
        """The last session, or an empty record if there is none."""
        return self.sessions[-1] if self.sessions else SessionRecord()

    @property
    def several_workers(self) -> bool:
        """True if the endpoint is known to have two context or two generation servers."""
        info = self.info
        roles = [one.role for one in info.workers] or [
            name.rpartition("_")[0] for name in info.servers or ()
        ]
        return any(roles.count(role) > 1 for role in ("context", "generation"))

    @property
    def has_legs(self) -> bool:
        """True if a context and a generation server of the endpoint are known by address.

        They are servers of the launcher or the deployment, or answered the run.
        """
        info, both = self.info, {"context", "generation"}
        roles = {one.role for one in info.workers}
        roles |= {name.rpartition("_")[0] for name in info.servers or ()}
        return both <= roles or both <= list_answering_roles(self.folder)

    @property
    def in_random_order(self) -> bool:
        """True if all sessions started the samples in random order, and none by groups or rounds.

        An early stop of a paired rule asks samples of a group, or repeats of a prompt, one after
        the other.
        """
        orders = [session.limits.order for session in self.sessions if session.limits is not None]
        looks = run_folder.read_looks(self.folder)
        by_units = any(
            task.repeats > 1 or (one.line is not None and one.line.group)
            for task in self.tasks
            if task.name in looks
            for one in task.asked
        )
        return bool(orders) and all(order == "random" for order in orders) and not by_units


def read(folder: Path, *, include_path: Sequence[str] = (), share: float = 1.0) -> Evidence:
    """Read a run folder, of which the rules may spend a share of their levels.

    Raises RunFolderError if it is not one or is damaged.
    """
    (plan, own), prints = run_folder.plan_and_owner(folder), run_folder.read_fingerprints(folder)
    sessions, report = read_sessions(folder), find_report(folder)
    told = {} if report is None else {task.result.task: task for task in report.tasks}
    hidden = _find_hidden(plan, prints, include_path)
    tasks = []
    for name, fingerprint in prints.items():
        asked = read_asked(folder, name, told[name].result.metric if name in told else None)
        if name in hidden:
            secret = hidden[name]
            asked = [
                replace(one, shown=secret is not None and base_of(one.id) not in secret)
                for one in asked
            ]
        one = TaskEvidence(
            name=name,
            fingerprint=fingerprint,
            repeats=plan.times(name),
            asked=tuple(asked),
            report=told.get(name),
            share=share / len(prints),
        )
        tasks.append(one)
    return Evidence(
        folder=folder,
        plan=plan,
        sessions=sessions,
        report=report,
        tasks=tuple(tasks),
        logs=tuple(log_files(folder, sessions)),
        mask=SecretMask(plan.connection, os.environ),
        share=share,
        include_path=tuple(include_path),
        own=own,
    )


def _find_hidden(
    plan: Plan, prints: Mapping[str, Mapping[str, str]], include_path: Sequence[str]
) -> dict[str, frozenset[str] | None]:
    """Return the hold-out samples by task: None if any may be one, as its cases are unreadable."""
    if not any(is_mutable(name) for name in prints):
        return {}
    own = tuple(spec for spec in plan.tasks if is_mutable(spec.name))
    try:
        prepared = prepare(adopt_code(replace(plan, tasks=own, no_reference=True), include_path))
    except ServeEvalError:
        return {name: None for name in prints if is_mutable(name)}
    found = {
        p.task.name: frozenset(s.id for s in p.dataset.samples if HOLDOUT in s.metadata)
        for p in prepared
    }
    return {name: found.get(name) for name in prints if is_mutable(name)}


def base_of(sample: str) -> str:
    """Return the id without the number of the repeat."""
    base, mark, number = sample.rpartition("#")
    return base if mark and number.isdigit() else sample


def find_end(run: Path) -> str:
    """Return what ended a run or comparison; for a side, what ended the other one if that did."""
    own = find_session_end(run)
    if own not in ("", INTERRUPTED):
        return own
    whole = run if COMPARE.has_plan(run) else run.absolute().parent
    if COMPARE.has_plan(whole):
        ends = [find_session_end(one) for one in sorted(whole.iterdir()) if holds_run(one)]
        return next((one for one in ends if one not in ("", INTERRUPTED)), max(ends, default=own))
    return own


def describe_end(end: str) -> str:
    """Return the end as a part of a sentence, "" if none is recorded."""
    if end == INTERRUPTED:
        return "it was interrupted"
    return f"ended by: {end}" if end else ""


def describe_again(run: Path) -> str:
    """Return in words what continues a side of a comparison, or "" for any other run.

    The run alone must not go on: the comparison would not know.
    """
    run = _name_parents(run)
    if not COMPARE.has_plan(run.absolute().parent):
        return ""
    return f"the same serve-eval compare command with -o {quote_path(run.parent)}"


def write_continue_command(run: Path, resume: str) -> str:
    """Return what continues a run; `resume` is the command for one that stands for itself."""
    run = _name_parents(run)
    parent = run.absolute().parent
    if parent.name == SUITE_RUNS and SUITE.has_plan(parent.parent):
        return f"serve-eval run --resume {quote_path(run.parent.parent)}"
    return resume


def _name_parents(folder: Path) -> Path:
    """Return a folder whose path has its parents, which "." and ".." have not."""
    return folder if len(folder.parts) > 2 and ".." not in folder.parts else folder.resolve()


def is_stopped_verify(folder: Path) -> bool:
    """Return True for the folder of a verification that ended without a result."""
    return (folder / VERIFY.plan).is_file() and not (folder / VERIFY.result).exists()


def list_unstarted(folder: Path) -> list[SuiteRunReport]:
    """Return the runs of a suite that an error ended before they had a folder.

    `folder` is that of the suite or of one such run.
    """
    alone = folder.absolute().parent.name == SUITE_RUNS
    suite = folder.absolute().parent.parent if alone else folder
    report = find_suite_report(suite) if (suite / SUITE.plan).exists() else None
    return [
        one
        for one in (() if report is None else report.runs)
        if one.error is not None
        and not holds_run(suite / SUITE_RUNS / one.name)
        and (not alone or one.name == folder.absolute().name)
    ]


def has_only_end(folder: Path) -> bool:
    """Return True if a folder has no run, but a verification, or what ended its command."""
    verified = (folder / VERIFY.result).is_file() or is_stopped_verify(folder)
    return not holds_run(folder) and (verified or bool(list_unstarted(folder)))
