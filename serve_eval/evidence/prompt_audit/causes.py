"""Name the causes for which two sides read different tokens, and say what to do about each."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class PromptCause(StrEnum):
    """The cause of a difference between the tokens of a prompt on two sides."""

    SAME = "same"
    SAME_COUNT = "same_count"
    COUNT_DIFFERS = "count_differs"
    BOS_MISSING = "bos_missing"
    BOS_ADDED = "bos_added"
    BOS_DOUBLED = "bos_doubled"
    SYSTEM_ADDED = "system_added"
    SYSTEM_MISSING = "system_missing"
    SYSTEM_CHANGED = "system_changed"
    SPACES_STRIPPED = "spaces_stripped"
    DATE = "date"
    SPECIAL_AS_TEXT = "special_as_text"
    OTHER_TEMPLATE = "other_template"
    OTHER_TOKENIZER = "other_tokenizer"
    FIRST_DIFFERENCE = "first_difference"
    ROUTES_DISAGREE = "routes_disagree"
    NOT_READ = "not_read"

    @property
    def meaning(self) -> str:
        """A sentence about the cause."""
        return _TEXTS[self].meaning

    @property
    def advice(self) -> str:
        """The action that it calls for; "" if none is needed."""
        return _TEXTS[self].advice


class _CauseText(NamedTuple):
    meaning: str
    advice: str = ""


_TEXTS = {
    PromptCause.SAME: _CauseText("Both sides read the same tokens."),
    PromptCause.SAME_COUNT: _CauseText(
        "Both sides count the same number of tokens; their ids are not available.",
        "Serve a route that gives ids: /tokenize, return_token_ids or /render.",
    ),
    PromptCause.COUNT_DIFFERS: _CauseText(
        "The sides count different numbers of tokens; their ids are not available.",
        "One token more or less is often the first one; more are another template.",
    ),
    PromptCause.BOS_MISSING: _CauseText(
        "The endpoint lacks the first token that the other side has.",
        "Serve the tokenizer files of the model, and leave add_special_tokens at its default.",
    ),
    PromptCause.BOS_ADDED: _CauseText(
        "The endpoint begins with a first token that the other side lacks.",
        "Serve the tokenizer files of the model: its settings decide about the first token.",
    ),
    PromptCause.BOS_DOUBLED: _CauseText(
        "A side has the first token of the model twice.",
        "Let either the chat template or the tokenizer add it: add_special_tokens false for chats.",
    ),
    PromptCause.SYSTEM_ADDED: _CauseText(
        "A side adds a system message that the request does not have.",
        "Send a system message, or serve the chat template of the model.",
    ),
    PromptCause.SYSTEM_MISSING: _CauseText(
        "A side drops a system message.",
        "Serve the chat template of the model; some templates take no system message.",
    ),
    PromptCause.SYSTEM_CHANGED: _CauseText(
        "The sides have different system messages.",
        "Serve the same chat template on both sides, or send the system message.",
    ),
    PromptCause.SPACES_STRIPPED: _CauseText(
        "A side strips white space at the ends of a message.",
        "Compare the chat templates: one of them trims its messages.",
    ),
    PromptCause.DATE: _CauseText(
        "The chat template writes a date, so that prompts change from day to day.",
        "Fix the date: template_date here, and a variable of the template on the server.",
    ),
    PromptCause.SPECIAL_AS_TEXT: _CauseText(
        "A side reads a special token as plain text.",
        "Serve the tokenizer files of the model: its added tokens are missing.",
    ),
    PromptCause.OTHER_TEMPLATE: _CauseText(
        "The sides render messages by different chat templates.",
        "Serve the chat template of the model: --chat-template, or the files of its folder.",
    ),
    PromptCause.OTHER_TOKENIZER: _CauseText(
        "The sides read the same text as other tokens.",
        "Serve the tokenizer of the model, in the same revision.",
    ),
    PromptCause.FIRST_DIFFERENCE: _CauseText(
        "The sides read different tokens, and no known cause fits.",
        "Compare the tokenizer files and the chat templates of both sides.",
    ),
    PromptCause.ROUTES_DISAGREE: _CauseText(
        "A server gives other tokens than its answers count.",
        "Do not rely on the ids of that route: compare the counts of answers.",
    ),
    PromptCause.NOT_READ: _CauseText(
        "A side could not be read, so nothing was compared.",
        "Check the request with serve-eval smoke, then repeat the audit.",
    ),
}
