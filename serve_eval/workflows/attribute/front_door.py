"""Compare the answers of the run with those that its servers gave now, to the same prompts.

The servers are asked past their orchestrator. If all of them and their pairs are right where the
run was wrong, or begin alike where it began otherwise, the fault is in front of them, or comes with
the load of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from serve_eval.evidence.agreement.answer_texts import find_at_start
from serve_eval.stats.common_prefix import common_prefix
from serve_eval.stats.mcnemar import mcnemar
from serve_eval.stats.odd_one_out import odd_one_out
from serve_eval.storage import journal
from serve_eval.storage.file_names import samples_file
from serve_eval.storage.records.scores import read_scores
from serve_eval.workflows.attribute.answers import PhaseAnswers, prompt_name, text_of
from serve_eval.workflows.attribute.asking import Asking
from serve_eval.workflows.attribute.transfer import find_bad

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
