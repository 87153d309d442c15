"""Write files of BFCL, IFEval and IFBench in their layouts, with rows of our own."""

import json
import math
import struct
import wave
import zipfile
from fractions import Fraction
from typing import Any

from serve_eval.tasks import ifbench, ifeval
from serve_eval.tasks._bfcl_rows import CATEGORIES
from serve_eval.tasks._ifbench_forms import FORMS
from serve_eval.tasks._ifbench_words import WORDS
from serve_eval.tasks.ifeval import IFEVAL

Answer = dict[str, dict[str, list[Any]]]

FUNCTIONS = [
    {
        "name": "shape.area",
        "description": "Compute the area of a shape.",
        "parameters": {
            "type": "dict",
            "properties": {
                "width": {"type": "integer", "description": "The width."},
                "height": {"type": "float", "description": "The height."},
                "unit": {"type": "string", "description": "The unit.", "default": "cm"},
            },
            "required": ["width", "height"],
        },
    },
    {
        "name": "paint",
        "description": "Paint places.",
        "parameters": {
            "type": "dict",
            "properties": {
                "places": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "The places.",
                },
                "at": {"type": "tuple", "items": {"type": "float"}, "description": "A point."},
                "style": {
                    "type": "dict",
                    "description": "The style.",
                    "properties": {
                        "glossy": {"type": "boolean", "description": "True if it shines."},
                        "strength": {"type": "float", "description": "How strong it is."},
                    },
                },
                "steps": {
                    "type": "array",
                    "items": {
                        "type": "dict",
                        "properties": {"tool": {"type": "any", "description": "A tool."}},
                    },
                    "description": "The steps.",
                },
            },
            "required": ["places"],
        },
    },
]
"""Functions with all the types of BFCL, as the files write them."""


JAVA = {
    "name": "Store.put",
    "description": "Put things into a store.",
    "parameters": {
        "type": "dict",
        "properties": {
            "store": {"type": "any", "description": "The store."},
            "number": {"type": "long", "description": "The number."},
            "names": {
                "type": "ArrayList",
                "items": {"type": "String"},
                "description": "The names.",
            },
            "flags": {"type": "HashMap", "description": "The flags."},
            "quick": {"type": "boolean", "description": "True if it is quick."},
        },
        "required": ["store", "number"],
    },
}
JAVASCRIPT = {
    "name": "drawLine",
    "description": "Draw a line.",
    "parameters": {
        "type": "dict",
        "properties": {
            "points": {
                "type": "array",
                "items": {"type": "float"},
                "description": "The points.",
            },
            "pen": {
                "type": "dict",
                "properties": {"colour": {"type": "String", "description": "Its colour."}},
                "description": "The pen.",
            },
            "closed": {"type": "Boolean", "description": "True if it ends where it began."},
            "done": {"type": "any", "description": "Called at the end."},
        },
        "required": ["points"],
    },
}


def right_java(i):
    """Return the expected call of the function in Java for the row with a number."""
    values = {
        "store": ["mainStore"],
        "number": [i],
        "names": [["a b", f"c{i}"]],
        "flags": [{"on": [True], "size": [2]}],
        "quick": [False],
    }
    return {"Store.put": values}


def right_javascript(i):
    """Return the expected call of the function in JavaScript for the row with a number."""
    values = {
        "points": [[1.5, float(i)]],
        "pen": [{"colour": ["red"]}],
        "closed": [True, ""],
        "done": ["onDone"],
    }
    return {"drawLine": values}


def right_area(i):
    """Return the expected call of the first function for the row with a number."""
    return {"shape.area": {"width": [i], "height": [2.5, i + 1], "unit": ["", "cm"]}}


def right_paint(i):
    """Return the expected call of the second function for the row with a number."""
    values = {
        "places": [["Oslo, Norway", f"Road {i}"]],
        "at": [[1.5, i], ""],
        "style": [{"glossy": [True], "strength": [0.5, ""]}],
        "steps": [[{"tool": ["brush", "roller"]}]],
    }
    return {"paint": values}


