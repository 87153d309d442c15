"""Write IFEval, IFBench and NLTK's archives in their published layouts, with rows of our own."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from serve_eval.tasks import ifbench, ifeval
from serve_eval.tasks._instructions.ifbench_forms import FORMS
from serve_eval.tasks._instructions.ifbench_words import WORDS
from serve_eval.tasks._instructions.ifeval_checks import IFEVAL

REQUEST = "Describe the river, the stone and the bridge in plain words."

IFEVAL_ARGUMENTS: dict[str, dict[str, Any]] = {
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

IFBENCH_ARGUMENTS: dict[str, dict[str, Any]] = {
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


def write_instruction_sets(root: Path) -> None:
    """Write both data sets, with every kind of instruction in turn, and NLTK's archives."""
    rows = _rows(IFEVAL_ARGUMENTS, ifeval.ROWS)
    _write(root / "ifeval/input_data.jsonl", [{**row, "key": 1000 + i} for i, row in rows])
    names = {name: None for one in IFBENCH_ARGUMENTS.values() for name in one}
    rows = _rows({kind: {**names, **one} for kind, one in IFBENCH_ARGUMENTS.items()}, ifbench.ROWS)
    _write(root / "ifbench/IFBench_test.jsonl", [{**row, "key": str(i)} for i, row in rows])
    write_nltk_data(root / "nltk_data")


def write_nltk_data(folder: Path) -> None:
    """Write archives with few words, which split at marks and know one verb."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, members in _ARCHIVES.items():
        with zipfile.ZipFile(folder / f"{name}.zip", "w") as archive:
            for member, text in members.items():
                archive.writestr(f"{name}/{member}", text)


def _rows(
    arguments: Mapping[str, Mapping[str, Any]], count: int
) -> list[tuple[int, dict[str, Any]]]:
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


def _write(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


assert IFEVAL_ARGUMENTS.keys() == IFEVAL.keys()
assert IFBENCH_ARGUMENTS.keys() == {*WORDS, *FORMS}
