"""Judge the answers of workers, of pairs and of the orchestrator against each other.

If both servers answer a prompt right alone and the pair does not, the transfer of the KV cache, or
how the two fit together, is at fault. One context and one generation server are enough for this.

The servers are asked past their orchestrator. If all of them and their pairs are right where the
run was wrong, or begin alike where it began otherwise, the fault is in front of them, or comes with
the load of the run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from serve_eval.evaluation.results.scoring import ScoredApart, grade_answer
from serve_eval.evidence.answer_texts import find_at_start
from serve_eval.evidence.attribution import EMPTY, FAILURES, WRONG, latency, shares, wrong
from serve_eval.evidence.attribution.latency import Timed
from serve_eval.processes.bounded_call import Unfinished
from serve_eval.processes.resources import describe_busy, is_busy
from serve_eval.schema import Attribution, Failure, Outcome, Response, Sample, Task, WorkerShare
from serve_eval.stats.contingency import GENERATION, Cell
from serve_eval.stats.distances import common_prefix
from serve_eval.stats.multiplicity import holm
from serve_eval.stats.sign_tests import mcnemar, odd_one_out
from serve_eval.storage import journal
from serve_eval.storage.file_names import samples_file
from serve_eval.storage.scores import read_scores
from serve_eval.workflows.attribute.asking import SERVER, Asking


@dataclass(slots=True)
class PhaseAnswers:
    """Results of one phase, each with the context and generation server that took part.

    None stands for a role that took no part. `texts` holds what each prompt was answered with, the
    thoughts included. `unfinished` counts answers that were cut within their thoughts.
    """

    scores: dict[str, list[tuple[tuple[str | None, str | None], str, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    empty: list[tuple[tuple[str | None, str | None], str, bool]] = field(default_factory=list)
    failed: list[tuple[tuple[str | None, str | None], str, bool]] = field(default_factory=list)
    times: list[Timed] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    unscored: list[str] = field(default_factory=list)
    texts: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    unfinished: int = 0

    @property
    def shows_answers(self) -> bool:
        """False if most scored answers ended within their thoughts, or none was scored."""
        return 2 * self.unfinished < len(self.empty)

    async def take(
        self,
        who: tuple[str | None, str | None],
        task: Task,
        sample: Sample,
        result: Response | Failure | None,
        apart: ScoredApart | None,
    ) -> None:
        """Add one result (None: one of the workers took no part).

        If the scorer fails, the answer has no score.
        """
        if result is None:
            return
        prompt = prompt_name(task, sample)
        self.failed.append((who, prompt, isinstance(result, Failure)))
        if isinstance(result, Failure):
            self.messages.append(result.message)
            return
        self.texts[prompt].append(text_of(result))
        self.times.append(Timed(*who, prompt, result.latency_s, result.usage.completion_tokens))
        graded = await grade_answer(task, sample, result, apart)
        if isinstance(graded, Unfinished):
            self.unscored.append(f"{sample.id}: {graded.told}")
            return
        score, _ = graded
        self.scores[task.name].append((who, prompt, score.value))
        self.empty.append((who, prompt, score.outcome in (Outcome.EMPTY, Outcome.REASONING_ONLY)))
        self.unfinished += result.truncated and score.outcome == Outcome.REASONING_ONLY


def judge_phase(
    answers: PhaseAnswers, tasks: Mapping[str, Task], alpha: float, *, servers: bool = False
) -> Attribution:
    """Compare each worker with the others on the same prompts: each prompt is a stratum."""
    bad = [
        (who, prompt, is_bad)
        for name, entries in answers.scores.items()
        for (who, prompt, _), is_bad in zip(
            entries, wrong([value for _, _, value in entries], tasks[name].metric), strict=True
        )
    ]
    measures = {WRONG: _cells(bad), EMPTY: _cells(answers.empty), FAILURES: _cells(answers.failed)}
    rows = shares(measures, alpha)
    return Attribution(
        how="asked",
        joined=sum(not failed for _, _, failed in answers.failed),
        planned=len(answers.failed),
        alpha=alpha,
        rows=tuple(replace(row, role=SERVER) if row.role == GENERATION else row for row in rows)
        if servers
        else rows,
    )


def add_times(
    alone: Attribution,
    in_pairs: Attribution | None,
    asking: Asking,
    of_each: PhaseAnswers,
    of_pairs: PhaseAnswers,
    at_a_time: int,
    cores_busy: float | None,
) -> tuple[Attribution, Attribution | None, list[str]]:
    """Add the slow workers, and return a sentence about each.

    The prompts that are asked first do not count: they include warm-up, such as the first
    connection between two servers. If the cores of this machine were busy throughout, no worker
    counts as slow: servers that share them wait for each other, and the sentences say so.
    """
    warm = {prompt_name(task, sample) for task, sample in asking.prompts[at_a_time:]}
    each, joint = (
        [one for one in answers.times if one.prompt in warm] for answers in (of_each, of_pairs)
    )
    servers = asking.one_each or any(one.role == SERVER for one in asking.workers)
    rows, pair_rows = latency.rank_asked(each, joint)
    if servers:
        rows = tuple(replace(row, role=SERVER) for row in rows)
    found = [latency.describe_slow(row) for row in rows if row.slow]
    known = {row.worker for row in rows if row.slow}
    found += [
        latency.describe_slow(row, "answer of a pair")
        for row in pair_rows
        if row.slow and row.worker not in known
    ]
    if cores_busy is not None and is_busy(cores_busy):
        found = [
            f"busy_cores: {line.partition(': ')[2]}, {describe_busy(cores_busy)} it"
            for line in found
        ]
        rows, pair_rows = (
            tuple(replace(row, slow=False) for row in some) for some in (rows, pair_rows)
        )
    joint_part = None if in_pairs is None else replace(in_pairs, times=pair_rows)
    return replace(alone, times=rows), joint_part, found


def list_remarks(alone: PhaseAnswers, in_pairs: PhaseAnswers) -> list[str]:
    """Return warnings about answers without a score, and about those that ended in thoughts."""
    told = []
    if unscored := [*alone.unscored, *in_pairs.unscored]:
        told.append(f"the scorer could not judge {len(unscored)} answers, such as {unscored[0]}")
    if unfinished := alone.unfinished + in_pairs.unfinished:
        nothing = "" if alone.shows_answers else ", too many to call a worker sound"
        told.append(
            f"{unfinished} of {len(alone.empty) + len(in_pairs.empty)} answers were cut within the"
            f" model's thoughts{nothing}: run the evaluation again with a larger --max-tokens, or"
            " --set protocol.thinking=off, and attribute that run"
        )
    return told


def text_of(response: Response) -> str:
    """Return everything that the model said, without the space at its start.

    Some servers strip it from streams only.
    """
    return f"{response.reasoning or ''}{response.text}".lstrip()


def prompt_name(task: Task, sample: Sample) -> str:
    """Return the name of a prompt within this package."""
    return f"{task.name}/{sample.id}"


def _cells(answers: Iterable[tuple[tuple[str | None, str | None], str, bool]]) -> list[Cell]:
    return [
        Cell(context, generation, 1, int(bad), prompt)
        for (context, generation), prompt, bad in answers
    ]


TRANSFER = "transfer"
"""The role of a pair that is compared with its two servers alone."""
Bad = dict[tuple[str, ...], dict[str, bool]]
"""True for each prompt with a bad answer, else False, by the servers that took part."""


def judge_transfer(
    alone: PhaseAnswers, in_pairs: PhaseAnswers, tasks: Mapping[str, Task], alpha: float
) -> Attribution:
    """Return a row for each pair whose two servers also answered alone.

    p is that of McNemar's exact test over the prompts, one-sided: that the pair is no worse than a
    server of it alone. It is the larger of the two servers', so that a pair with one bad server is
    not accused, then corrected by Holm over the pairs. With equal servers and a sound transfer, any
    pair is accused with probability at most `alpha`: the answers of a pair and of a server alone
    are then exchangeable on each prompt.
    """
    of_alone, of_pairs = find_bad([alone, in_pairs], tasks)
    found = [
        row
        for pair, bad in sorted(of_pairs.items())
        if (row := _row(pair, bad, of_alone)) is not None
    ]
    corrected = holm([row.p for row in found])
    rows = tuple(
        WorkerShare(
            worker=row.worker,
            role=row.role,
            measure=row.measure,
            answers=row.answers,
            bad=row.bad,
            others=row.others,
            others_bad=row.others_bad,
            p=row.p,
            p_holm=p,
            accused=p <= alpha,
        )
        for row, p in zip(found, corrected, strict=True)
    )
    asked = sum(len(bad) for bad in of_pairs.values())
    return Attribution(how="asked", joined=asked, planned=asked, alpha=alpha, rows=rows)


def _row(pair: tuple[str, ...], bad: Mapping[str, bool], alone: Bad) -> WorkerShare | None:
    """Return the row of a pair, against that of its servers alone which it exceeds less."""
    sides = []
    for server in pair:
        by_prompt = alone.get((server,), {})
        common = [prompt for prompt in bad if prompt in by_prompt]
        if not common:
            return None
        down = sum(bad[one] and not by_prompt[one] for one in common)
        up = sum(by_prompt[one] and not bad[one] for one in common)
        worse = sum(bad[one] for one in common)
        sides.append(
            (mcnemar(down, up).p_exact, len(common), worse, sum(by_prompt[one] for one in common))
        )
    p, common_prompts, of_pair, of_server = max(sides)
    return WorkerShare(
        worker=" + ".join(pair),
        role=TRANSFER,
        measure=WRONG,
        answers=common_prompts,
        bad=of_pair,
        others=common_prompts,
        others_bad=of_server,
        p=p,
        p_holm=p,
        accused=False,
    )


def find_bad(phases: Sequence[PhaseAnswers], tasks: Mapping[str, Task]) -> list[Bad]:
    """Return which answers of each phase are bad, by one rule for all."""
    found: list[Bad] = [{} for _ in phases]
    for name, task in tasks.items():
        answers = [phase.scores.get(name, []) for phase in phases]
        bad = iter(wrong([value for phase in answers for _, _, value in phase], task.metric))
        for into, phase in zip(found, answers, strict=True):
            for who, prompt, _ in phase:
                servers = tuple(one for one in who if one is not None)
                into.setdefault(servers, {})[prompt] = next(bad)
    return found


LEVEL, LEVEL_AT_START = 0.001, 0.005
"""Levels of the tests of scores, and of beginnings: there, four prompts of one context and one
generation server suffice."""
NUMERICS = 0.01
"""Level of the test that says that the run's answers differ at their start, as numerics do not."""
_RUN = "run"


