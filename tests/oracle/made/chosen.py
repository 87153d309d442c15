"""Make rows for tasks that choose by likelihood or measure it."""

from __future__ import annotations

from typing import Any

from tests.oracle.made.drawn import Drawn


def blimp(d: Drawn) -> dict[str, Any]:
    said = d.sentence()
    return {"sentence_good": said, "sentence_bad": " ".join(reversed(said.split())), "UID": d.code}


def multiblimp(d: Drawn) -> dict[str, Any]:
    row = blimp(d)
    return {"sen": row["sentence_good"], "wrong_sen": row["sentence_bad"]}


def hellaswag(d: Drawn) -> dict[str, Any]:
    endings = [f"{d.sentence()} [step] {d.word()}  {d.word()}" for _ in range(4)]
    return {
        "activity_label": d.word().capitalize(),
        "ctx_a": f"{d.sentence()} [title] {d.word()}",
        "ctx_b": d.phrase(),
        "ctx": "",
        "endings": endings,
        "label": str(d.number(0, 3)),
    }


def arc(d: Drawn) -> dict[str, Any]:
    labels = list("1234" if d.number(0, 3) == 0 else "ABCD")
    choices = {"text": [d.phrase() for _ in labels], "label": labels}
    return {
        "id": d.code,
        "question": d.question(),
        "choices": choices,
        "answerKey": d.pick(*labels),
    }


def piqa(d: Drawn) -> dict[str, Any]:
    return {
        "goal": d.question(),
        "sol1": d.sentence(),
        "sol2": d.sentence(),
        "label": d.number(0, 1),
    }


def global_piqa(d: Drawn) -> dict[str, Any]:
    texts = {f"solution{i}": f"{d.phrase()} ä{'東' * d.number(0, 3)}" for i in range(4)}
    return {"prompt": d.sentence(), **texts, "label": d.number(0, 3)}


def winogrande(d: Drawn) -> dict[str, Any]:
    one, two = d.name(), d.name()
    said = f"{one} asked {two} about the {d.word()} because _ had lost the {d.word()}."
    return {"sentence": said, "option1": one, "option2": two, "answer": d.pick("1", "2")}


def wsc273(d: Drawn) -> dict[str, Any]:
    start = f"The {d.word()} was behind the {d.word()} so "
    return {
        "text": f"{start}it  fell on the {d.word()}.",
        "pronoun": "it",
        "pronoun_loc": len(start),
        "quote": "it fell",
        "quote_loc": len(start),
        "options": [f"The {d.word()}", f"The {d.word()}"],
        "label": d.number(0, 1),
        "source": "made",
    }


def boolq(d: Drawn) -> dict[str, Any]:
    return {
        "passage": d.sentence(),
        "question": f"is it {d.word()}",
        "label": d.number(0, 1),
        "idx": d.number(0, 99),
    }


def targets(d: Drawn) -> dict[str, Any]:
    one = {"choices": [d.sentence() for _ in range(4)], "labels": [1, 0, 0, 0]}
    two = {"choices": [d.sentence() for _ in range(5)], "labels": [1, 1, 0, 0, 0]}
    return {"question": d.question(), "mc1_targets": one, "mc2_targets": two}


def race(d: Drawn) -> dict[str, Any]:
    problems = [
        {
            "question": d.pick(f"It is   {d.word()}  _  .", d.question()),
            "answer": d.pick(*"ABCD"),
            "options": [d.phrase() for _ in range(4)],
        }
        for _ in range(d.number(1, 3))
    ]
    return {"article": d.sentence(), "problems": repr(problems)}


def copa(d: Drawn) -> dict[str, Any]:
    said = {"premise": d.sentence(), "choice1": d.sentence(), "choice2": d.sentence()}
    return {**said, "question": d.pick("cause", "effect"), "label": d.number(0, 1), "idx": 0}


def xcopa(d: Drawn) -> dict[str, Any]:
    return {
        **copa(d),
        "premise": f"{d.word()}之东西。",
        "choice1": f"北京{d.word()}很好。",
        "choice2": f"东京{d.word()}。",
    }


def cb(d: Drawn) -> dict[str, Any]:
    return {"premise": d.sentence(), "hypothesis": d.phrase(), "label": d.number(0, 2), "idx": 0}


def wsc(d: Drawn) -> dict[str, Any]:
    words = d.sentence().split()
    place = d.number(1, len(words) - 2)
    return {
        "text": " ".join(words),
        "span1_text": words[0],
        "span1_index": 0,
        "span2_text": words[place],
        "span2_index": place,
        "label": d.number(0, 1),
        "idx": 0,
    }


def belebele(d: Drawn) -> dict[str, Any]:
    answers = {f"mc_answer{i}": f"{d.phrase()} été" for i in (1, 2, 3, 4)}
    said = {"flores_passage": d.sentence(), "question": d.question()}
    return {**said, **answers, "correct_answer_num": d.pick(*"1234")}


