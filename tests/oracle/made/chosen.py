"""Make rows for tasks that choose by likelihood or measure it."""


def blimp(d):
    said = d.sentence()
    return {"sentence_good": said, "sentence_bad": " ".join(reversed(said.split())), "UID": d.code}


def multiblimp(d):
    row = blimp(d)
    return {"sen": row["sentence_good"], "wrong_sen": row["sentence_bad"]}


def hellaswag(d):
    endings = [f"{d.sentence()} [step] {d.word()}  {d.word()}" for _ in range(4)]
    return {
        "activity_label": d.word().capitalize(),
        "ctx_a": f"{d.sentence()} [title] {d.word()}",
        "ctx_b": d.phrase(),
        "ctx": "",
        "endings": endings,
        "label": str(d.number(0, 3)),
    }


def arc(d):
    labels = list("1234" if d.number(0, 3) == 0 else "ABCD")
    choices = {"text": [d.phrase() for _ in labels], "label": labels}
    return {
        "id": d.code,
        "question": d.question(),
        "choices": choices,
        "answerKey": d.pick(*labels),
    }


def piqa(d):
    return {
        "goal": d.question(),
        "sol1": d.sentence(),
        "sol2": d.sentence(),
        "label": d.number(0, 1),
    }


def global_piqa(d):
    texts = {f"solution{i}": f"{d.phrase()} ä{'東' * d.number(0, 3)}" for i in range(4)}
    return {"prompt": d.sentence(), **texts, "label": d.number(0, 3)}


def winogrande(d):
    one, two = d.name(), d.name()
    said = f"{one} asked {two} about the {d.word()} because _ had lost the {d.word()}."
    return {"sentence": said, "option1": one, "option2": two, "answer": d.pick("1", "2")}


def wsc273(d):
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


def boolq(d):
    return {
        "passage": d.sentence(),
        "question": f"is it {d.word()}",
        "label": d.number(0, 1),
        "idx": d.number(0, 99),
    }


def targets(d):
    one = {"choices": [d.sentence() for _ in range(4)], "labels": [1, 0, 0, 0]}
    two = {"choices": [d.sentence() for _ in range(5)], "labels": [1, 1, 0, 0, 0]}
    return {"question": d.question(), "mc1_targets": one, "mc2_targets": two}


def race(d):
    problems = [
        {
            "question": d.pick(f"It is   {d.word()}  _  .", d.question()),
            "answer": d.pick(*"ABCD"),
            "options": [d.phrase() for _ in range(4)],
        }
        for _ in range(d.number(1, 3))
    ]
    return {"article": d.sentence(), "problems": repr(problems)}


def copa(d):
    said = {"premise": d.sentence(), "choice1": d.sentence(), "choice2": d.sentence()}
    return {**said, "question": d.pick("cause", "effect"), "label": d.number(0, 1), "idx": 0}


def xcopa(d):
    return {
        **copa(d),
        "premise": f"{d.word()}之东西。",
        "choice1": f"北京{d.word()}很好。",
        "choice2": f"东京{d.word()}。",
    }


def cb(d):
    return {"premise": d.sentence(), "hypothesis": d.phrase(), "label": d.number(0, 2), "idx": 0}


def wsc(d):
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


def belebele(d):
    answers = {f"mc_answer{i}": f"{d.phrase()} été" for i in (1, 2, 3, 4)}
    said = {"flores_passage": d.sentence(), "question": d.question()}
    return {**said, **answers, "correct_answer_num": d.pick(*"1234")}


def headqa(d):
    answers = [{"aid": i, "atext": d.phrase()} for i in range(1, 5)]
    return {"qtext": d.question(), "answers": answers, "ra": d.number(1, 4)}


def toxigen(d):
    return {
        "text": d.sentence(),
        "toxicity_ai": d.number(1, 5),
        "toxicity_human": d.number(1, 5) + 0.5,
    }


def medmcqa(d):
    return {
        "question": d.question(),
        **{f"op{x}": d.phrase() for x in "abcd"},
        "cop": d.number(0, 3),
    }


def pubmedqa(d):
    said = [d.sentence(), d.sentence()]
    return {
        "QUESTION": d.question(),
        "CONTEXTS": said,
        "final_decision": d.pick("yes", "no", "maybe"),
    }


def ethics_cm(d):
    return {"label": d.number(0, 1), "input": d.sentence(), "is_short": True}


def utilitarianism(d):
    return {"activity": d.sentence(), "baseline": d.sentence()}


def med_text(d):
    return {"text": d.sentence(), "class": d.number(1, 5)}


def sciq(d):
    wrong = {f"distractor{i}": f"{d.phrase()} خطأ" for i in (1, 2, 3)}
    return {
        "question": d.question(),
        "support": d.sentence(),
        "correct_answer": f"{d.phrase()} صحيح",
        **wrong,
    }


def cola(d):
    return {"sentence": d.sentence(), "label": d.number(0, 1), "idx": 0}


def mrpc(d):
    return {"sentence1": d.sentence(), "sentence2": d.sentence(), "label": d.number(0, 1), "idx": 0}


def mutual(d):
    options = [f"m : {d.phrase()} ." for _ in range(4)]
    return {
        "answers": d.pick(*"ABCD"),
        "options": options,
        "article": f"f : {d.sentence()} !",
        "id": d.code,
    }


def crows(d):
    return {
        "sent_more": d.sentence(),
        "sent_less": d.sentence(),
        "bias_type": d.pick("age", "gender"),
    }


def webqs(d):
    names = [d.name()[: d.number(1, 4)] for _ in range(d.number(2, 4))]
    return {"url": "", "question": d.question(), "answers": [*names, f"{names[0]} {d.word()}"]}


def logiqa(d):
    options = [d.phrase() for _ in range(4)]
    return {
        "label": d.pick(*"abcd"),
        "context": d.sentence(),
        "question": d.question(),
        "options": options,
    }


def anli(d):
    return {
        "premise": d.sentence(),
        "hypothesis": d.sentence(),
        "label": d.number(0, 2),
        "reason": "",
    }


def commonsense(d):
    choices = {"label": list("ABCDE"), "text": [d.word() for _ in range(5)]}
    return {
        "question": d.question(),
        "question_concept": "",
        "choices": choices,
        "answerKey": d.pick(*"ABCDE"),
    }


def lambada(d):
    return {
        "text": f"{d.sentence()} {d.sentence()} Then came {d.pick('a', 'an', d.word()[:3])}",
        "domain": None,
    }


def lambada_de(d):
    return {"text": f"{d.sentence()} Über {d.word()} kam ö{d.word()[:2]}"}


def arithmetic(d):
    a, b = d.number(10, 99), d.number(10, 99)
    return {"context": f"Q: What is {a} plus {b}?\n\nA:", "completion": f" {a + b}"}


def text(d):
    said = "  ".join(d.sentence() for _ in range(d.number(1, 4)))
    return {
        "text": f"{d.pick('', ' ', chr(10), 'É')}{said}{d.pick('', chr(10), ' 北京 🙂', ' ')}",
        "meta": {},
    }


def page(d):
    said = " , ".join(d.sentence() for _ in range(d.number(1, 3)))
    return {"page": f" \n = {d.word()} = \n \n {said} ( {d.word()} ) @-@ {d.word()} 's N \n"}
