"""Compare the answers of the run with those that its servers gave now, to the same prompts.

The servers are asked past their orchestrator. If all of them and their pairs are right where the
run was wrong, the fault is in front of them, or comes with the load of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from serve_eval.evaluation.storage.records.scores import read_scores
from serve_eval.stats.mcnemar import mcnemar
from serve_eval.workflows.attribute.answers import PhaseAnswers, prompt_name
from serve_eval.workflows.attribute.asking import Asking
from serve_eval.workflows.attribute.transfer import find_bad

LEVEL = 0.001
_RUN = "run"


def describe_front_door(
    run: Path, asking: Asking, alone: PhaseAnswers, pairs: PhaseAnswers
) -> str | None:
    """Return a sentence if the run was worse than each server and each pair, else None.

    p is the largest of McNemar's exact tests, one-sided. The prompts were chosen without a look at
    the run's answers, so those are exchangeable with a sound server's.
    """
    tasks = {task.name: task for task, _ in asking.prompts}
    scores = {name: read_scores(run, name, unfinished=True) for name in tasks}
    of_run = PhaseAnswers()
    for task, sample in asking.prompts:
        if (score := scores[task.name].get(sample.id)) is not None:
            entry = ((_RUN, None), prompt_name(task, sample), score.value)
            of_run.scores[task.name].append(entry)
    front, *behind = find_bad([of_run, alone, pairs], tasks)
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
        f" more than {most} (p = {p:.1g}): the fault is not in the servers as they answer here."
        " Look at what is in front of them (orchestrator, router, hand-over), or at the load of the"
        " run"
    )


def _test(own: Mapping[str, bool], other: Mapping[str, bool]) -> float:
    common = [prompt for prompt in own if prompt in other]
    down = sum(own[one] and not other[one] for one in common)
    up = sum(other[one] and not own[one] for one in common)
    return mcnemar(down, up).p_exact
