"""Make rows with nested columns, for tasks whose own code unpacks them."""

from tests.oracle.made.generated import LETTERS

_KWARGS = (
    "keyword",
    "frequency",
    "relation",
    "keywords",
    "forbidden_words",
    "letter",
    "let_frequency",
    "let_relation",
)
_MORE_KWARGS = (
    "num_words",
    "num_placeholders",
    "postscript_marker",
    "num_bullets",
    "num_highlights",
    "end_phrase",
)
_INSTRUCTIONS = (
    ("keywords:existence", {"keywords": ["pear", "sky"]}, "A pear falls from the sky."),
    (
        "keywords:frequency",
        {"keyword": "pear", "frequency": 2, "relation": "at least"},
        "Pear, pear and a pear.",
    ),
    ("keywords:forbidden_words", {"forbidden_words": ["know", "well"]}, "Nothing of the kind."),
    (
        "keywords:letter_frequency",
        {"letter": "e", "let_frequency": 3, "let_relation": "less than"},
        "Plain words fit.",
    ),
    (
        "length_constraints:number_words",
        {"num_words": 6, "relation": "at least"},
        "One two three four five six.",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "Dear [name] of [town]."),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.S."},
        "All is fine.\nP.S. It is late.",
    ),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* one\n* two"),
    (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 1},
        "It is *bright* here.",
    ),
    ("detectable_format:title", {}, "<<A title>>\nSome text."),
    ("detectable_format:json_format", {}, '{"a": 1}'),
    ("startend:end_checker", {"end_phrase": "That is all."}, "So it goes.\nThat is all."),
    ("punctuation:no_comma", {}, "No such sign is here."),
    ("startend:quotation", {}, '"It is said."'),
)


def ifeval(d):
    """Return a row with one or two instructions.

    Instructions that need language detection, which draws at random, are left out.
    """
    chosen = d.rng.sample(_INSTRUCTIONS, d.number(1, 2))
    d.right("\n".join(text for _, _, text in chosen))
    none = dict.fromkeys((*_KWARGS, *_MORE_KWARGS))
    return {
        "key": int(d.code[1:]),
        "prompt": f"Write about {d.code} as {d.phrase()} does.",
        "instruction_id_list": [name for name, _, _ in chosen],
        "kwargs": [{**none, **kwargs} for _, kwargs, _ in chosen],
    }


def drop(d):
    """Return a row whose answer is a number, a date or some spans, with answers of others."""
    answers = [_drop_answer(d) for _ in range(3)]
    first = answers[0]
    d.right(first["number"] or " ".join(first["spans"]) or " ".join(first["date"].values()).strip())
    return {
        "section_id": "",
        "query_id": d.code,
        "passage": d.sentence(),
        "question": d.question(),
        "answer": first,
        "validated_answers": {
            key: [one[key] for one in answers[1:]] for key in ("number", "date", "spans")
        },
    }


def _drop_answer(d):
    date = {"day": "", "month": "", "year": ""}
    kind = d.number(0, 2)
    if kind == 0:
        return {"number": str(d.number(1, 99)), "date": date, "spans": []}
    if kind == 1:
        return {
            "number": "",
            "date": {**date, "month": d.name(), "year": str(d.number(1900, 1999))},
            "spans": [],
        }
    return {"number": "", "date": date, "spans": [d.phrase() for _ in range(d.number(1, 2))]}


def qasper(d):
    """Return a paper with questions of every kind; the tasks keep those that they use."""
    said = d.phrase()
    d.right(f"{said} {d.word()}")
    blobs = [
        {"unanswerable": False, "yes_no": True, "free_form_answer": "", "extractive_spans": []},
        {"unanswerable": False, "yes_no": False, "free_form_answer": "", "extractive_spans": []},
        {"unanswerable": False, "yes_no": None, "free_form_answer": said, "extractive_spans": []},
        {
            "unanswerable": False,
            "yes_no": None,
            "free_form_answer": "",
            "extractive_spans": [d.word(), d.word()],
        },
        {"unanswerable": True, "yes_no": None, "free_form_answer": "", "extractive_spans": []},
    ]
    d.rng.shuffle(blobs)
    questions = [d.question() for _ in blobs]
    return {
        "id": d.code,
        "title": d.phrase(),
        "abstract": d.sentence(),
        "qas": {"question": questions, "answers": [{"answer": [blob]} for blob in blobs]},
    }


def prescription(d):
    """Return a row whose one column is a literal.

    Some rows have no diagnosis; the task leaves them out.
    """
    medicines = [
        {
            "medicine_name": d.name(),
            "medicine_frequency": "Once a day",
            "course_duration": f"{d.number(2, 9)} days",
        }
        for _ in range(d.number(1, 3))
    ]
    told = (
        {"procedure": {"chief_complaints_diagnosis": d.phrase()}}
        if d.number(0, 4)
        else {"other": ""}
    )
    return {"results": repr({**told, "medicine_details": medicines})}


def metabench_arc(d):
    """Return a row with its 25 worked examples in columns."""
    row = {
        "question": d.question(),
        **_choices(d, ""),
        "answerKey": d.pick(*"ABCD"),
        "alltwentyfiveshot_longprompt": "",
    }
    for i in range(1, 26):
        row |= {
            f"arc_question_shot_{i}": f"Is {d.word()}?",
            f"arc_answerKey_shot_{i}": d.pick(*"ABCD"),
        }
        row |= {f"arc_choices_shot_{i}": _choices(d, "")["choices"], f"arc_idx_shot_{i}": i}
    return row


def _choices(d, end):
    return {
        "choices": {
            "label": list("ABCD"),
            "text": [f"{letter} {d.word()}{end}" for letter in LETTERS[:4]],
        }
    }


def metabench_mmlu(d):
    """Return a row with its five worked examples in columns."""
    row = {
        "question": d.question(),
        "subject": "high_school_biology",
        "choices": _choices(d, "")["choices"]["text"],
        "answer": d.number(0, 3),
        "allfiveshot_longprompt": "",
    }
    for i in range(1, 6):
        row |= {
            f"mmlu_question_shot_{i}": f" Is {d.word()}? ",
            f"mmlu_answers_shot_{i}": d.number(0, 3),
        }
        row |= {
            f"mmlu_choices_shot_{i}": _choices(d, "")["choices"]["text"],
            f"mmlu_ind_shot_{i}": i,
        }
    return row


def bbq(d):
    """Return a row of three categories, so that the figures of the others are not numbers."""
    one, two = d.name(), d.name()
    groups = d.rng.sample(["old", "nonOld"], 2)
    return {
        "example_id": int(d.code[1:]),
        "question_index": "1",
        "question_polarity": d.pick("neg", "nonneg"),
        "context_condition": d.pick("ambig", "disambig"),
        "category": d.pick("Age", "Religion", "SES"),
        "answer_info": {
            "ans0": [one, groups[0]],
            "ans1": [two, groups[1]],
            "ans2": ["unknown", "unknown"],
        },
        "additional_metadata": {
            "subcategory": "",
            "stereotyped_groups": ["old"],
            "version": "",
            "source": "",
        },
        "context": d.sentence(),
        "question": d.question(),
        "ans0": one,
        "ans1": two,
        "ans2": "Not known",
        "label": d.number(0, 2),
    }
