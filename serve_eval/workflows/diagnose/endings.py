"""Rules about answers that the server ended or filed in a way of its own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import msgspec

from serve_eval.evaluation.results.examples import name_target
from serve_eval.schema import Outcome, is_mutable
from serve_eval.shell_words import quote_word
from serve_eval.workflows.diagnose.asked import AskedSample
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence
from serve_eval.workflows.diagnose.finding import Finding, about, matters

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
        and response.finish_reason in ("stop", "stop_sequence", "eos_token")
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
