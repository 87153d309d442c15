"""The rules of BioChatter's own case files (`*_data.yaml`), and what they need that is not in them.

Its benchmark keeps part of many prompts, and the agents that some cases are for, in Python code. A
case runs here when its file says all that is asked and expected. The others are skipped by name
with a reason, and run when the task's options give what is missing. Answers of the modules that it
has tests for are scored as these tests score them, unless told otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from serve_eval.schema import Spec

AS_BIOCHATTER = "as_biochatter"
"""The option of scorers and tasks that chooses BioChatter's way of scoring."""
RESULTS = "BioChatter's results"
"""First words of the source of a reference that was imported from its result files."""
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
"""The modules that its benchmark has tests for: any other in a file of such a name is a user's
own."""
_BY_MODULE = {
    "api_calling": "BioChatter asks it through an agent that knows the parameters of an API",
    ONTOLOGY: (
        "BioChatter asks it with a system message of its Python code, and with tools of an MCP"
        " server"
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
        "a test that looks into BioChatter's prompt engine",
    ),
    "implicit_relevance_of_multiple_fragments": "a model that BioChatter had judge the answers",
    "multimodal_answer": "pairs of images and captions that BioChatter draws at random",
}
"""Result files whose scores come from something else than a scorer of answers, with that source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lacking:
    """The reason why a case cannot be asked or scored as its file has it. `option` is the task's
    option that supplies what is missing, and `value` an example for it, as YAML; both are empty
    where no option helps.
    """

    module: str
    what: str
    option: Literal["prompt", "system_messages", "scorer", ""] = ""
    value: str = ""

    @property
    def reason(self) -> str:
        """Return what is missing, and the setting that supplies it on the command line."""
        return f"{self.what}: {self.setting}" if self.option else self.what

    @property
    def setting(self) -> str:
        return f"--set 'cases:{self.module}.{self.option}={self.value}'"


def assemble(cases: Sequence[Any]) -> list[Any]:
    """Return the list of a module with BioChatter's longevity cases in our form: fragments are
    joined, and the system messages that all of them share become an axis.
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
    """Return True for an entry of the list that is no case but holds system messages of the
    others.
    """
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
    """Return the input of an expanded case as BioChatter sends it: retrieved texts stand in its
    system messages.
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
    """Return why a case cannot be asked or scored by these rules, or None. A name that BioChatter
    does not test may stand in a user's own file, so the reason says how to leave the rules. `told`
    and `judged` are as in `_missing`.
    """
    lacking = _explain_missing(module, case, told=told, judged=judged)
    if lacking is None or module in TESTED:
        return lacking
    return replace(
        lacking,
        what=f"{lacking.what} (for a file of your own, use a name that does not end in _data.yaml)",
    )


def _explain_missing(
    module: str, case: Mapping[str, Any], *, told: bool, judged: bool
) -> Lacking | None:
    """Why a case cannot be asked or scored as the file has it; None: it can. `told`: the task's
    options say what its prompt or its system messages are; `judged`: they name a scorer.
    """
    values, expected = case.get("input"), case.get("expected")
    if not isinstance(values, Mapping) or not isinstance(case.get("case"), str):
        return Lacking(module=module, what="it is no case: it has no input")
    prompt = values.get("prompt")
    fragments = isinstance(prompt, Mapping) and any(
        isinstance(part, Mapping) for part in prompt.values()
    )
    if fragments and "join" not in case:
        return Lacking(
            module=module,
            what=f"its prompt is of fragments, and its list has no {_MESSAGES} for it",
        )
    if not told and "prompt" not in values:
        names = [f"${{{name}}}" for name in values if name != "system_messages"]
        what = (
            f"it has no prompt, which BioChatter's Python code makes of {', '.join(names)}; set"
            " your own"
        )
        return Lacking(module=module, what=what, option="prompt", value=f'"{" ".join(names)}"')
    if not told and "kg_schema" in values:
        what = "BioChatter's Python code puts a knowledge graph's schema before it; set how"
        value = '["Schema: ${kg_schemas[kg_schema]}"]'
        return Lacking(module=module, what=what, option="system_messages", value=value)
    if not told and module in _BY_MODULE:
        what = f"{_BY_MODULE[module]}; to ask without, set your own"
        return Lacking(
            module=module, what=what, option="system_messages", value='["Answer with ..."]'
        )
    if judged:
        return None
    if isinstance(expected, Mapping) and any(key in expected for key in _JUDGED):
        value = "{judge: {judges: [{model: MODEL, base_url: URL}]}}"
        what = "BioChatter has a model judge its answer; name a scorer"
        return Lacking(module=module, what=what, option="scorer", value=value)
    if not isinstance(expected, Mapping) or not any(key in expected for key in _SCORED):
        what = "what it expects is scored by BioChatter's Python code alone; name a scorer"
        return Lacking(module=module, what=what, option="scorer", value="words")
    return None


def choose_scoring(module: str, expected: Any) -> tuple[Any, Spec | None]:
    """Return the expectation, and the scorer that counts as BioChatter's test of that module does
    (None: none does).
    """
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
    """What is expected, with synonyms as scorers take them: `[[a, b], c]` becomes `[a|b, c]`."""
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
    """Return a line about the cases that are compared in BioChatter's strict form, and one for each
    kind of case in which this form cannot tell right from wrong.

    Each of `cases` has a name, an expectation, and False where no answer can be right. `chosen`:
    the user named the strict form, which then needs no line.
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
        "no answer is right, since it puts the answer into lower case and not what is expected": (
            never
        ),
        "of a word without synonyms any letter will do": nearly,
    }
    lines = [
        f"{_format_count(len(names))}, such as {names[0]}: as BioChatter scores, {what}"
        for what, names in why.items()
        if names
    ]
    if chosen or not strict:
        return tuple(lines)
    verb = "are" if strict > 1 else "is"
    how = (
        f"{_format_count(strict)} {verb} compared in BioChatter's strict form (`B)` is wrong where"
        " b is expected)"
    )
    return (f"{how}; to compare what is meant: --set cases:{module}.{AS_BIOCHATTER}=false", *lines)


def _format_count(cases: int) -> str:
    return f"{cases} case{'s' * (cases > 1)}"