def describe_front_door(
    run: Path, asking: Asking, alone: PhaseAnswers, pairs: PhaseAnswers
) -> str | None:
    """Return a sentence if the run's answers were not those of its servers and pairs, else None.

    The prompts were chosen without a look at the run's answers, so those are exchangeable with a
    sound server's.
    """
    told = _describe_scores(run, asking, [alone, pairs])
    told = told or _describe_beginnings(run, asking, [alone, pairs])
    return told and (
        f"{told}: the fault is not in the servers as they answer here. Look at what is in front of"
        " them (orchestrator, router, hand-over), or at the load of the run"
    )


def _describe_scores(run: Path, asking: Asking, phases: Sequence[PhaseAnswers]) -> str | None:
    """Describe that the run was worse than each server and each pair.

    p is the largest of McNemar's exact tests, one-sided.
    """
    tasks = {task.name: task for task, _ in asking.prompts}
    scores = {name: read_scores(run, name, unfinished=True) for name in tasks}
    of_run = PhaseAnswers()
    for task, sample in asking.prompts:
        if (score := scores[task.name].get(sample.id)) is not None:
            entry = ((_RUN, None), prompt_name(task, sample), score.value)
            of_run.scores[task.name].append(entry)
    front, *behind = find_bad([of_run, *phases], tasks)
    own = front.get((_RUN,), {})
    others = [bad for phase in behind for bad in phase.values()]
    if not own or not others:
        return None
    p = max(_test(own, bad) for bad in others)
    if p > LEVEL:
        return None
    most = max(sum(bad.values()) for bad in others)
    return (
        f"the run has {sum(own.values())} of these {len(own)} prompts wrong, and no server or pair"
        f" more than {most} (p = {p:.1g})"
    )


