"""Read samples of a run folder: a row for each, or everything that is kept about some of them.

Scorers return what they extracted without its place in the answer, and in another form: a number
without commas or with more decimals, or a text in capitals. The last place that fits is shown, as
most scorers read the end of an answer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
from msgspec import UNSET

from serve_eval.evaluation.results.examples import order_ids
from serve_eval.evidence.whole_answer import join_text
from serve_eval.frozen import freeze
from serve_eval.protocol.conversation import tell_result
from serve_eval.report.samples.place import AnswerPlace, find_place
from serve_eval.schema import (
    AnsweringServers,
    Attempt,
    Cut,
    Exchange,
    Failure,
    FailureKind,
    Outcome,
    Prompt,
    Response,
    is_mutable,
)
from serve_eval.storage import journal
from serve_eval.storage.answer_origins import Served, read_traces
from serve_eval.storage.file_names import samples_file
from serve_eval.storage.journal import Record
from serve_eval.storage.prompts import KeptPrompt, ToolResults, has_prompts, read_prompts
from serve_eval.storage.report_file import find_report
from serve_eval.storage.scores import ScoreRecord, read_scores

FAILED, UNSCORED, RIGHT = "failed", "not scored", "right"
WORDS = {
    Outcome.CORRECT: RIGHT,
    Outcome.WRONG: "wrong",
    Outcome.PARTIAL: "partly right",
    Outcome.UNPARSED: "unreadable",
    Outcome.EMPTY: "empty",
    Outcome.REASONING_ONLY: "only reasoning",
    Outcome.REFUSED: "refused",
}
"""The words for the outcomes of answers."""
RANKS = [FAILED, UNSCORED, "unreadable", "empty", "only reasoning", "refused", "wrong"]
"""The outcomes that are shown first, in this order; partly right and right ones follow."""
HIDDEN = "not shown: part of a hold-out set"
NO_TEXT = "(no text)"
NOT_KEPT = "not kept in this run folder"
_REPEAT = re.compile(r"#\d+$")


def rank_outcome(outcome: str, *, cut_off: bool) -> tuple[int, bool, str]:
    """Return the sort key of an outcome: what needs attention comes first."""
    place = RANKS.index(outcome) if outcome in RANKS else len(RANKS)
    return place, outcome == RIGHT and not cut_off, outcome


@freeze
class SampleRow:
    """One sample of a run in short.

    `value`, `expected` and `extracted` are None if there is no score, or nothing was extracted.
    """

    task: str
    id: str
    outcome: str
    value: float | None = None
    expected: str | None = None
    extracted: str | None = None
    cut_off: bool = False
    cut: Cut | None = None
    failure: Failure | None = None

    @property
    def rank(self) -> tuple[object, ...]:
        """The sort key: what needs attention comes first."""
        return *rank_outcome(self.outcome, cut_off=self.cut_off), order_ids(self.id)

    @property
    def wrong(self) -> bool:
        """True if there is an answer with a score, which is not right."""
        return self.outcome not in (FAILED, UNSCORED, RIGHT)


class ShownSample(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run folder keeps about a sample.

    `prompt` is None for the reason in `prompt_note`. `attempts` are those of all sessions, in their
    order. `parts` are named sub-scores, and `mode` is the way in which the answer failed, if the
    scorer knows it. `servers` are those that gave the answer, if known. `reference` has the scores
    of the reference's runs, if the run is compared with them. The last `later` turns of the prompt
    of a conversation follow answers, which `exchanges` has; `results` are those of its tools, by
    turn. Of a hold-out sample, the prompt, the expected answer and the answer are left out.
    """

    task: str
    id: str
    outcome: str
    value: float | None
    cut_off: bool
    cut: Cut | None
    expected: str | None
    extracted: str | None
    place: AnswerPlace | None
    prompt: Prompt | None
    prompt_note: str
    choices: tuple[str, ...]
    response: Response | None
    failure: Failure | None
    attempts: tuple[Attempt, ...]
    servers: AnsweringServers | None
    parts: Mapping[str, float]
    mode: str | None
    later: int = 0
    exchanges: tuple[Exchange, ...] = ()
    results: ToolResults = ()
    reference: tuple[float, ...] = ()

    @property
    def prompt_hidden(self) -> bool:
        """True for a hold-out sample, whose texts are not shown."""
        return self.prompt_note == HIDDEN

    def say_turn(self, turn: int, *, ended: bool = True) -> str:
        """Return what was said after a turn: texts, calls, and the results of tools if kept.

        Without `ended`, the answer that ended the conversation is left out.
        """
        last = len(self.exchanges) - 1
        results = self.results[turn] if turn < len(self.results) else {}
        said = list[str]()
        for i, one in enumerate(self.exchanges):
            if one.turn != turn or (i == last and not ended):
                continue
            answer, texts = one.response, [one.response.text]
            goes_on = results and i < last and self.exchanges[i + 1].turn == turn
            for call in answer.tool_calls:
                told = f" → {tell_result(results, call)}" if goes_on else ""
                texts.append(f"{call.name}({call.arguments}){told}")
            texts.append(answer.refusal or "")
            said += [text for text in texts if text.strip()] or [NO_TEXT]
        return "\n".join(said)

    @property
    def turns_asked(self) -> int:
        """The number of user turns that were sent, including a failed one."""
        if self.response is not None:
            return 1 + max([self.later, *(one.turn for one in self.exchanges)])
        if not self.exchanges:
            return 1
        last = self.exchanges[-1]
        called = last.response.tool_calls and any(self.results[last.turn : last.turn + 1])
        return min(self.later, last.turn if called else last.turn + 1) + 1


