"""Sum up each pass: the cells of the table."""

from __future__ import annotations

import math
from collections import Counter

from serve_eval.schema import ToolCell
from serve_eval.stats.trigger import TriggerCounts, count_trigger
from serve_eval.stats.wilson import INTERVAL_ALPHA, wilson
from serve_eval.workflows.tools.answers import Answers, ToolPass


def sum_up(one: ToolPass) -> ToolCell:
    """Return the figures of a pass."""
    answers = one.answers.values()
    sound = sum(not answer.faults for answer in answers)
    kinds: dict[str, list[int]] = {}
    for answer in answers:
        counts = kinds.setdefault(answer.kind, [0, 0])
        counts[0] += not answer.faults
        counts[1] += 1
    trigger, chose = measure_trigger(one.answers), any(answer.chose for answer in answers)
    interval = wilson(sound, len(answers), INTERVAL_ALPHA) if answers else None
    return ToolCell(
        form=one.form,
        load=one.load,
        scored=len(answers),
        sound=sound,
        failed=one.failed,
        interval=interval,
        faults=Counter(fault.value for answer in answers for fault in answer.faults),
        kinds={kind: (counts[0], counts[1]) for kind, counts in kinds.items()},
        precision=trigger.precision if chose else None,
        recall=trigger.recall if chose else None,
        f1=trigger.f1 if chose else None,
        in_flight=max((load.max_in_flight for load in one.report.loads), default=0),
        prompt_tokens=sum(answer.usage.prompt_tokens for answer in answers),
        completion_tokens=sum(answer.usage.completion_tokens for answer in answers),
        unreported=sum(not answer.usage.completion_tokens for answer in answers),
        reasoned=sum(answer.reasoned for answer in answers),
        wall_s=math.fsum(load.wall_s for load in one.report.loads),
    )


def measure_trigger(answers: Answers, reference: Answers | None = None) -> TriggerCounts:
    """Return how often a call was made where one was right, by the labels or by a reference."""
    free = {prompt: answer for prompt, answer in answers.items() if answer.chose}
    if reference is None:
        return count_trigger((answer.wanted, answer.called) for answer in free.values())
    return count_trigger(
        (reference[prompt].called, answer.called)
        for prompt, answer in free.items()
        if prompt in reference
    )