def row_of(category, i):
    """Return the question of a category with a number, and its answer (empty: it has none)."""
    multiple = "multiple" in category or category.endswith("relevance")
    answer = [right_area(i), right_paint(i)] if "multiple" in category else [right_area(i)]
    if "parallel" in category and not multiple:
        answer = [right_area(i), right_area(i + 7)]
    if category in ("multiple", "live_multiple"):
        answer = answer[i % 2 :][:1]
    functions = FUNCTIONS if multiple else FUNCTIONS[:1]
    if CATEGORIES[category].language == "java":
        functions, answer = [JAVA], [right_java(i)]
    elif CATEGORIES[category].language == "javascript":
        functions, answer = [JAVASCRIPT], [right_javascript(i)]
    turns = [{"role": "user", "content": f"Question {i} of {category}."}]
    if category.startswith("live") and i % 5 == 0:
        turns.insert(0, {"role": "system", "content": "You are brief."})
    row = {
        "id": f"{category}_{i}" + (f"-{i}-0" if category.startswith("live") else ""),
        "question": [turns],
        "function": functions,
    }
    return row, answer if CATEGORIES[category].wanted == "calls" else []


def write_bfcl(folder, rows=None):
    """Write the files of all categories, or of some with their numbers of rows."""
    counts = rows or {name: category.rows for name, category in CATEGORIES.items()}
    (folder / "possible_answer").mkdir(parents=True, exist_ok=True)
    for name, count in counts.items():
        made = [row_of(name, i) for i in range(count)]
        (folder / f"BFCL_v4_{name}.json").write_text(
            "\n".join(json.dumps(row) for row, _ in made), encoding="utf-8"
        )
        if CATEGORIES[name].wanted == "calls":
            answers = [{"id": row["id"], "ground_truth": answer} for row, answer in made]
            (folder / f"possible_answer/BFCL_v4_{name}.json").write_text(
                "\n".join(map(json.dumps, answers)), encoding="utf-8"
            )


REQUEST = "Describe the river, the stone and the bridge in plain words."

IFEVAL_ARGUMENTS = {
    "keywords:existence": {"keywords": ["river", "stone"]},
    "keywords:frequency": {"keyword": "river", "frequency": 3, "relation": "at least"},
    "keywords:forbidden_words": {"forbidden_words": ["never", "no"]},
    "keywords:letter_frequency": {"letter": "q", "let_frequency": 2, "let_relation": "at least"},
    "language:response_language": {"language": "en"},
    "length_constraints:number_sentences": {"num_sentences": 4, "relation": "at least"},
    "length_constraints:number_words": {"num_words": 30, "relation": "at least"},
    "length_constraints:number_paragraphs": {"num_paragraphs": 3},
    "length_constraints:nth_paragraph_first_word": {
        "num_paragraphs": 3,
        "nth_paragraph": 2,
        "first_word": "river",
    },
    "detectable_content:number_placeholders": {"num_placeholders": 2},
    "detectable_content:postscript": {"postscript_marker": "P.P.S"},
    "detectable_format:number_bullet_lists": {"num_bullets": 4},
    "detectable_format:constrained_response": {},
    "detectable_format:number_highlighted_sections": {"num_highlights": 2},
    "detectable_format:multiple_sections": {"section_spliter": "SECTION", "num_sections": 3},
    "detectable_format:json_format": {},
    "detectable_format:title": {},
    "combination:two_responses": {},
    "combination:repeat_prompt": {"prompt_to_repeat": REQUEST},
    "startend:end_checker": {"end_phrase": "Is there anything else?"},
    "startend:quotation": {},
    "change_case:english_capital": {},
    "change_case:english_lowercase": {},
    "change_case:capital_word_frequency": {"capital_frequency": 3, "capital_relation": "at least"},
    "punctuation:no_comma": {},
}
"""Arguments of every kind of IFEval's instructions."""

IFBENCH_ARGUMENTS = {
    **{kind: {} for kind in (*WORDS, *FORMS)},
    "count:word_count_range": {"min_words": 5.0, "max_words": 9.0},
    "count:unique_word_count": {"N": 6.0},
    "count:conjunctions": {"small_n": 3.0},
    "count:person_names": {"N": 4.0},
    "count:numbers": {"N": 3.0},
    "count:words_japanese": {"N": 5.0},
    "count:pronouns": {"N": 3.0},
    "count:keywords_multiple": {
        f"keyword{i}": word
        for i, word in enumerate(("river", "stone", "bridge", "lamp", "winter"), 1)
    },
    "ratio:stop_words": {"percentage": 20.0},
    "ratio:overlap": {"reference_text": REQUEST, "percentage": 50.0},
    "words:repeats": {"small_n": 2.0},
    "words:keywords_specific_position": {"keyword": "river", "n": 2, "m": 3},
    "words:words_position": {"keyword": "river"},
    "repeat:repeat_change": {"prompt_to_repeat": REQUEST},
    "repeat:repeat_span": {"prompt_to_repeat": REQUEST, "n_start": 9, "n_end": 17},
    "sentence:keyword": {"word": "river", "N": 3.0},
    "sentence:increment": {"small_n": 2.0},
    "format:options": {"options": "yes/no/maybe"},
    "format:list": {"sep": "!?!?"},
}
"""Arguments of every kind of IFBench's instructions; numbers are floats, as published."""