def headqa(d: Drawn) -> dict[str, Any]:
    answers = [{"aid": i, "atext": d.phrase()} for i in range(1, 5)]
    return {"qtext": d.question(), "answers": answers, "ra": d.number(1, 4)}


def toxigen(d: Drawn) -> dict[str, Any]:
    return {
        "text": d.sentence(),
        "toxicity_ai": d.number(1, 5),
        "toxicity_human": d.number(1, 5) + 0.5,
    }


def medmcqa(d: Drawn) -> dict[str, Any]:
    return {
        "question": d.question(),
        **{f"op{x}": d.phrase() for x in "abcd"},
        "cop": d.number(0, 3),
    }


def pubmedqa(d: Drawn) -> dict[str, Any]:
    said = [d.sentence(), d.sentence()]
    return {
        "QUESTION": d.question(),
        "CONTEXTS": said,
        "final_decision": d.pick("yes", "no", "maybe"),
    }


def ethics_cm(d: Drawn) -> dict[str, Any]:
    return {"label": d.number(0, 1), "input": d.sentence(), "is_short": True}


def utilitarianism(d: Drawn) -> dict[str, Any]:
    return {"activity": d.sentence(), "baseline": d.sentence()}


def med_text(d: Drawn) -> dict[str, Any]:
    return {"text": d.sentence(), "class": d.number(1, 5)}


def sciq(d: Drawn) -> dict[str, Any]:
    wrong = {f"distractor{i}": f"{d.phrase()} خطأ" for i in (1, 2, 3)}
    return {
        "question": d.question(),
        "support": d.sentence(),
        "correct_answer": f"{d.phrase()} صحيح",
        **wrong,
    }


def cola(d: Drawn) -> dict[str, Any]:
    return {"sentence": d.sentence(), "label": d.number(0, 1), "idx": 0}


def mrpc(d: Drawn) -> dict[str, Any]:
    return {"sentence1": d.sentence(), "sentence2": d.sentence(), "label": d.number(0, 1), "idx": 0}


def mutual(d: Drawn) -> dict[str, Any]:
    options = [f"m : {d.phrase()} ." for _ in range(4)]
    return {
        "answers": d.pick(*"ABCD"),
        "options": options,
        "article": f"f : {d.sentence()} !",
        "id": d.code,
    }


def crows(d: Drawn) -> dict[str, Any]:
    return {
        "sent_more": d.sentence(),
        "sent_less": d.sentence(),
        "bias_type": d.pick("age", "gender"),
    }


def webqs(d: Drawn) -> dict[str, Any]:
    names = [d.name()[: d.number(1, 4)] for _ in range(d.number(2, 4))]
    return {"url": "", "question": d.question(), "answers": [*names, f"{names[0]} {d.word()}"]}


def logiqa(d: Drawn) -> dict[str, Any]:
    options = [d.phrase() for _ in range(4)]
    return {
        "label": d.pick(*"abcd"),
        "context": d.sentence(),
        "question": d.question(),
        "options": options,
    }


def anli(d: Drawn) -> dict[str, Any]:
    return {
        "premise": d.sentence(),
        "hypothesis": d.sentence(),
        "label": d.number(0, 2),
        "reason": "",
    }


def commonsense(d: Drawn) -> dict[str, Any]:
    choices = {"label": list("ABCDE"), "text": [d.word() for _ in range(5)]}
    return {
        "question": d.question(),
        "question_concept": "",
        "choices": choices,
        "answerKey": d.pick(*"ABCDE"),
    }


def lambada(d: Drawn) -> dict[str, Any]:
    return {
        "text": f"{d.sentence()} {d.sentence()} Then came {d.pick('a', 'an', d.word()[:3])}",
        "domain": None,
    }


def lambada_de(d: Drawn) -> dict[str, Any]:
    return {"text": f"{d.sentence()} Über {d.word()} kam ö{d.word()[:2]}"}


def arithmetic(d: Drawn) -> dict[str, Any]:
    a, b = d.number(10, 99), d.number(10, 99)
    return {"context": f"Q: What is {a} plus {b}?\n\nA:", "completion": f" {a + b}"}


def text(d: Drawn) -> dict[str, Any]:
    said = "  ".join(d.sentence() for _ in range(d.number(1, 4)))
    return {
        "text": f"{d.pick('', ' ', chr(10), 'É')}{said}{d.pick('', chr(10), ' 北京 🙂', ' ')}",
        "meta": {},
    }


def page(d: Drawn) -> dict[str, Any]:
    said = " , ".join(d.sentence() for _ in range(d.number(1, 3)))
    return {"page": f" \n = {d.word()} = \n \n {said} ( {d.word()} ) @-@ {d.word()} 's N \n"}
