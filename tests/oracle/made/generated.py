"""Draw random numbers, words and codes for made-up rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

LETTERS = "ABCDEFGHIJ"
_STARTS = ("ba", "do", "fe", "gu", "ki", "lo", "ma", "ne", "po", "ri", "sa", "tu", "ve", "wi", "zo")
_ENDS = ("dan", "fel", "gor", "lin", "mar", "nor", "pet", "ros", "sim", "ten", "vul")


@dataclass(slots=True, kw_only=True)
class Drawn:
    """A row under construction: its code, random numbers, and right answer once set."""

    code: str
    rng: random.Random
    gold: str | None = None

    def right(self, text):
        """Keep the right answer."""
        self.gold = text

    def number(self, least, most):
        """Return a number, both ends included."""
        return self.rng.randint(least, most)

    def pick(self, *options):
        """Return one of these."""
        return self.rng.choice(options)

    def word(self):
        """Return a word of two or three syllables."""
        return "".join(
            self.rng.choice(_STARTS) for _ in range(self.rng.randint(1, 2))
        ) + self.rng.choice(_ENDS)

    def name(self):
        """Return a name."""
        return self.word().capitalize()

    def phrase(self):
        """Return two to four words."""
        return " ".join(self.word() for _ in range(self.rng.randint(2, 4)))

    def sentence(self):
        """Return a sentence of about seven words."""
        return f"The {self.phrase()} was a {self.phrase()}."

    def question(self):
        """Return a question that holds the code."""
        return f"What of {self.code} is the {self.phrase()}?"


Row = Callable[[Drawn], Mapping[str, Any]]
"""Makes a row."""


def gpqa(d):
    d.right(f"The answer is {d.pick('(A)', '(B)', '(C)', '(D)')}.")
    wrong = {f"Incorrect Answer {i}": d.phrase() for i in (1, 2, 3)}
    return {"Question": d.question(), "Correct Answer": d.phrase() + "  [title]", **wrong}


def _sum(d, says):
    a, b = d.number(2, 90), d.number(2, 60)
    d.right(says.format(a + b))
    return f"{d.name()} of {d.code} has {a} pears and finds {b} more. How many are there?", a + b


def gsm8k(d):
    question, total = _sum(d, "They are {0} in all.\n#### {0}")
    return {"question": question, "answer": f"They are {total} in all.\n#### {total}"}


def gsm8k_cot(d):
    question, total = _sum(d, "So many. The answer is {}.")
    return {"question": question, "answer": f"So many.\n#### {total}"}


def mgsm(d):
    question, total = _sum(d, "{}")
    answer = None if d.code[3] == "1" else f"Schritt-für-Schritt-Antwort: es sind {total}."
    return {
        "question": question,
        "answer": answer,
        "answer_number": total,
        "equation_solution": None,
    }


def asdiv(d):
    question, total = _sum(d, "It adds up. The final answer is {}")
    body, _, asked = question.partition(". ")
    return {
        "body": f"{body}.",
        "question": asked,
        "answer": f"{total} (pears)",
        "formula": "",
        "solution_type": "",
    }


def math500(d):
    top, bottom = d.number(1, 9), d.number(2, 9)
    answer = d.pick(
        str(top), rf"\frac{{{top}}}{{{bottom}}}", f"{top}x+{bottom}", f"({top},{bottom})"
    )
    d.right(
        f"It is $\\boxed{{{answer}}}$.\nFinal Answer: The final answer is ${answer}$. I hope it is"
        " correct."
    )
    return {
        "problem": f"Find it for {d.code}.",
        "solution": f"So $\\boxed{{{answer}}}$.",
        "answer": answer,
        "subject": "Algebra",
        "level": 2,
        "unique_id": d.code,
    }


def hendrycks_math(d):
    row = math500(d)
    d.right(f"It is ${row['answer']}$")
    return {
        "problem": row["problem"],
        "solution": row["solution"],
        "level": "Level 2",
        "type": "Algebra",
    }


def aime(d):
    answer = d.number(0, 999)
    d.right(f"Then \\boxed{{{answer:03d}}} is it" if d.pick(True, False) else f"$x={answer}$")
    return {"ID": d.code, "Problem": d.question(), "Solution": d.sentence(), "Answer": answer}


def triviaqa(d):
    name = d.name()
    d.right(d.pick(name, name.upper(), f"{name}!"))
    aliases = [f"the {name}", name, f"{name} of {d.word()}"]
    return {
        "question": d.question(),
        "question_id": d.code,
        "answer": {
            "value": name,
            "aliases": aliases,
            "normalized_aliases": [a.lower() for a in aliases],
        },
    }


def nq_open(d):
    names = [d.name() for _ in range(d.number(1, 3))]
    d.right(d.pick(names[-1], f"the {names[0]}", f"{names[0]}, I think"))
    return {"question": f"who knew {d.word()} in {d.code}", "answer": names}


def truthful(d):
    true, false = [d.sentence() for _ in range(3)], [d.sentence() for _ in range(2)]
    d.right(true[1])
    return {
        "type": "Adversarial",
        "category": d.word(),
        "question": d.question(),
        "best_answer": true[0],
        "correct_answers": true,
        "incorrect_answers": [text.rstrip(".") for text in false],
        "source": "",
    }


def bbh(says, *targets):
    def row(d):
        target = d.pick(*targets) if targets else " ".join(sorted(d.word() for _ in range(3)))
        d.right(says.format(target))
        return {"input": d.question(), "target": target}

    return row


def mmlu(says):
    def row(d):
        gold = d.number(0, 3)
        d.right(says.format(LETTERS[gold]))
        return {
            "question": f" {d.question()} ",
            "choices": [d.phrase() for _ in range(4)],
            "answer": gold,
            "subject": d.pick("anatomy", "astronomy"),
        }

    return row


def mmlu_pro(d):
    gold = d.number(0, 7)
    d.right(f"Let's see. So the answer is ({LETTERS[gold]}).")
    return {
        "question": d.question(),
        "options": [d.phrase() for _ in range(8)],
        "answer": LETTERS[gold],
        "answer_index": gold,
        "cot_content": (
            f"A: Let's think step by step. {d.sentence()} The answer is ({LETTERS[gold]})."
        ),
        "category": d.pick("biology", "biology", "law"),
    }


def longbench(d):
    answers = [" ".join(d.word() for _ in range(4)), d.name()]
    d.right(f"{answers[0]} {d.word()}")
    return _long(d, answers, None)


def _long(d, answers, classes):
    return {
        "context": "\n".join(d.sentence() for _ in range(4)),
        "question": d.question(),
        "answers": answers,
        "all_classes": classes,
        "length": 40,
        "dataset": "made",
        "language": "en",
    }


def trec(d):
    classes = ["Colour", "Colour of a thing", "Food", "Number of things", "Place"]
    gold = d.pick(*classes)
    d.right(d.pick(gold, f"{gold} or {d.pick(*classes)}"))
    return _long(d, [gold], classes)


def passage_count(d):
    gold = d.number(2, 9)
    d.right(d.pick(f"{gold}", f"{gold} of {gold + 2}"))
    row = _long(d, [str(gold)], None)
    return {**row, "context": f"Paragraphs of {d.code}\n{row['context']}"}


def translation(d):
    words = [d.word() for _ in range(9)]
    said = " ".join(words).capitalize() + "."
    words[d.number(0, 8)] = d.word()
    d.right(" ".join(words).capitalize() + ".")
    return {"translation": {"ro": f"{d.code}: ăla {said[::-1]}", "en": said}}


def anagram(d):
    word = d.word()
    d.right(word)
    return {"context": f"Please unscramble ({d.code}) {word[::-1]}.", "completion": word}


def code2text(d):
    said = [d.word() for _ in range(7)]
    d.right(" ".join([*said[:5], d.word(), said[6]]))
    return {
        "code_tokens": ["def", d.word(), "(", ")", ":", "#", d.code],
        "docstring_tokens": [*said, "."],
    }


def babi(d):
    d.right(answer := d.word())
    return {"passage": f"{d.sentence()}\n", "question": d.question(), "answer": answer, "task": 1}


def votes(d):
    said = f"{d.name()} {d.word()} {d.word()} {d.word()}"
    d.right(d.pick(said, said.lower(), f"{said} {d.word()}"))
    return {"question": d.question(), "answer": said}