_ARCHIVES = {
    "punkt_tab": {
        "english/abbrev_types.txt": "dr\n",
        "english/sent_starters.txt": "",
        "english/collocations.tab": "",
        "english/ortho_context.tab": "river\t46\n",
    },
    "stopwords": {"english": "it\nis\nso\nthe\n"},
    "averaged_perceptron_tagger_eng": {
        "averaged_perceptron_tagger_eng.weights.json": '{"bias": {"NN": 1.0}}',
        "averaged_perceptron_tagger_eng.tagdict.json": '{"Write": "VB"}',
        "averaged_perceptron_tagger_eng.classes.json": '["NN", "VB"]',
    },
}


def write_instruction_sets(root):
    """Write both data sets, with every kind of instruction in turn, and NLTK's archives."""
    rows = _rows(IFEVAL_ARGUMENTS, ifeval.ROWS)
    _write(root / "ifeval/input_data.jsonl", [{**row, "key": 1000 + i} for i, row in rows])
    names = {name: None for one in IFBENCH_ARGUMENTS.values() for name in one}
    rows = _rows({kind: {**names, **one} for kind, one in IFBENCH_ARGUMENTS.items()}, ifbench.ROWS)
    _write(root / "ifbench/IFBench_test.jsonl", [{**row, "key": str(i)} for i, row in rows])
    write_nltk_data(root / "nltk_data")


def write_nltk_data(folder):
    """Write archives with few words, which split at marks and know one verb."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, members in _ARCHIVES.items():
        with zipfile.ZipFile(folder / f"{name}.zip", "w") as archive:
            for member, text in members.items():
                archive.writestr(f"{name}/{member}", text)


def _rows(arguments, count):
    """Return numbered rows without their keys, each with one instruction."""
    kinds = list(arguments)
    return [
        (
            i,
            {
                "prompt": f"{i}. {REQUEST} {kind}",
                "instruction_id_list": [kind],
                "kwargs": [dict(arguments[kind])],
            },
        )
        for i in range(count)
        for kind in [kinds[i % len(kinds)]]
    ]


def _write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


assert IFEVAL_ARGUMENTS.keys() == IFEVAL.keys()
assert IFBENCH_ARGUMENTS.keys() == {*WORDS, *FORMS}


EDGE = 16


def write_video(path, frames, *, rate=25, codec="rawvideo", first=0):
    """Write a video whose frame i is a picture of the grey value first + i.

    An .avi of the codec rawvideo has the same bytes wherever it is written.
    """
    import av
    import numpy

    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", options={"fflags": "+bitexact"}) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.width = stream.height = EDGE
        stream.pix_fmt = "bgr24" if codec == "rawvideo" else "yuv420p"
        stream.codec_context.time_base = Fraction(1, rate)
        for place in range(frames):
            grey = numpy.full((EDGE, EDGE, 3), (first + place) % 256, dtype=numpy.uint8)
            frame = av.VideoFrame.from_ndarray(grey, format="bgr24")
            frame = frame.reformat(format=stream.pix_fmt)
            frame.pts, frame.time_base = place, Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def write_tone(path, seconds=0.05, hertz=440.0):
    """Write a WAV file with a tone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rate = 8000
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", "not compressed"))
        file.writeframes(
            b"".join(
                struct.pack("<h", int(9000 * math.sin(2 * math.pi * hertz * i / rate)))
                for i in range(int(seconds * rate))
            )
        )


def grey_of(picture):
    """Return the grey value of the middle of a picture."""
    from PIL import Image

    with Image.open(picture) as image:
        value = image.convert("L").getpixel((EDGE // 2, EDGE // 2))
    assert isinstance(value, int)
    return value
