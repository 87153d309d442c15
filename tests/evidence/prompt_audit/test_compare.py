"""Test that each known difference between two readings of a prompt gets its name."""

import re
from datetime import date

import pytest

from serve_eval.evidence.prompt_causes import compare, find_today, list_dates, mask_dates
from serve_eval.evidence.prompt_tokens import (
    PromptCause,
    PromptReading,
    decode_piece,
    looks_special,
)
from serve_eval.schema import Message

TODAY = date(2026, 11, 26)
TEXT = "The sum"
CHAT = (Message(role="user", content="Hi there"),)
SPACED = (Message(role="user", content="  Hi there\n\n"),)
WITH_SYSTEM = (Message(role="system", content="Be short."), *CHAT)
S, U, A, E = "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"
PLAIN = [U, "\n", "Hi", " there", E, "\n", A, "\n"]
LLAMA = ["<s>", "[INST]", " Hi", " there", " ", "[/INST]"]
_IDS = {}


def _ids(pieces):
    return tuple(_IDS.setdefault(piece, len(_IDS) + 10) for piece in pieces)


def _reading(
    side,
    pieces,
    *,
    blind=False,
    bos=None,
    count=None,
    dated=None,
):
    """Return the reading of these tokens; `blind`: their texts are not known."""
    return PromptReading(
        side=side,
        ids=_ids(pieces),
        pieces=None if blind else tuple(pieces),
        source="/tokenize",
        bos=None if bos is None else _ids([bos])[0],
        count=count,
        dated=dated,
    )


def _compare(expected, found, prompt, **more):
    readings = (
        _reading("the folder", expected, **more),
        _reading("the server", found, **more),
    )
    return compare(*readings, prompt=prompt, today=TODAY)


def _with_system(text):
    return [S, "\n", text, E, "\n", *PLAIN]


