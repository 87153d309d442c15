"""Answers that ended before they were any: at max_tokens, by a stop string, within the thoughts, or
at once.
"""

from __future__ import annotations

import json
import shlex
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence

from serve_eval.schema import Outcome, Response
from serve_eval.workflows.diagnose.evidence import FEW_TOKENS, AskedSample, Evidence, TaskEvidence
from serve_eval.workflows.diagnose.finding import LEAST, Finding, about, matters, worse

ENOUGH_SHARE = 0.01
"""Share of the answers from which on those without any text are told."""


def find_truncated(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Answers that were cut are wrong more often than others. Those that never left the thoughts
    are the next rule's, and where an answer has a token or two each is cut by design.
    """
    if task.max_tokens <= FEW_TOKENS:
        return
    answers = [one for one in task.texts if one.outcome != Outcome.REASONING_ONLY]
    cut = [one for one in answers if _response(one).truncated]
    others = [one for one in answers if not _response(one).truncated]
    if not matters(task, cut) or (p := worse(task, cut, others)) is None:
        return
    wrong, bad = sum(one.bad for one in answers), sum(one.bad for one in cut)
    told = f"{bad} of {wrong} wrong answers end at"
    beside = (
        f"{bad} of {len(cut)} that were cut are wrong, and {wrong - bad} of {len(others)} others"
    )
    early = [
        n for one in cut if (n := _response(one).usage.completion_tokens) and n < task.max_tokens
    ]
    if 2 * len(early) > len(cut):
        longest = max(early)
        told += (
            f" a limit of the server, at {longest} tokens at most, before"
            f" max_tokens={task.max_tokens}: {beside}"
        )
        change = (
            "trtllm-serve ... --max_seq_len N, which prompt and answer share",
            *_shorter(task),
        )
    else:
        told += f" exactly max_tokens={task.max_tokens}: {beside}"
        change = (f"--set {task.name}.max_tokens={2 * task.max_tokens}",)
    yield about(task, "truncated", told, change, cut, of=len(answers), p=p)


def _shorter(task: TaskEvidence) -> tuple[str, ...]:
    return (f"--set {task.name}.num_fewshot=0",) if task.option("num_fewshot") else ()


def find_unclosed_reasoning(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Answers that are thoughts alone: the model had not come to its answer when it was cut, or
    never closed them.
    """
    shown = [
        one
        for one in task.texts
        if one.outcome == Outcome.REASONING_ONLY and not _response(one).stopped_in_reasoning
    ]
    if not matters(task, shown):
        return
    cut = sum(_response(one).truncated for one in shown)
    told = (
        f"{len(shown)} of {len(task.texts)} answers never left the model's reasoning, and score"
        " nothing; "
    )
    told += f"{cut} of them were cut at max_tokens={task.max_tokens}"
    more, off = (
        f"--set {task.name}.max_tokens={4 * task.max_tokens}",
        f"--set {task.name}.thinking=off",
    )
    change = (
        (more, off) if 2 * cut > len(shown) else (off, "trtllm-serve ... --reasoning_parser NAME")
    )
    yield about(task, "unclosed_reasoning", told, change, shown, of=len(task.texts))


def find_stopped_in_reasoning(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Answers that ended within the thoughts and were not cut: a stop string was met there."""
    shown = [one for one in task.texts if _response(one).stopped_in_reasoning]
    if not matters(task, shown):
        return
    stops = task.option("stop") or []
    told = (
        f"{len(shown)} of {len(task.texts)} answers ended within the model's reasoning, without"
        " having been cut"
    )
    told += f"; {_describe_met(shown)}" if any(_response(one).stop_reason for one in shown) else ""
    change = (f"--set {task.name}.stop=[]",) if stops else (f"--set {task.name}.thinking=off",)
    yield about(task, "stopped_in_reasoning", told, change, shown, of=len(task.texts))


def stop_string(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Answers that one stop string ended are wrong more often than those that ended otherwise, as
    far as the server tells which it was.
    """
    answers = [
        one
        for one in task.texts
        if not _response(one).stopped_in_reasoning and _response(one).text.strip()
    ]
    told_of = sorted({stop for one in answers if (stop := _response(one).stop_reason) is not None})
    for stop in told_of:
        shown = [one for one in answers if _response(one).stop_reason == stop]
        others = [one for one in answers if _response(one).stop_reason != stop]
        if (
            not matters(task, shown)
            or (p := worse(task, shown, others, signs=len(told_of))) is None
        ):
            continue
        wrong, wrong_others = sum(one.bad for one in shown), sum(one.bad for one in others)
        told = (
            f"{wrong} of {len(shown)} answers that the stop string {stop!r} ended are wrong, and"
            f" {wrong_others} of "
        )
        told += f"{len(others)} others: it may stand in the middle of an answer"
        left = [one for one in task.option("stop") or () if one != stop]
        yield about(task, "stop_string", told, (_stops(task, left),), shown, of=len(answers), p=p)


def _stops(task: TaskEvidence, left: list[str]) -> str:
    """JSON is YAML that can hold any string in one line."""
    return f"--set {shlex.quote(f'{task.name}.stop={json.dumps(left, ensure_ascii=False)}')}"


def empty(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Answers without any text, and what the server says of them."""
    shown = [one for one in task.texts if one.outcome == Outcome.EMPTY]
    if len(shown) < max(LEAST, ENOUGH_SHARE * len(task.texts)) or not matters(task, shown):
        return
    told = f"{len(shown)} of {len(task.texts)} answers have no text at all"
    finished = Counter(str(_response(one).finish_reason) for one in shown).most_common()
    told += f" (finish_reason {', '.join(f'{name} {count}' for name, count in finished)})"
    tokens = [_response(one).usage.completion_tokens for one in shown]
    typical = statistics.median(tokens)
    stopped = [one for one in shown if _response(one).stop_reason is not None]
    change: tuple[str, ...]
    if 2 * len(stopped) > len(shown):
        told += f"; {_describe_met(stopped)}"
        change = (f"--set {task.name}.stop=[]",)
    elif typical > FEW_TOKENS:
        told += (
            f"; {typical:g} tokens were generated for each (median): the server's parsers may have"
            " taken them"
        )
        change = (
            "trtllm-serve without --reasoning_parser and --tool_parser",
            f"--set {task.name}.thinking=off",
        )
    else:
        told += f"; {typical:g} tokens were generated for each (median): the model ended at once"
        other_way = "false" if task.option("apply_chat_template") else "true"
        change = (f"--set {task.name}.apply_chat_template={other_way}", "serve-eval smoke URL")
    yield about(task, "empty", told, change, shown, of=len(task.texts))


def _describe_met(shown: Sequence[AskedSample]) -> str:
    met = Counter(repr(stop) for one in shown if (stop := _response(one).stop_reason)).most_common()
    return f"the stop string was {', '.join(f'{stop} ({count})' for stop, count in met)}"


def _response(one: AskedSample) -> Response:
    assert one.response is not None  # of a scored sample
    return one.response
