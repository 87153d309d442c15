"""Extract rows of LongBench from recorded prompts, and vary the recorded answers."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serve_eval.tasks import longbench_v1
from serve_eval.tasks.longbench_v1 import SETS

CONTEXT, QUESTION = "{{context}}", "{{question}}"
BEGINNINGS = {
    "trec": "Question:",
    "triviaqa": "Passage:",
    "samsum": "Dialogue:",
    "lsht": "新闻内容：",
}
"""First words of the question, for sets with worked examples of the same form before it."""
CAUSES = {
    "narrativeqa": "lm-eval, as its authors, asks to answer asconcisely, in one word",
    "qasper": "recorded with the prompt of hotpotqa",
    "triviaqa": "lm-eval has one line break before the question and not two",
    "samsum": "lm-eval has one line break before the question and not two, and no space at the end",
}
"""Reasons why a recorded prompt differs from lm-eval's.

In other sets only the white space at its end differs.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A row in LongBench's form, the recorded prompt, and the model's answer."""

    row: Mapping[str, Any]
    prompt: str
    answer: str


def recorded(folder: Path) -> dict[str, list[Recorded]]:
    """Return the rows of each set."""
    asked = longbench_v1.read(longbench_v1.find_installed(), tuple(SETS))
    return {
        name: [
            _row(name, _template(name, asked), found)
            for found in json.loads((folder / f"{name}.json").read_text(encoding="utf-8")).values()
        ]
        for name in SETS
    }


def write(folder: Path, rows: Mapping[str, Iterable[Recorded]]) -> None:
    """Write <set>/test.jsonl in LongBench's layout."""
    for name, found in rows.items():
        (folder / name).mkdir(parents=True)
        text = "".join(json.dumps(one.row, ensure_ascii=False) + "\n" for one in found)
        (folder / name / "test.jsonl").write_text(text, encoding="utf-8", newline="")


def _template(name: str, asked: Mapping[str, longbench_v1.LongBenchPrompt]) -> str:
    """Return the recorded prompt template of a set, without the white space at its end."""
    prompt = asked["hotpotqa" if name == "qasper" else name].prompt
    if name == "narrativeqa":
        prompt = prompt.replace("asconcisely", "as concisely")
    if name in ("triviaqa", "samsum"):
        prompt = prompt.replace(f"{CONTEXT}\n{QUESTION}", f"{CONTEXT}\n\n{QUESTION}")
    return prompt


def _row(name: str, template: str, found: Mapping[str, Any]) -> Recorded:
    prompt, gold = found["origin_prompt"], found["gold"]
    head, rest = template.split(CONTEXT)
    between, _, tail = rest.partition(QUESTION) if QUESTION in rest else ("", "", rest)
    body = prompt if not tail else prompt.rstrip()
    assert body.startswith(head), (name, body[:100])
    assert body.endswith(tail), (name, body[-100:])
    context, question = _parted(
        name, body[len(head) : len(body) - len(tail)], between, with_question=QUESTION in rest
    )
    answers, classes = (
        (gold["answers"], gold["all_classes"]) if isinstance(gold, dict) else (gold, None)
    )
    row = {"context": context, "question": question, "answers": answers, "all_classes": classes}
    return Recorded(row=row, prompt=prompt, answer=found["prediction"])


def _parted(name: str, text: str, between: str, *, with_question: bool) -> tuple[str, str]:
    """Return the context and the question, which comes last."""
    if not with_question:
        return text, ""
    if not between:  # code, which may be divided at any place
        place = text.rindex("\n", 0, -1) + 1
        return text[:place], text[place:]
    place = text.rindex(between + BEGINNINGS.get(name, ""))
    return text[:place], text[place + len(between) :]


PIECES = (
    "", "\n", "\n\n", " \n\t\n", ".", "...", "。", "，", "！？", "¤", "§", "the", "A", "an the a",
    "Paragraph 3", "段落3", "段落 3", "3", "0003", "1.5", "1,234", "１２", "٣", "½", "北京 天气 很好。", "是 yes",  # noqa: E501
    "# no", "// no", "`x`", "```python\nx = 1\n```", "İstanbul ﬁn ß", "\u200b", "\u2028", "\x85", "\r\n",  # noqa: E501
    "\x00", "e\u0301", "😀", "</s>",
)  # fmt: skip
"""Texts that are inserted into an answer or replace it."""
MARKS = str.maketrans(
    {".": "。", ",": "，", "。": ".", "，": ",", "!": "！", "?": "？", "：": ":", "(": "（"}
)


def mutated(
    text: str, golds: Sequence[str], classes: Sequence[str], rng: random.Random, most: int
) -> Iterator[str]:
    """Yield some thirty variants of an answer of at most `most` characters."""
    start = rng.randrange(max(1, len(text) - most))
    seen, gold = text[start : start + most], rng.choice(golds)[:most]
    here = rng.randrange(len(seen) + 1)
    words, parts = seen.split(" "), gold.split(" ")
    yield seen[:here]
    yield seen[here:]
    yield (seen[:here] + "\n") * 2
    yield seen.translate(MARKS)
    yield "".join(character for character in seen if character.isalnum() or character.isspace())
    yield seen.swapcase()
    yield "\n".join(words)
    yield "\n \n" + seen.replace("\n", "\n\n")
    yield seen + gold
    yield gold + seen
    yield gold
    yield f"  {gold}\n"
    yield gold.upper()
    yield gold.translate(MARKS)
    yield gold[: rng.randrange(len(gold) + 1)]
    yield gold[:here] + "x" + gold[here + 1 :]
    yield " ".join(rng.sample(parts, len(parts)))
    yield " ".join(part for part in parts if rng.random() < 0.7)
    yield ". ".join(parts)
    yield "".join(rng.sample(gold, len(gold)))
    yield " ".join(str(rng.randrange(40)) for _ in range(rng.randrange(6))) + f" {gold}"
    yield ", ".join(rng.sample(classes, min(3, len(classes)))) or "3, 4"
    yield " / ".join([*rng.sample(classes, min(2, len(classes))), gold])
    for _ in range(8):
        piece = rng.choice(PIECES)
        yield rng.choice((piece, seen[:here] + piece + seen[here:], gold + piece, piece + gold))