LLAMA_3 = "Cutting Knowledge Date: December 2023\nToday Date: {}\n\n"
CASES = {
    "bos_missing": (["<s>", "The", " sum"], ["The", " sum"], TEXT, "lacks the first token <s>"),
    "bos_added": (["The", " sum"], ["<s>", "The", " sum"], TEXT, "begins with <s> (id "),
    "bos_doubled": (LLAMA, ["<s>", *LLAMA], CHAT, "the server begins 2 times with <s>"),
    "bos_doubled by the folder": (["<s>", *LLAMA], LLAMA, CHAT, "the folder begins 2 times"),
    "system_added": (
        PLAIN,
        _with_system("You are a helpful assistant."),
        CHAT,
        "the server adds a system message before the first turn: '<|system|>",
    ),
    "system_added to [INST]": (
        LLAMA,
        ["<s>", "[INST]", " <<", "SYS", ">>\n", "Be safe.", "\n<</SYS>>\n\n", *LLAMA[2:]],
        CHAT,
        "adds a system message",
    ),
    "system_missing": (_with_system("Be short."), PLAIN, WITH_SYSTEM, "drops the system message"),
    "system_missing by default": (
        _with_system("Be nice."),
        PLAIN,
        CHAT,
        "lacks the system message",
    ),
    "system_changed": (
        _with_system("Be nice."),
        _with_system("Be fast."),
        CHAT,
        "the server writes",
    ),
    "spaces_stripped": (
        [U, "\n", "  ", "Hi", " there", "\n\n", E, A],
        [U, "\n", "Hi", " there", E, A],
        SPACED,
        "the server strips the leading and trailing white space of '  Hi there",
    ),
    "spaces_stripped leading": (
        [U, "  ", "Hi", " there", "\n\n", E, A],
        [U, "Hi", " there", "\n\n", E, A],
        SPACED,
        "the server strips the leading white space",
    ),
    "spaces_stripped trailing": (
        [U, "  ", "Hi", " there", E, A],
        [U, "  ", "Hi", " there", "\n\n", E, A],
        SPACED,
        "the folder strips the trailing white space",
    ),
    "spaces_stripped of a text": ([" ", "The", " sum"], ["The", " sum"], " The sum", "leading"),
    "date": (
        _with_system(LLAMA_3.format("26 Jul 2024")),
        _with_system(LLAMA_3.format("26 Nov 2026")),
        CHAT,
        "that of the folder 26 Jul 2024",
    ),
    "special_as_text": (
        PLAIN,
        ["<", "|", "user", "|", ">", *PLAIN[1:]],
        CHAT,
        "the server reads <|user|> as text",
    ),
    "special_as_text by the folder": (
        ["<", "/s", ">", " The"],
        ["</s>", " The"],
        "</s> The",
        "the folder reads </s> as text",
    ),
    "other_template": (PLAIN, LLAMA, CHAT, "before or between the turns, the server writes"),
    "other_template at the end": (PLAIN, PLAIN[:-2], CHAT, "after the last turn, the server"),
    "other_template with thoughts": (
        PLAIN,
        [*PLAIN, "<think>", "\n\n", "</think>"],
        CHAT,
        r"after the last turn, the server writes '<think>\n\n</think>', the folder ''",
    ),
    "other_tokenizer": (["The", " sum"], ["The", " s", "um"], TEXT, "as 3 tokens, the folder as 2"),
    "first_difference": (
        ["The", " sum", " is"],
        ["The", " tot", " is"],
        "The sum is",
        "first differs at token 1:",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_difference_has_a_name_and_its_figures(case):
    expected, found, prompt, told = CASES[case]
    findings = _compare(expected, found, prompt)
    assert [one.cause for one in findings] == [case.split()[0]], findings
    assert told in findings[0].told
    assert findings[0].same is False
    assert findings[0].advice


def test_two_causes_are_two_findings():
    found = ["<s>", "<s>", *_with_system("Be nice.")]
    named = [one.cause for one in _compare(["<s>", *PLAIN], found, CHAT, bos="<s>")]
    assert named == [PromptCause.BOS_DOUBLED, PromptCause.SYSTEM_ADDED]
    found = _with_system(LLAMA_3.format("26 Nov 2026"))
    named = [one.cause for one in _compare(PLAIN, found, CHAT)]
    assert named == [PromptCause.SYSTEM_ADDED, PromptCause.DATE]


def test_equal_tokens_are_the_same_and_still_may_carry_a_date_or_a_doubled_token():
    [one] = _compare(PLAIN, PLAIN, CHAT)
    assert (one.cause, one.same) == (PromptCause.SAME, True)
    assert one.told == "8 tokens on both sides (/tokenize, /tokenize)"
    dated = _with_system(LLAMA_3.format("26 Nov 2026"))
    [one] = _compare(dated, dated, CHAT)
    assert (one.cause, one.same) == (PromptCause.DATE, True)
    assert "writes the date 26 Nov 2026" in one.told
    old = _with_system(LLAMA_3.format("26 Jul 2024"))
    assert [one.cause for one in _compare(old, old, CHAT)] == [PromptCause.SAME]
    [one] = _compare(PLAIN, PLAIN, CHAT, blind=True, dated=True)
    assert (one.cause, one.same) == (PromptCause.DATE, True)
    doubled = ["<s>", *LLAMA]
    assert {one.cause for one in _compare(doubled, doubled, CHAT)} == {PromptCause.BOS_DOUBLED}


def test_a_date_that_the_request_has_is_not_the_templates():
    chat = (Message(role="user", content="Is it 2026-11-26?"),)
    pieces = [U, "Is it 2026-11-26?", E]
    assert [one.cause for one in _compare(pieces, pieces, chat)] == [PromptCause.SAME]


BLIND = {
    "bos_missing": (["<s>", "The", " sum"], ["The", " sum"], TEXT),
    "bos_added": (["The", " sum"], ["<s>", "The", " sum"], TEXT),
    "bos_doubled": (LLAMA, ["<s>", *LLAMA], CHAT),
    "first_difference": (PLAIN, LLAMA, CHAT),
    "first_difference at the end": (PLAIN, PLAIN[:-1], CHAT),
    "first_difference of a stripped space": ([" ", "The", " sum"], ["The", " sum"], " The sum"),
}


@pytest.mark.parametrize("case", BLIND)
def test_ids_without_their_texts_still_show_the_first_token(case):
    [one] = _compare(*BLIND[case], blind=True)
    assert (one.cause, one.same) == (case.split()[0], False)
    if one.cause is PromptCause.FIRST_DIFFERENCE:
        assert re.search(r"first differs at token \d+: (\d+|the end) of the server", one.told)


def test_counts_alone_say_by_how_many_tokens_the_sides_differ():
    def one(expected, found):
        sides = (
            PromptReading(side="the folder", count=expected, problem="HTTP 500: no"),
            PromptReading(side="the server", count=found, problem="HTTP 500: no"),
        )
        [finding] = compare(*sides, prompt=CHAT, today=TODAY)
        return finding

    assert (one(7, 7).cause, one(7, 7).same) == (PromptCause.SAME_COUNT, None)
    more = one(7, 9)
    assert (more.cause, more.same) == (PromptCause.COUNT_DIFFERS, False)
    assert more.told == (
        "the server counts 9 tokens, 2 more than the folder; ids are not available"
    )
    assert "1 fewer than" in one(7, 6).told
    assert (one(7, None).cause, one(7, None).same) == (PromptCause.NOT_READ, None)
    assert one(None, 7).told == "the folder: HTTP 500: no"


def test_ids_that_are_not_as_many_as_counted_prove_nothing():
    expected = _reading("the folder", ["The", " sum"])
    found = _reading("the server", ["The", " sum"], count=3)
    [one] = compare(expected, found, prompt=TEXT, today=TODAY)
    assert (one.cause, one.same) == (PromptCause.ROUTES_DISAGREE, False)
    assert one.told == "the server: /tokenize gives 2 tokens, but its answers count 3"


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("\u0120the", " the"),
        ("\u2581the", " the"),
        ("\u010a\u010a", "\n\n"),
        ("<0x0A>", "\n"),
        ("<\uff5cbegin\u2581of\u2581text\uff5c>", "<\uff5cbegin\u2581of\u2581text\uff5c>"),
    ],
)
def test_texts_of_tokens_are_read_as_vocabularies_write_them(written, text):
    assert decode_piece(written) == text
    assert looks_special(text) == text.startswith("<")


