"""Apply the rules for BioChatter's own case files, and read its result files.

Its benchmark keeps parts of many prompts, and the agents of some cases, in Python code. A case runs
here if its file contains everything that is asked and expected. The others are skipped by name with
a reason, and run if the task's options supply what is missing. By default, answers of the modules
with tests in BioChatter are scored as these tests score them.

A row has the model, the name of the case, the score, the iterations and the hash. A score is
`s1;s2;.../max`, with one value for each iteration, or in older rows `mean/max`. Here it is a share
of the points, between 0 and 1.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from serve_eval.errors import DatasetError
from serve_eval.frozen import freeze
from serve_eval.schema import Spec

AS_BIOCHATTER = "as_biochatter"
"""The option of scorers and tasks that selects BioChatter's scoring."""
RESULTS = "BioChatter's results"
"""Start of the source of a reference that was imported from its result files."""
EXTRACTION, ONTOLOGY = "text_extraction", "mcp_edam_qa"
TESTED = frozenset(
    {
        "api_calling",
        "biocypher_query_generation",
        EXTRACTION,
        "longevity_geriatric_case_assessment",
        ONTOLOGY,
        "medical_exam",
        "rag_interpretation",
    }
)
"""The modules with tests in its benchmark. Any other module in a file named *_data.yaml is a
user's own."""
_BY_MODULE = {
    "api_calling": "BioChatter asks it through an agent that knows the parameters of an API",
    ONTOLOGY: (
        "BioChatter asks it with a system message from its Python code and tools of an MCP server"
    ),
}
_SCORED = ("answer", "parts_of_query", "words_in_response")
_JUDGED = ("behaviour", "individual", "summary", "key_words")
_MESSAGES, _RAG_MESSAGES = "general_system_messages", "general_system_messages_rag"
_RAG = "rag:"
_BRACES = re.compile(r"\{\{|\}\}|\{contexts\}")
SCORED_ELSEWHERE = {
    **dict.fromkeys(
        ("entity_selection", "relationship_selection", "property_selection", "property_exists"),
        "a test that inspects BioChatter's prompt engine",
    ),
    "implicit_relevance_of_multiple_fragments": "a model that BioChatter uses as a judge",
    "multimodal_answer": "pairs of images and captions that BioChatter draws at random",
}
"""Result files whose scores do not come from a scorer of answers, with the source of the scores."""


@freeze
class Lacking:
    """The reason why a case of a file cannot be asked or scored.

    `option` is the task's option that supplies what is missing, and `value` is an example of it in
    YAML. Both are empty if no option helps.
    """

    module: str
    what: str
    option: Literal["prompt", "system_messages", "scorer", ""] = ""
    value: str = ""

    @property
    def reason(self) -> str:
        """The missing part, and the setting that supplies it on the command line."""
        return f"{self.what}: {self.setting}" if self.option else self.what

    @property
    def setting(self) -> str:
        return f"--set 'cases:{self.module}.{self.option}={self.value}'"


def assemble(cases: Sequence[Any]) -> list[Any]:
    """Return the cases of a module with BioChatter's longevity cases in serve-eval's form.

    Fragments are joined, and the system messages that all of them share become an axis.
    """
    shared = {
        key: one[key]
        for one in cases
        if _is_shared(one)
        for key in (_MESSAGES, _RAG_MESSAGES)
        if key in one
    }
    return [_with_messages(one, shared) for one in cases] if shared else list(cases)


def holds_shared(content: Any) -> bool:
    """Return True for an entry that is not a case but holds system messages for the others."""
    return _is_shared(content) and "input" not in content


def _is_shared(content: Any) -> bool:
    return isinstance(content, Mapping) and (_MESSAGES in content or _RAG_MESSAGES in content)


def _with_messages(content: Any, shared: Mapping[str, Any]) -> Any:
    values = content.get("input") if isinstance(content, Mapping) else None
    if not isinstance(values, Mapping) or not isinstance(values.get("prompt"), Mapping):
        return content
    several = any(isinstance(part, Mapping) for part in values["prompt"].values())
    name = f"{content.get('case')}:" if several else str(content.get("case"))
    messages = shared.get(_RAG_MESSAGES if _RAG in name else _MESSAGES)
    if not isinstance(messages, Mapping):
        return content
    return {
        **content,
        "join": {"prompt": " "},
        "input": {**values, "system_messages": dict(messages)},
    }