@freeze
class SampleSource:
    """One task of a run folder. `repeated`: each prompt is asked several times."""

    run: Path
    task: str
    repeated: bool = False

    def base(self, name: str) -> str:
        """Return the id of a prompt without the number of its repeat."""
        return _REPEAT.sub("", name) if self.repeated else name

    def scores(self) -> dict[str, ScoreRecord]:
        """Return the scores so far by id."""
        return read_scores(self.run, self.task, unfinished=True)

    def records(self) -> Iterator[Record]:
        """Yield the records that count."""
        file = samples_file(self.run, self.task)
        return journal.read(file) if file.exists() else iter(())

    def read_unscored(self) -> dict[str, tuple[Failure, str | None]]:
        """Return the scorer's error and what was expected, by id, of samples that the report has.

        Those of a run that is unfinished, or of an earlier version, are not known.
        """
        report = find_report(self.run)
        tasks = () if report is None else report.tasks
        return {
            one.id: (Failure(kind=FailureKind.SCORER_ERROR, message=error.told), one.expected)
            for task in tasks
            if task.result.task == self.task
            for error in task.result.scorer_errors
            for one in error.samples
        }

    @property
    def hidden(self) -> bool:
        """True if any sample may belong to a hold-out set, since older folders do not tell."""
        return is_mutable(self.task) and not has_prompts(self.run, self.task)


def list_rows(source: SampleSource) -> list[SampleRow]:
    """Return a row for each sample that was sent, in no particular order."""
    scores = source.scores()
    rest: dict[str, SampleRow] = {}
    for record in source.records():
        answered = record.response is not None
        if record.id in scores or (record.id in rest and not answered):
            continue
        outcome = UNSCORED if answered else FAILED
        rest[record.id] = SampleRow(
            task=source.task, id=record.id, outcome=outcome, failure=record.failure
        )
    rows = [
        SampleRow(
            task=source.task,
            id=line.id,
            outcome=WORDS[line.outcome],
            value=line.value,
            expected=line.target,
            extracted=line.answer,
            cut_off=line.truncated or line.cut is not UNSET,
            cut=line.cut or None,
        )
        for line in scores.values()
    ]
    if any(row.outcome == UNSCORED for row in rest.values()):
        for name, (failure, expected) in source.read_unscored().items():
            if (row := rest.get(name)) is not None and row.outcome == UNSCORED:
                rest[name] = replace(row, failure=failure, expected=expected)
    return [*rows, *rest.values()]


def read_samples(source: SampleSource, wanted: Collection[str]) -> dict[str, ShownSample]:
    """Return these samples by id, each with the place of its extracted answer.

    Raises RunFolderError for a damaged file.
    """
    wanted = set(wanted)
    scores = {name: line for name, line in source.scores().items() if name in wanted}
    records = (one for one in source.records() if one.id in wanted)
    return join_samples(source, scores, records, names=wanted, locate=True)


def join_samples(
    source: SampleSource,
    scores: Mapping[str, ScoreRecord],
    records: Iterable[Record],
    *,
    names: Iterable[str] = (),
    locate: bool = False,
) -> dict[str, ShownSample]:
    """Return everything about samples by id, from their scores and from the records that count.

    `names` are samples that are returned also without either. Without `locate`, the places of the
    extracted answers are not searched for: that takes longest. Raises RunFolderError for a damaged
    file.
    """
    found: dict[str, list[Record]] = {name: [] for name in (*scores, *names)}
    for record in records:
        found.setdefault(record.id, []).append(record)
    bases = {source.base(name) for name in found}
    kept = {one.id: one for one in read_prompts(source.run, source.task, bases) if one.id in bases}
    served = (read_traces(source.run) or {}).get(source.task, {})
    hidden = source.hidden
    samples = {
        name: _sample(
            source,
            name,
            scores.get(name),
            of_one,
            kept.get(source.base(name)),
            served.get(name, ()),
            locate=locate,
            hidden=hidden,
        )
        for name, of_one in found.items()
    }
    return _add_scorer_errors(source, _add_unfinished(source, samples))