def test_every_cause_has_a_sentence_and_all_but_one_an_action():
    for cause in PromptCause:
        assert re.fullmatch(r"[A-Z].*\.", cause.meaning), cause
        assert bool(cause.advice) == (cause is not PromptCause.SAME), cause


TODAY_DATES = date(2026, 9, 4)


@pytest.mark.parametrize(
    "written",
    [
        "2026-09-04",
        "2026/9/4",
        "04 Sep 2026",
        "4 September 2026",
        "September 4, 2026",
        "Sept 04, 2026",
        "Sep. 4, 2026",
        "09/04/2026",
        "04.09.2026",
        "2026-09-05",
        "03 Sep 2026",
    ],
)
def test_today_is_found_as_written(written):
    text = f"Knowledge: December 2023\nToday: {written}\n\nHi 12-34."
    assert find_today(text, TODAY_DATES) == written
    assert mask_dates(text).count("<date>") == 1


@pytest.mark.parametrize("written", ["26 Jul 2024", "2026-09-07", "Monday", "2026", "12026-09-041"])
def test_other_days_and_numbers_are_not_today(written):
    assert find_today(f"Today: {written}", TODAY_DATES) is None


def test_dates_and_weekdays_are_masked():
    assert list_dates("1/2/2026 and May 3, 2025") == ["1/2/2026", "May 3, 2025"]
    assert mask_dates("Friday, 4 September 2026") == "<weekday>, <date>"
