"""Signs of the wrong kind of endpoint, or of a chat template that does not fit the model, in what
was said.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence
from serve_eval.workflows.diagnose.finding import Finding, about, matters, worse

MARKED_SHARE = 0.05
"""Share of the answers from which on marks of a template are told; a sound server leaves them out
of its texts."""
_MARK = re.compile(
    r"<\|[a-z_]{2,24}\|>|<\uff5c[^\uff5c>]{2,24}\uff5c>|\[/?INST\]|<</?SYS>>|</?(?:start|end)_of_turn>|</?s>|<bos>|<eos>"
)
_SAID_BY = re.compile(
    r"^\s*(?:user|assistant|human|system)\s*(?::|$)", re.IGNORECASE | re.MULTILINE
)
_NEXT = re.compile(r"\n\s*(?:Question|Problem|Q)\s*:")


def template_marks(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Answers hold marks that belong into a template: <|im_start|>, [INST], <start_of_turn>, ..."""
    answers = task.texts
    marked = [
        (one, found) for one in answers if one.response and (found := marks(one.response.text))
    ]
    if len(marked) < MARKED_SHARE * len(answers) or not matters(task, [one for one, _ in marked]):
        return
    which = Counter(mark for _, found in marked for mark in set(found)).most_common(3)
    told = f"{len(marked)} of {len(answers)} answers hold marks of a chat template, "
    told += ", ".join(f"{mark} ({count})" for mark, count in which)
    yield about(
        task,
        "template_marks",
        told + _reason(task),
        _other_way(task),
        [one for one, _ in marked],
        of=len(answers),
    )


def run_on(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Answers play the other side too, or go on with a next question, and are wrong more often than
    the others.
    """
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
    told = (
        f"{len(shown)} of {len(answers)} answers go on with a question or another speaker of their"
        " own: "
    )
    told += f"{sum(one.bad for one in shown)} of them are wrong, and {bad} of {len(others)} others"
    yield about(task, "run_on", told + _reason(task), _other_way(task), shown, of=len(answers), p=p)


def find_doubled_bos(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """The chat template was rendered on our side and the server was asked to add its special tokens
    again. Under suite_exact that is meant: the suite does so, and its references were taken so.
    """
    if not task.option("add_special_tokens") or task.option("suite_exact") or task.passes:
        return
    yield Finding(
        rule="doubled_bos",
        told=(
            "the chat template was rendered here, and add_special_tokens had the server add its"
            " first token again"
        ),
        change=(f"--set {task.name}.add_special_tokens=false",),
        count=len(task.asked),
        of=len(task.asked),
        lost=len(task.lost),
        task=task.name,
    )


def _chat(task: TaskEvidence) -> bool:
    return bool(task.option("apply_chat_template"))


def marks(text: str) -> list[str]:
    """What belongs into a template, of a text."""
    return _MARK.findall(text)


def goes_on(text: str, *, chat: bool) -> bool:
    """Whether a text plays the other side of a chat too, or, of a completion, goes on with a next
    question.
    """
    return _SAID_BY.search(text) is not None or (not chat and _NEXT.search(text) is not None)


def _reason(task: TaskEvidence) -> str:
    if task.option("chat_template"):
        return ": the template that was rendered here does not fit the model"
    if _chat(task):
        return (
            ": it was asked by chat, and the server's template does not fit the model, or the model"
            " is none for chats"
        )
    return ": it was asked by completions, and may be a model for chats"


def _other_way(task: TaskEvidence) -> tuple[str, ...]:
    if task.option("chat_template"):
        return (f"--set {task.name}.tokenizer=DIR of this very model",)
    if _chat(task):
        return (f"--set {task.name}.tokenizer=DIR", f"--set {task.name}.apply_chat_template=false")
    return (f"--set {task.name}.apply_chat_template=true",)