def _add_unfinished(
    source: SampleSource, samples: dict[str, ShownSample]
) -> dict[str, ShownSample]:
    """Return the samples with what was answered in conversations before a turn failed."""
    cut = {
        one.id for one in samples.values() if (one.later or one.results) and one.response is None
    }
    file = samples_file(source.run, source.task)
    if not cut or not file.exists():
        return samples
    done: dict[str, list[Exchange]] = {}
    for name, exchange in journal.read_exchanges(file):
        if name in cut:
            done.setdefault(name, []).append(exchange)
    for name, of_one in done.items():
        samples[name] = msgspec.structs.replace(samples[name], exchanges=tuple(of_one))
    return samples


def _add_scorer_errors(
    source: SampleSource, samples: dict[str, ShownSample]
) -> dict[str, ShownSample]:
    """Return the samples with the scorer's error and the expected text where there is no score."""
    if not any(one.outcome == UNSCORED for one in samples.values()):
        return samples
    for name, (failure, expected) in source.read_unscored().items():
        one = samples.get(name)
        if one is not None and one.outcome == UNSCORED:
            shown = None if one.prompt_hidden else expected
            samples[name] = msgspec.structs.replace(one, failure=failure, expected=shown)
    return samples


def find_matches(source: SampleSource, text: str) -> set[str]:
    """Return the samples in whose texts a text occurs, in any letter case.

    The texts are the prompt, the answer with its reasoning and tool calls, what was extracted and
    what was expected. Hold-out samples never match.
    """
    wanted = text.casefold()
    asking, hidden = set[str](), set[str]()
    for kept in read_prompts(source.run, source.task):
        if kept.prompt is None:
            hidden.add(kept.id)
        elif any(wanted in said.casefold() for said in _texts_of(kept.prompt, kept.choices)):
            asking.add(kept.id)
    found = set()
    for name, line in source.scores().items():
        if any(wanted in said.casefold() for said in (line.target, line.answer or "")):
            found.add(name)
    for record in source.records():
        said = "" if record.response is None else join_text(record.response)
        if source.base(record.id) in asking or wanted in said.casefold():
            found.add(record.id)
    return set() if source.hidden else {one for one in found if source.base(one) not in hidden}


def _sample(
    source: SampleSource,
    name: str,
    line: ScoreRecord | None,
    records: Sequence[Record],
    kept: KeptPrompt | None,
    served: Sequence[Served],
    *,
    locate: bool,
    hidden: bool,
) -> ShownSample:
    response = next((one.response for one in records[::-1] if one.response is not None), None)
    failure = records[-1].failure if records and response is None else None
    # A conversation that went on in another session has the attempts of its turns again.
    made = {(one.request_id, one.start_s): one for record in records for one in _attempts(record)}
    attempts = tuple(made.values())
    sample = ShownSample(
        task=source.task,
        id=name,
        outcome=WORDS[line.outcome] if line else UNSCORED if response else FAILED,
        value=None if line is None else line.value,
        cut_off=bool(line and line.cut) or (response is not None and response.truncated),
        cut=(line.cut or None) if line else None,
        expected=None if line is None else line.target,
        extracted=None if line is None else line.answer,
        place=find_place(response.text, line.answer) if locate and line and response else None,
        prompt=None if kept is None else kept.prompt,
        prompt_note=NOT_KEPT if kept is None else "",
        choices=() if kept is None else kept.choices,
        response=response,
        failure=failure,
        attempts=attempts,
        servers=_servers(attempts, served),
        parts={} if line is None else line.parts,
        mode=None if line is None or line.mode is UNSET else line.mode,
        later=0 if kept is None else kept.later,
        results=() if kept is None else kept.results,
        exchanges=() if response is None else response.exchanges or (),
    )
    return _hide(sample) if hidden or (kept and kept.prompt is None) else sample


def _hide(sample: ShownSample) -> ShownSample:
    """Return a hold-out sample without its texts."""
    bare = None
    if sample.response is not None:
        bare = msgspec.structs.replace(
            sample.response,
            text="",
            reasoning=None,
            refusal=None,
            tool_calls=(),
            exchanges=UNSET,
        )
    return msgspec.structs.replace(
        sample,
        expected=None,
        extracted=None,
        place=None,
        prompt=None,
        prompt_note=HIDDEN,
        choices=(),
        response=bare,
        later=0,
        exchanges=(),
        results=(),
    )


def _servers(attempts: Sequence[Attempt], served: Sequence[Served]) -> AnsweringServers | None:
    """Return the servers of the last attempt, as they were traced or as its reply named them."""
    if not attempts:
        return None
    for line in served:
        if line.started_s == attempts[-1].start_s:
            return AnsweringServers(context=line.context, generation=line.generation)
    return attempts[-1].servers


def _attempts(record: Record) -> tuple[Attempt, ...]:
    result = record.response if record.response is not None else record.failure
    return () if result is None else result.attempts


def _texts_of(prompt: Prompt, choices: Sequence[str]) -> Iterator[str]:
    yield from choices
    yield from (prompt,) if isinstance(prompt, str) else (turn.text for turn in prompt)
