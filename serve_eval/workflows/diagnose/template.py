"""Rules that detect the wrong kind of endpoint or chat template in the answers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence
from serve_eval.workflows.diagnose.finding import Finding, about, matters, worse

MARKED_SHARE = 0.05
"""Share of the answers from which template marks are reported. A healthy server leaves them out of
its texts."""
_MARK = re.compile(
    r"<\|[a-z_]{2,24}\|>|<\uff5c[^\uff5c>]{2,24}\uff5c>|\[/?INST\]|<</?SYS>>|</?(?:start|end)_of_turn>|</?s>|<bos>|<eos>"
)
END_SHARE, LEAST_ENDED = 0.01, 3
"""Share and number of the answers from which repeated end tokens are reported."""
_END = re.compile(
    r"<\|(?:im_end|endoftext|eot_id|end_of_text|end)\|>|<\uff5cend.of.sentence\uff5c>|<end_of_turn>|</s>|<eos>"
)
_SAID_BY = re.compile(
    r"^\s*(?:user|assistant|human|system)\s*(?::|$)", re.IGNORECASE | re.MULTILINE
)
_NEXT = re.compile(r"\n\s*(?:Question|Problem|Q)\s*:")
_NEXT_BEHIND = re.compile(r"(?:####|[Aa]nswer is|\\boxed\{)[^\n]*\n\s*(?:Question|Problem|Q)\s*:")


def template_marks(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield a finding if answers contain template marks, such as <|im_start|> or [INST]."""
    answers = task.texts
    marked = [
        (one, found) for one in answers if one.response and (found := marks(one.response.text))
    ]
    if len(marked) < MARKED_SHARE * len(answers) or not matters(task, [one for one, _ in marked]):
        return
    which = Counter(mark for _, found in marked for mark in set(found)).most_common(3)
    told = f"{len(marked)} of {len(answers)} answers contain marks of a chat template, "
    told += ", ".join(f"{mark} ({count})" for mark, count in which)
    yield about(
        task,
        "template_marks",
        told + _reason(task),
        _other_way(task),
        [one for one, _ in marked],
        of=len(answers),
    )


def find_end_tokens(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield a finding if answers contain several end tokens.

    A server ends an answer at the first one (MLPerf's test TEST06 allows one).
    """
    answers = task.texts
    shown = [one for one in answers if one.response and has_several_ends(one.response.text)]
    if len(shown) < max(LEAST_ENDED, END_SHARE * len(answers)):
        return
    told = f"{len(shown)} of {len(answers)} answers contain several end tokens: generation goes on"
    change = (
        "eos_token_id in the generation_config that is served",
        "requests without ignore_eos and min_tokens",
    )
    yield about(task, "end_tokens", f"{told} behind the first", change, shown, of=len(answers))


def run_on(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield a finding if answers continue past their end and are wrong more often than others.

    They add a turn of another speaker, or the next question.
    """
    if task.passes:
        return
    answers = task.texts
    shown = [
        one
        for one in answers
        if one.response and goes_on(one.response.text, chat=bool(_chat(task)))
    ]
    named = {one.id for one in shown}
    others = [one for one in answers if one.id not in named]
    if not matters(task, shown) or (p := worse(task, shown, others)) is None:
        return
    bad = sum(one.bad for one in others)
    told = f"{len(shown)} of {len(answers)} answers continue with an invented question or speaker: "
    told += (
        f"{sum(one.bad for one in shown)} of them are wrong, compared with {bad} of"
        f" {len(others)} others"
    )
    yield about(task, "run_on", told + _reason(task), _other_way(task), shown, of=len(answers), p=p)


def find_doubled_bos(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield a finding if the client rendered the template and the server added special tokens too.

    Under suite_exact this is intended: the suite does it, and its references were measured that
    way.
    """
    if not task.option("add_special_tokens") or task.option("suite_exact") or task.passes:
        return
    yield Finding(
        rule="doubled_bos",
        told=(
            "serve-eval rendered the chat template, and add_special_tokens made the server add the"
            " first token again"
        ),
        change=(f"--set {task.word}.add_special_tokens=false",),
        count=len(task.asked),
        of=len(task.asked),
        lost=len(task.lost),
        task=task.name,
    )


def _chat(task: TaskEvidence) -> bool:
    return bool(task.option("apply_chat_template"))


def marks(text: str) -> list[str]:
    """Return the template marks in a text."""
    return _MARK.findall(text)


def has_several_ends(text: str) -> bool:
    """Return True if a text contains several end tokens."""
    return len(_END.findall(text)) > 1


def goes_on(text: str, *, chat: bool) -> bool:
    """Return True if a text continues with another speaker or a new question.

    In a chat, a question counts only behind a stated answer: an answer may have such a heading.
    """
    following = _NEXT_BEHIND if chat else _NEXT
    return _SAID_BY.search(text) is not None or following.search(text) is not None


def _reason(task: TaskEvidence) -> str:
    if task.option("chat_template"):
        return ": the template that serve-eval rendered does not fit the model"
    if _chat(task):
        return (
            ": the requests used chat; the server's template does not fit the model, or the model"
            " is not a chat model"
        )
    return ": the requests used completions; the model may be a chat model"


def _other_way(task: TaskEvidence) -> tuple[str, ...]:
    if task.option("chat_template"):
        return (f"--set {task.word}.tokenizer=DIR of exactly this model",)
    if _chat(task):
        return (f"--set {task.word}.tokenizer=DIR", f"--set {task.word}.apply_chat_template=false")
    return (f"--set {task.word}.apply_chat_template=true",)
