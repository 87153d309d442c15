"""Apply rules about answers that end too early, or in a way of the server's own.

They end at max_tokens, at a stop string, within the reasoning, or immediately.
"""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from serve_eval.evaluation.results.examples import name_target
from serve_eval.schema import Cut, Outcome, Response, SamplingParams, find_cut, is_mutable
from serve_eval.shell_words import quote_word
from serve_eval.workflows.diagnose.evidence import FEW_TOKENS, Evidence, TaskEvidence
from serve_eval.workflows.diagnose.finding import LEAST, AskedSample, Finding, about, matters, worse

MISFILED_SHARE = 0.5
"""Share of the answers that ended with reasoning alone from which they are called misfiled."""


def find_misfiled(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield a finding if answers arrived as reasoning, which holds what was expected."""
    shown = list_misfiled(task)
    if not shown or not matters(task, shown):
        return
    held = sum(_holds_answer(task, one) for one in shown)
    told = (
        f"{len(shown)} of {len(task.texts)} answers arrived as reasoning and score 0: they ended of"
        f" themselves without a text, and the reasoning of {held} holds the expected answer, so the"
        " server's reasoning parser does not fit the model or the request"
    )
    change = ("trtllm-serve ... --reasoning_parser NAME (or none)", "serve-eval smoke URL")
    yield about(task, "misfiled", told, change, shown, of=len(task.texts))


def list_misfiled(task: TaskEvidence) -> list[AskedSample]:
    """Return the answers that a server took for reasoning; empty if the model may be to blame.

    Thoughts that a stop string ended may hold the expected answer by chance.
    """
    ended = [one for one in task.texts if _is_all_reasoning(one)]
    if task.option("stop"):
        return [one for one in ended if _ends_with_answer(task, one)]
    held = [one for one in ended if _holds_answer(task, one)]
    return ended if held and len(held) >= MISFILED_SHARE * len(ended) else []


def _is_all_reasoning(one: AskedSample) -> bool:
    response = one.response
    return (
        response is not None
        and one.outcome == Outcome.REASONING_ONLY
        and response.finish_reason == "stop"
        and response.stop_reason is None
        and not response.thoughts_ended
    )


def _holds_answer(task: TaskEvidence, one: AskedSample) -> bool:
    assert one.response is not None
    thoughts = one.response.reasoning or ""
    expected = _list_expected(task, one)
    return bool(expected) and all(
        re.search(rf"(?<!\w){re.escape(text)}(?!\w)", thoughts, re.IGNORECASE) for text in expected
    )


def _ends_with_answer(task: TaskEvidence, one: AskedSample) -> bool:
    assert one.response is not None
    words = re.findall(r"\w+", (one.response.reasoning or "").casefold())
    expected = [re.findall(r"\w+", text.casefold()) for text in _list_expected(task, one)]
    return any(bool(text) and words[-len(text) :] == text for text in expected)


def _list_expected(task: TaskEvidence, one: AskedSample) -> list[str]:
    """Return the texts that a right answer holds; a user's own case can have several."""
    assert one.line is not None
    target = one.line.target
    if is_mutable(task.name) and target.startswith("{"):
        return list(filter(None, _list_leaves(msgspec.json.decode(target)["expected"])))
    return list(filter(None, [name_target(target)]))


def _list_leaves(value: object) -> Iterator[str]:
    """Yield the texts and numbers in a JSON value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _list_leaves(part)
    elif value is not None and not isinstance(value, bool):
        yield str(value).strip()


def find_looping(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield a finding about answers that the server ended because they repeat themselves."""
    shown = [one for one in task.texts if one.response is not None and one.response.looping]
    if not matters(task, shown):
        return
    lost = sum(one.lost for one in shown)
    told = (
        f"{len(shown)} of {len(task.texts)} answers repeat themselves until the server ended them"
        f" (finish_reason repetition); {lost} of them are wrong"
    )
    change = (
        "serve-eval verify GOOD URL: weights, quantization or cache make loops",
        "temperature and repetition_penalty in the generation_config that is served",
    )
    yield about(task, "looping", told, change, shown, of=len(task.texts))


def find_unlisted(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield a finding about answers whose finish_reason is one of no known server."""
    listed = () if run.last.limits is None else run.last.limits.known_finish_reasons
    known = {reason.lower() for reason in listed}
    shown = [
        (one, str(one.response.finish_reason))
        for one in task.texts
        if one.response is not None
        and one.response.unlisted_finish
        and str(one.response.finish_reason).lower() not in known
    ]
    if not shown:
        return
    counts = Counter(reason for _, reason in shown).most_common()
    told = (
        f"{len(shown)} of {len(task.texts)} answers end with a finish_reason of no known server"
        f" ({', '.join(f'{reason!r} {count}' for reason, count in counts)}): they may have been cut"
    )
    change = tuple(
        f"--set limits.known_finish_reasons={quote_word(reason)}" for reason, _ in counts[:3]
    )
    yield about(
        task, "unlisted_finish", told, change, [one for one, _ in shown], of=len(task.texts)
    )


ENOUGH_SHARE = 0.01
"""Share of the answers from which empty ones are reported."""


def find_truncated(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield a finding if truncated answers are wrong more often than others.

    `find_unclosed_reasoning` covers those that never left the reasoning. Answers of one or two
    tokens are truncated by design.
    """
    if task.passes or task.max_tokens <= FEW_TOKENS:
        return
    answers = [one for one in task.texts if one.outcome != Outcome.REASONING_ONLY]
    cut = [one for one in answers if _response(one).truncated]
    others = [one for one in answers if not _response(one).truncated]
    if not matters(task, cut) or (p := worse(task, cut, others)) is None:
        return
    wrong, bad = sum(one.bad for one in answers), sum(one.bad for one in cut)
    told = f"{bad} of {wrong} wrong answers end at"
    beside = (
        f"{bad} of {len(cut)} truncated answers are wrong, compared with {wrong - bad} of"
        f" {len(others)} others"
    )
    by_window = [one for one in cut if _is_cut_by_window(one, task)]
    if 2 * len(by_window) > len(cut):
        longest = max(_response(one).usage.completion_tokens for one in by_window)
        told += f" the server's window{f' (at most {longest} tokens)' if longest else ''} before"
        told += f" max_tokens={task.max_tokens}: {beside}"
        change = (
            "trtllm-serve ... --max_seq_len N (prompt and answer together; vLLM --max-model-len)",
            *((f"--set {task.word}.num_fewshot=0",) if task.option("num_fewshot") else ()),
        )
    else:
        told += f" exactly max_tokens={task.max_tokens}: {beside}"
        change = (f"--set {task.word}.max_tokens={2 * task.max_tokens}",)
    if by_window and len(by_window) < len(cut):
        told += f"; the server's window cut {len(by_window)} of them"
    yield about(task, "truncated", told, change, cut, of=len(answers), p=p)


def _is_cut_by_window(one: AskedSample, task: TaskEvidence) -> bool:
    asked = SamplingParams(max_tokens=task.max_tokens)
    return find_cut(_response(one), Outcome.WRONG, asked) is Cut.WINDOW


def find_unclosed_reasoning(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield a finding about answers that contain only reasoning.

    The model was cut before it reached its answer, or never closed its reasoning.
    """
    misfiled = {one.id for one in list_misfiled(task)}
    shown = [
        one
        for one in task.texts
        if one.outcome == Outcome.REASONING_ONLY
        and not _response(one).stopped_in_reasoning
        and one.id not in misfiled
    ]
    if not matters(task, shown):
        return
    cut = sum(_response(one).truncated for one in shown)
    told = f"{len(shown)} of {len(task.texts)} answers contain only reasoning and score 0; "
    told += f"{cut} of them were truncated at max_tokens={task.max_tokens}"
    more, off = (
        f"--set {task.word}.max_tokens={4 * task.max_tokens}",
        f"--set {task.word}.thinking=off",
    )
    change = (
        (more, off) if 2 * cut > len(shown) else (off, "trtllm-serve ... --reasoning_parser NAME")
    )
    hidden = [_response(one).usage.reasoning_tokens or 0 for one in shown]
    if statistics.median(hidden) and not any(_response(one).reasoning for one in shown):
        told += f"; a median of {statistics.median(hidden):g} tokens went into thoughts that the"
        told += " server does not show"
        change = (more, off)
    yield about(task, "unclosed_reasoning", told, change, shown, of=len(task.texts))


def find_stopped_in_reasoning(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield a finding about answers that a stop string ended within the reasoning."""
    misfiled = {one.id for one in list_misfiled(task)}
    shown = [
        one for one in task.texts if _response(one).stopped_in_reasoning and one.id not in misfiled
    ]
    if not matters(task, shown):
        return
    stops = task.option("stop") or []
    told = (
        f"{len(shown)} of {len(task.texts)} answers end within the model's reasoning, although"
        " they were not truncated"
    )
    told += f"; {_describe_met(shown)}" if any(_response(one).stop_reason for one in shown) else ""
    change = (f"--set {task.word}.stop=[]",) if stops else (f"--set {task.word}.thinking=off",)
    yield about(task, "stopped_in_reasoning", told, change, shown, of=len(task.texts))


def stop_string(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield a finding for each stop string whose answers are wrong more often than others.

    The server has to report which stop string ended an answer.
    """
    if task.passes:
        return
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
            f"{wrong} of {len(shown)} answers that the stop string {stop!r} ended are wrong,"
            f" compared with {wrong_others} of "
        )
        told += f"{len(others)} others: the string may occur in the middle of an answer"
        left = [one for one in task.option("stop") or () if one != stop]
        yield about(
            task,
            "stop_string",
            told,
            (f"--set {quote_word(f'{task.name}.stop={json.dumps(left, ensure_ascii=False)}')}",),
            shown,
            of=len(answers),
            p=p,
        )


def empty(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield a finding about answers without any text, with what the server reports about them."""
    shown = [one for one in task.texts if one.outcome == Outcome.EMPTY]
    if len(shown) < max(LEAST, ENOUGH_SHARE * len(task.texts)) or not matters(task, shown):
        return
    told = f"{len(shown)} of {len(task.texts)} answers are empty"
    finished = Counter(str(_response(one).finish_reason) for one in shown).most_common()
    told += f" (finish_reason {', '.join(f'{name} {count}' for name, count in finished)})"
    tokens = [_response(one).usage.shown_tokens for one in shown]
    typical = statistics.median(tokens)
    stopped = [one for one in shown if _response(one).stop_reason is not None]
    change: tuple[str, ...]
    if 2 * len(stopped) > len(shown):
        told += f"; {_describe_met(stopped)}"
        change = (f"--set {task.word}.stop=[]",)
    elif typical > FEW_TOKENS:
        told += (
            f"; a median of {typical:g} tokens was generated: the server's parsers may have removed"
            " them"
        )
        change = (
            "trtllm-serve without --reasoning_parser and --tool_parser",
            f"--set {task.word}.thinking=off",
        )
    else:
        told += f"; a median of {typical:g} tokens was generated: the model stopped immediately"
        other_way = "false" if task.option("apply_chat_template") else "true"
        change = (f"--set {task.word}.apply_chat_template={other_way}", "serve-eval smoke URL")
    yield about(task, "empty", told, change, shown, of=len(task.texts))


def _describe_met(shown: Sequence[AskedSample]) -> str:
    met = Counter(repr(stop) for one in shown if (stop := _response(one).stop_reason)).most_common()
    return f"the stop string was {', '.join(f'{stop} ({count})' for stop, count in met)}"


def _response(one: AskedSample) -> Response:
    assert one.response is not None  # of a scored sample
    return one.response