def as_sent(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the input of an expanded case as BioChatter sends it.

    Retrieved texts are inserted into its system messages.
    """
    values = content["input"]
    if (
        not content["case"].startswith(_RAG)
        or "contexts" not in content
        or not values.get("system_messages")
    ):
        return values  # type: ignore[no-any-return]
    contexts = str(content["contexts"]).replace("${", "$${")
    placed = {"{{": "{", "}}": "}"}
    messages = values["system_messages"]
    return {
        **values,
        "system_messages": [
            _BRACES.sub(lambda found: placed.get(found[0], contexts), str(message))
            for message in (messages if isinstance(messages, list) else [messages])
        ],
    }


def explain_missing(
    module: str, case: Mapping[str, Any], *, told: bool, judged: bool
) -> Lacking | None:
    """Return why a case cannot be asked or scored by these rules, or None.

    A module that BioChatter does not test may be in a user's own file, so the reason explains how
    to avoid the rules. `told` and `judged` are as in `_explain_missing`.
    """
    lacking = _explain_missing(module, case, told=told, judged=judged)
    if lacking is None or module in TESTED:
        return lacking
    return replace(
        lacking,
        what=f"{lacking.what} (give your own file a name that does not end in _data.yaml)",
    )


def _explain_missing(
    module: str, case: Mapping[str, Any], *, told: bool, judged: bool
) -> Lacking | None:
    """Return why a case of a file cannot be asked or scored, or None if it can.

    `told` means that the task's options contain a prompt or system messages; `judged` means that
    they name a scorer.
    """
    values, expected = case.get("input"), case.get("expected")
    if not isinstance(values, Mapping) or not isinstance(case.get("case"), str):
        return Lacking(module=module, what="it is not a case: it has no input")
    prompt = values.get("prompt")
    fragments = isinstance(prompt, Mapping) and any(
        isinstance(part, Mapping) for part in prompt.values()
    )
    if fragments and "join" not in case:
        return Lacking(
            module=module,
            what=f"its prompt consists of fragments, but its module has no {_MESSAGES}",
        )
    if not told and "prompt" not in values:
        names = [f"${{{name}}}" for name in values if name != "system_messages"]
        what = (
            f"it has no prompt, because BioChatter's Python code builds it from"
            f" {', '.join(names)}; set your own"
        )
        return Lacking(module=module, what=what, option="prompt", value=f'"{" ".join(names)}"')
    if not told and "kg_schema" in values:
        what = "BioChatter's Python code adds a knowledge graph's schema; set your own text for it"
        value = '["Schema: ${kg_schemas[kg_schema]}"]'
        return Lacking(module=module, what=what, option="system_messages", value=value)
    if not told and module in _BY_MODULE:
        what = f"{_BY_MODULE[module]}; to ask without them, set your own system messages"
        return Lacking(
            module=module, what=what, option="system_messages", value='["Answer with ..."]'
        )
    if judged:
        return None
    if isinstance(expected, Mapping) and any(key in expected for key in _JUDGED):
        value = "{judge: {judges: [{model: MODEL, base_url: URL}]}}"
        what = "BioChatter uses a model as a judge of its answer; name a scorer"
        return Lacking(module=module, what=what, option="scorer", value=value)
    if not isinstance(expected, Mapping) or not any(key in expected for key in _SCORED):
        what = "only BioChatter's Python code can score its answer; name a scorer"
        return Lacking(module=module, what=what, option="scorer", value="words")
    return None


def choose_scoring(module: str, expected: Any) -> tuple[Any, Spec | None]:
    """Return the expectation, and the scorer that matches the module's test (None: none does)."""
    if not isinstance(expected, Mapping):
        return expected, None
    answer = expected.get("answer")
    if module == ONTOLOGY and isinstance(answer, str):
        terms = [term.strip().rpartition("/")[2] for term in answer.split(";") if term.strip()]
        return {**expected, "words_in_response": terms}, Spec(name="words")
    if module == EXTRACTION and answer is not None:
        return expected, Spec(name="rouge")
    if answer is None and "parts_of_query" in expected:
        return expected, Spec(name="regex")
    if answer is None and "words_in_response" in expected:
        return expected, Spec(name="words", options={AS_BIOCHATTER: True})
    if answer is not None and not any(key in expected for key in _JUDGED):
        return expected, Spec(name="exact", options={AS_BIOCHATTER: True})
    return expected, None


def readable(expected: Any) -> Any:
    """Return the expectation with synonyms in the form of scorers: `[[a, b], c]` is `[a|b, c]`."""
    if not isinstance(expected, Mapping) or not isinstance(expected.get("words_in_response"), list):
        return expected
    words = [
        "|".join(map(str, one)) if isinstance(one, list) else one
        for one in expected["words_in_response"]
    ]
    return {**expected, "words_in_response": words}


def strictness(
    module: str, cases: Iterable[tuple[str, Any, bool]], *, chosen: bool
) -> tuple[str, ...]:
    """Return lines about the cases that are compared in BioChatter's strict form.

    There is one for all of them, and one for each kind of case in which the strict form cannot
    distinguish right from wrong. Each of `cases` has a name, an expectation, and False if no answer
    can be right. `chosen` means that the user selected the strict form, which then needs no line.
    """
    strict, never, nearly = 0, [], []
    for name, expected, reachable in cases:
        strict += 1
        words = expected.get("words_in_response") if isinstance(expected, Mapping) else None
        if not reachable:
            never.append(name)
        elif isinstance(words, list) and any(isinstance(word, str) for word in words):
            nearly.append(name)
    why = {
        "no answer is right, because only the answer is converted to lower case": never,
        "any letter of a word without synonyms is accepted": nearly,
    }
    lines = [
        f"{_format_count(len(names))}, such as {names[0]}: in BioChatter's scoring, {what}"
        for what, names in why.items()
        if names
    ]
    if chosen or not strict:
        return tuple(lines)
    verb = "are" if strict > 1 else "is"
    how = (
        f"{_format_count(strict)} {verb} compared in BioChatter's strict form (`B)` is wrong if"
        " b is expected)"
    )
    return (f"{how}; to compare the meaning: --set cases:{module}.{AS_BIOCHATTER}=false", *lines)


def _format_count(cases: int) -> str:
    return f"{cases} case{'s' * (cases > 1)}"


COLUMNS = ("model_name", "subtask", "score", "iterations", "md5_hash")


@freeze
class ResultRow:
    """One result: the share of the points in each iteration, or their mean in an older row."""

    model: str
    subtask: str
    md5: str
    scores: tuple[float, ...]
    iterations: int
    date: str
    file: Path

    @property
    def mean(self) -> float:
        return math.fsum(self.scores) / len(self.scores)

    @property
    def each(self) -> bool:
        """True if there is a score for each iteration."""
        return len(self.scores) == self.iterations


def read(file: Path) -> list[ResultRow]:
    """Return the rows of a result file. Raises DatasetError, with the line."""
    try:
        with file.open(encoding="utf-8", newline="") as content:
            reader = csv.DictReader(content)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise DatasetError(
                    f"{file}: not a result file: there is no column {', '.join(missing)}"
                )
            return [_row(file, reader.line_num, raw) for raw in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DatasetError(f"{file}: cannot be read: {error}") from error


def _row(file: Path, line: int, raw: Mapping[str, Any]) -> ResultRow:
    try:
        scores, _, most = raw["score"].partition("/")
        shares = tuple(float(score) / float(most) for score in scores.split(";"))
        iterations = int(raw["iterations"])
    except (ValueError, ZeroDivisionError, AttributeError, TypeError) as error:
        raise DatasetError(
            f"{file}:{line}: score {raw.get('score')!r}, iterations {raw.get('iterations')!r}: "
            "expected s1;s2;.../max or mean/max, and a number"
        ) from error
    if not all(0.0 <= share <= 1.0 for share in shares) or len(shares) not in (1, iterations):
        raise DatasetError(
            f"{file}:{line}: score {raw['score']!r} is not valid for {iterations} iterations"
        )
    return ResultRow(
        model=raw["model_name"],
        subtask=raw["subtask"],
        md5=raw["md5_hash"],
        scores=shares,
        iterations=iterations,
        date=raw.get("datetime") or "",
        file=file,
    )
