"""What BioChatter's own case files (`*_data.yaml`) need that is not in them.

Its benchmark keeps part of many prompts, and the agents that some cases are for, in Python code. A case runs here when
its file says all that is asked and expected. The others are skipped by name with a reason, and run when the task's
options give what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_BY_MODULE = {
    "api_calling": "BioChatter asks it through an agent that knows the parameters of an API",
    "mcp_edam_qa": "BioChatter asks it with a system message of its Python code, and with tools of an MCP server",
}
_SCORED = ("answer", "parts_of_query", "words_in_response")
_JUDGED = ("behaviour", "individual", "summary", "key_words")


def missing(module: str, case: Mapping[str, Any], *, told: bool, judged: bool) -> str | None:
    """Why a case cannot be asked or scored as the file has it; None: it can. `told`: the task's options say what its
    prompt or its system messages are; `judged`: they name a scorer."""
    values, expected = case.get("input"), case.get("expected")
    if not isinstance(values, Mapping) or not isinstance(case.get("case"), str):
        return "it is no case: it has no input"
    prompt = values.get("prompt")
    if isinstance(prompt, Mapping) and any(isinstance(part, Mapping) for part in prompt.values()):
        return "BioChatter's Python code puts its prompt together out of the fragments of several mappings"
    if not told and "prompt" not in values:
        names = ", ".join(f"${{{name}}}" for name in values if name != "system_messages")
        return f"it has no prompt: BioChatter's Python code makes one of {names}; say yours with the option prompt"
    if not told and "kg_schema" in values:
        return (
            "BioChatter's Python code puts a knowledge graph's schema before it; say how with the option "
            "system_messages and ${kg_schemas[kg_schema]}"
        )
    if not told and module in _BY_MODULE:
        return f"{_BY_MODULE[module]}; to ask without, say yours with the option system_messages"
    if judged:
        return None
    if isinstance(expected, Mapping) and any(key in expected for key in _JUDGED):
        return "BioChatter has a model judge its answer; name a scorer with the option scorer"
    if not isinstance(expected, Mapping) or not any(key in expected for key in _SCORED):
        return "what it expects is scored by BioChatter's Python code alone; name a scorer with the option scorer"
    return None


def readable(expected: Any) -> Any:
    """What is expected, with synonyms as scorers take them: `[[a, b], c]` becomes `[a|b, c]`."""
    if not isinstance(expected, Mapping) or not isinstance(expected.get("words_in_response"), list):
        return expected
    words = ["|".join(map(str, one)) if isinstance(one, list) else one for one in expected["words_in_response"]]
    return {**expected, "words_in_response": words}
