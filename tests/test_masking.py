"""Test that received text keeps no secret, in any notation.

Text without a secret is unchanged.
"""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from serve_eval.client.wire_format.wire import Said, describe
from serve_eval.masking import LEAST_CUT, Masking
from serve_eval.schema import PromptLogprobs, ToolCall
from tests.secrets.writings import KEY, ODD, WHOLE, WRITINGS, left


@pytest.mark.parametrize("key", [KEY, ODD])
@pytest.mark.parametrize("how", WRITINGS)
def test_a_secret_is_found_however_it_is_written(key: str, how: str) -> None:
    written = WRITINGS[how](key)
    masking = Masking(["another-secret-of-ours", key])
    for text in (
        written,
        f"Bearer {written}, and again: {written}",
        f"caf\u00e9 \u0130{written}\u212a",
    ):
        masked = masking.text(text)
        assert "***" in masked
        assert written not in masked
        assert left(masked, key) < 12
        assert masking.text(masked) == masked
    assert masking.text(f"caf\u00e9 {written}!").startswith("caf\u00e9 ")
    assert masking.text(f"caf\u00e9 {written}!").endswith("!")
    for body in (
        written,
        json.dumps({"a": [1, {written: f"x {written}"}]}),
        f"data: {json.dumps([written])}\n\n",
    ):
        received = masking.body(body.encode())
        assert written.encode() not in received
        assert b"***" in received
    assert masking.holds(written.encode())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "The answer is 42.\n\\frac{1}{2} of 50%, \\xi, A&B, 100%25 &amp; caf\u00e9 \\u00e9",
        "sk-live- is how keys begin",
        KEY[:11],
        KEY[::-1],
        "***",
    ],
)
def test_what_is_no_secret_stays_byte_for_byte(text: str) -> None:
    masking = Masking([KEY, ODD, "short"])
    assert masking.text(text) == text
    for body in (
        text.encode(),
        json.dumps({"a": text, "b": 1e400}).encode(),
        b"\xff\xfe" + text.encode("utf-16"),
    ):
        assert masking.body(body) == body
        assert not masking.holds(body)


def test_json_stays_json_and_numbers_are_looked_at_too() -> None:
    told = {"text": f"a\n{KEY[1:]} b", KEY: [None, True, 1.5, "\\" + ODD], "n": "\u00e9"}
    masked = json.loads(Masking([KEY, ODD]).body(json.dumps(told).encode()))
    assert masked == {"text": "a\n*** b", "***": [None, True, 1.5, "\\***"], "n": "\u00e9"}
    assert Masking(["1234567890123456"]).body(b'{"id": 1234567890123456}') == b'{"id": ***}'
    lines = f"event: x\r\ndata: {json.dumps({'a': 'n' + KEY})}\r\n\r\ndata: [DONE]\n".encode()
    assert Masking([KEY]).body(lines) == b'event: x\r\ndata: {"a":"n***"}\n\r\ndata: [DONE]\n'
    assert Masking([KEY]).body(f"<b>{KEY}\xff</b>".encode("latin-1")) == b"<b>***\xff</b>"
    nested = "[" * 100_000 + f'"{KEY}"'
    assert KEY.encode() not in Masking([KEY]).body(nested.encode())


def test_a_secret_in_pieces_is_taken_out_of_all_of_them() -> None:
    masking = Masking([KEY])
    pieces = ["The ", "key", " sk-li", "ve-Q7pRz", "2VwX9m", "T4kLd is", " ", "yours"]
    assert masking.pieces(pieces) == ["The ", "key", " ***", "", "", " is", " ", "yours"]
    assert masking.pieces([KEY, " ", KEY]) == ["***", " ", "***"]
    assert masking.pieces([f"{KEY} and {KEY}", "x"]) == ["*** and ***", "x"]
    assert masking.pieces(["a", "b"]) == ["a", "b"]
    assert masking.pieces([*KEY, "."]) == ["***", *[""] * 23, "."]