def _test(own: Mapping[str, bool], other: Mapping[str, bool]) -> float:
    common = [prompt for prompt in own if prompt in other]
    down = sum(own[one] and not other[one] for one in common)
    up = sum(other[one] and not own[one] for one in common)
    return mcnemar(down, up).p_exact


def _describe_beginnings(run: Path, asking: Asking, phases: Sequence[PhaseAnswers]) -> str | None:
    """Describe that some answers of the run begin otherwise, while the servers and pairs agree.

    This finds the few requests that had another prompt or KV cache, where scores are too few. p is
    that of the odd one out. Numerics, which can depend on the load of the run, are not described:
    they part answers anywhere.
    """
    of_run = _read_texts(run, {task.name for task, _ in asking.prompts})
    both = [
        (of_run[name], [text for phase in phases for text in phase.texts.get(name, ())])
        for task, sample in asking.prompts
        if (name := prompt_name(task, sample)) in of_run
    ]
    found = odd_one_out((own[:1], [other[:1] for other in others]) for own, others in both)
    if found.p > LEVEL_AT_START:
        return None
    closest = [(own, _find_closest(own, others)) for own, others in both if others]
    if find_at_start(closest).p > NUMERICS:
        return None
    return (
        f"the run's answers to {found.own} of these {len(both)} prompts differ from their first"
        f" character on from those of all servers and pairs, which agree there (p = {found.p:.1g})"
    )


def _read_texts(run: Path, tasks: Iterable[str]) -> dict[str, str]:
    """Return what the run's model said to each prompt, by the name of the prompt."""
    return {
        f"{name}/{record.id}": text_of(record.response)
        for name in tasks
        if (file := samples_file(run, name)).exists()
        for record in journal.read(file)
        if record.response is not None
    }


def _find_closest(own: str, others: list[str]) -> str:
    """Return the text that begins most like the run's own."""
    return own if own in others else max(others, key=lambda other: common_prefix(own, other))