def test_every_text_of_an_answer_is_looked_at() -> None:
    said = Said()
    for name in said.__struct_fields__:
        if getattr(said, name) is None or isinstance(getattr(said, name), str):
            setattr(said, name, f"a {KEY} b")
    said.tokens_per_step = 1.5
    said.tool_calls = (ToolCall(KEY, json.dumps({"q": KEY})), ToolCall("search", "{}"))
    said.prompt_logprobs = PromptLogprobs(values=(0.5,) * 4, tokens=("x", KEY[:9], KEY[9:], "y"))
    masked = Masking([KEY]).value(said)
    assert KEY[:12] not in str(masked)
    assert masked.tool_calls == (ToolCall("***", '{"q": "***"}'), ToolCall("search", "{}"))
    assert masked.prompt_logprobs is not None
    assert masked.prompt_logprobs.tokens == ("x", "***", "", "y")
    texts = [value for value in msgspec.structs.astuple(masked) if isinstance(value, str)]
    assert texts == ["a *** b"] * 8
    plain = Said(text="plain", tool_calls=(ToolCall("search", "{}"),))
    assert Masking([KEY]).value(plain) is plain


def test_short_secrets_are_taken_out_of_messages_alone() -> None:
    masking = Masking(["EMPTY", "", KEY])
    assert masking.text("EMPTY") == "EMPTY"
    assert masking.message(f"EMPTY {KEY}") == "*** ***"
    assert not Masking([""])
    assert Masking(["x"])
    assert not Masking(["x"]).holds(b"x")


def test_of_two_secrets_that_overlap_both_are_gone() -> None:
    longer = f"{KEY}-and-more-of-it"
    assert Masking([KEY, longer]).text(f"<{longer}> <{KEY}>") == "<***> <***>"
    assert Masking(["abcdefghijkl", "ghijklmnopqr"]).text("-abcdefghijklmnopqr-") == "-***-"


def test_a_message_is_masked_before_it_is_cut() -> None:
    mask = Masking([KEY]).message
    for length in range(560, 600):
        assert left(describe(b"=" * length + KEY.encode() * 300, mask), KEY) < 4
        padded = f"<title>{'=' * length}{KEY}</title>".encode()
        assert left(describe(padded, mask), KEY) < 4
    assert describe(KEY.encode() * 300, mask) == "***"
    assert describe(json.dumps({"error": {"message": f"bad {KEY}"}}).encode(), mask) == "bad ***"


_secrets = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=40)
_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(secret=_secrets, before=_text, after=_text, how=st.sampled_from([*WHOLE]))
@example(secret="aaaaaaaa", before="aaa", after="aaaa", how="plain")
@example(secret="%41%41%41", before="%", after="41", how="URL")
@example(secret='\\"\\"\\"\\"', before="\\", after='"', how="JSON")
def test_whatever_the_secret_nothing_of_it_is_left(
    secret: str, before: str, after: str, how: str
) -> None:
    masking, written = Masking([secret]), WRITINGS[how](secret)
    masked = masking.text(before + written + after)
    assert written not in masked
    assert masking.text(masked) == masked


@given(
    secret=st.text("abcdefghijklmnop0123456789", min_size=LEAST_CUT, max_size=60), data=st.data()
)
def test_a_piece_of_half_of_it_is_found_anywhere(secret: str, data: st.DataObject) -> None:
    least = -(-len(secret) // 2)
    start = data.draw(st.integers(0, len(secret) - least))
    stop = data.draw(st.integers(start + least, len(secret)))
    assert Masking([secret]).text(f"<{secret[start:stop]}>") == "<***>"


@given(secret=st.text("ab", min_size=LEAST_CUT, max_size=24), data=st.data())
@example(secret="aabbbbbbbbbbbbaabbbabb", data=None)
def test_a_piece_is_found_where_the_secret_repeats_itself(
    secret: str, data: st.DataObject | None
) -> None:
    least = -(-len(secret) // 2)
    start = 0 if data is None else data.draw(st.integers(0, len(secret) - least))
    before = "ababbab" if data is None else data.draw(st.text("ab", max_size=6))
    piece = "bbbbbbbbbbb" if data is None else secret[start : start + least]
    masked = Masking([secret]).text(before + piece)
    assert not any(secret[at : at + least] in masked for at in range(len(secret) - least + 1))


@pytest.mark.parametrize(
    "secret", ["P\u00c4SSW\u00d6RD-Q7pRz", "P\u00c4SSW\u00d6RD-\u00c9-\u00c0-Q7pRz2VwX9mT4kLd"]
)
def test_capital_letters_beyond_ascii_are_found(secret: str) -> None:
    for text in (secret, f"proxy://u:{secret}@host"):
        assert secret[:9] not in Masking([secret]).text(text)
        assert secret[:9].encode() not in Masking([secret]).body(text.encode())


@given(st.binary(max_size=200))
def test_bytes_without_a_secret_stay_as_they_are(body: bytes) -> None:
    assert Masking([KEY]).body(body) == body
