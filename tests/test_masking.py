"""Test which texts are taken for secrets, and that received text keeps none.

Text without a secret is unchanged.
"""

import json
import random
import secrets
import string

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from serve_eval.client.wire_format.bodies import Said
from serve_eval.client.wire_format.refusal import describe
from serve_eval.masking import LEAST_CUT, Masking
from serve_eval.schema import PromptLogprobs, ToolCall
from serve_eval.secret_signs import find_secrets, hide, holds_secret, in_address
from tests.cli.command import serve_eval
from tests.secrets.echoing import KEY, ODD, WHOLE, WRITINGS, left

RANDOM = "q7Zp2LxV9sKd4TgB1mRw"
KEYS = [
    f"sk-{RANDOM}",
    f"sk-ant-api03-{RANDOM}",
    f"nvapi-{RANDOM}",
    f"hf_{RANDOM}",
    f"ghp_{RANDOM}",
    f"github_pat_{RANDOM}",
    f"xoxb-1234567890-{RANDOM}",
    "AKIA" + "IOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    f"AIza{RANDOM}{RANDOM}",
    f"gsk_{RANDOM}",
    f"glpat-{RANDOM}",
    f"Bearer {RANDOM}",
    f"bearer  {RANDOM}",
    f"http://user:{RANDOM}@host:1/v1",
    f"before%20sk-{RANDOM}",
]
HONEST = [
    {"max_tokens": 1000, "min_tokens": 4, "stop_token_ids": [1, 2], "token_ids": [3]},
    {"add_special_tokens": False, "skip_special_tokens": True, "logit_bias": {"50256": -100}},
    {"eos_token": "<|endoftext|>", "bos_token": "<|begin_of_text|>", "pad_token": "[PAD]-long"},
    {"seed": 1234567890123456, "user": "user-1234", "prompt_cache_key": "conversation-17"},
    {"session_id": "123e4567-e89b-12d3-a456-426614174000", "cache_salt": "0f" * 16},
    {"chat_template_kwargs": {"enable_thinking": False, "tokenizer": "org/model"}},
    {"response_format": {"schema": {"properties": {"password": {"type": "string"}}}}},
    {"response_format": {"schema": {"required": ["api_key", "token", "password"]}}},
    {"guided_regex": "(api_key|token)=[a-z]{8,20}", "guided_choice": ["secret", "public"]},
    {"tools": [{"name": "get_api_key", "description": "Return the API key: a text"}]},
    {"api_key_env": "MY_KEY", "metadata": {"author": "someone", "keywords": "a, b, c"}},
    ["--hf-overrides", '{"architectures": ["X"]}', "--tokenizer-mode", "slow"],
    ["--max-num-batched-tokens", "8192", "--served-model-name", "org/risk-averse-7b"],
    ["--revision", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b", "--tokenizer=/m/hf_tokenizer-mine"],
    ["--chat-template", "http://host:1/@x", "--kv-cache-dtype", "fp8", "--seed=20261128"],
    ["/models/sk-learn-model/ckpt-9f86d081884c7d659a2feaa0c55ad015", "--api-key-file", "/run/key"],
    ["--trust-remote-code", "--guided-decoding-backend", "xgrammar", "--disable-log-requests"],
    "meta-llama/Llama-3.1-405B-Instruct-FP8",
    "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8",
    "mistralai/Mixtral-8x22B-Instruct-v0.1-GPTQ-4bit-128g",
    "a tokenizer called hf_transformers_model, and the flag sk-learn-pipeline",
]
PATHS = [
    "/v1",
    "/meta-llama/Llama-3.1-405B-Instruct-FP8/v1",
    "/v2/vllm-k0g4z5b6lllosg/openai/v1",
    "/models/llama-3-8b-a1b2c3d4e5f6/v1",
    "/sessions/123e4567-e89b-12d3-a456-426614174000/v1",
    "/openai/deployments/gpt-4o-2024-08-06",
    "/v1/0123456789abcdef0123456789abcdef/gateway/openai",
    "/ckpt-9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08/v1",
    "/nvidia/Llama-3_3-Nemotron-Super-49B-v1_5-FP8/v1",
    "/api/projects/MyCompanyLLMServingProd2East/v1",
    "/01ARZ3NDEKTSV4RRFFQ69G5FAV/v1",
    "/token/v1",
    "/serving-endpoints/databricks-meta-llama-3-1-70b-instruct/invocations",
    "/namespaces/team-a/services/http:vllm:8000/proxy/v1",
    "/20261128T202636123456Z/v1",
    "/k8s/llama-7d9c6b5f4-x2x9z/v1",
]


@pytest.mark.parametrize("key", KEYS)
def test_known_forms_of_keys_are_found_anywhere_and_hidden(key):
    assert holds_secret(key)
    assert list(find_secrets({"a": {"b": ["x", f"--word={key}"]}})) == [("a", "b", 1)]
    assert list(find_secrets({"a": [{key: 1}]})) == [("a", 0, "(a name)")]
    assert RANDOM not in hide(f"error: no such command {key!r}.", "***")


@pytest.mark.parametrize(
    "value",
    [
        {"api_key": "plain-words"},
        {"apiKey": "plain-words"},
        {"Authorization": "plain-words"},
        {"nested": [{"client_secret": 12345678}]},
        {"hf_token": "plain-words"},
        {"x-api-key": "plain-words"},
        {"db_password": "plain"},
        ["--api-key", "plain-words"],
        ["--api-key=plain-words"],
        ["-e", "HF_TOKEN=plain-words"],
        ["sh", "-c", "PASSWORD=plain exec server"],
        "server --api-key plain-words --port 1",
        ["--url", "https://host/v1?api_key=plain-words"],
        ["--url", f"https://host/{RANDOM}/v1"],
    ],
)
def test_a_secret_is_found_by_the_name_of_its_value(value):
    assert len(list(find_secrets({"extra": value}))) == 1


@pytest.mark.parametrize("value", HONEST)
def test_honest_values_are_no_secrets(value):
    assert list(find_secrets({"extra": value})) == []


@pytest.mark.parametrize("path", PATHS)
def test_honest_addresses_are_accepted(path):
    assert in_address(f"https://host.example{path}") == ""


@pytest.mark.parametrize(
    "path",
    [
        f"/{RANDOM}/v1",
        f"/proxy/{RANDOM}-{RANDOM}/v1",
        "/%71%37Zp2LxV9sKd4TgB1mRw/v1",
        "/0123456789abcdef0123456789abcdef/v1",
        "/api_key=plain-words/v1",
        "/v1;token=plain-words",
        "/api-key/plain-word-1/v1",
        "/token/Secret99/v1",
        "/v1?key=AIza" + RANDOM,
        "/sk-12345678/v1",
    ],
)
def test_a_key_in_an_address_is_found(path):
    assert in_address(f"https://host.example{path}") != ""


@given(st.integers(0, 2**32 - 1))
def test_most_random_parts_of_a_path_are_found(seed):
    """Of 50 keys of 32 letters and digits, at most 5 look like names."""
    rng = random.Random(seed)
    keys = ["".join(rng.choices(string.ascii_letters + string.digits, k=32)) for _ in range(50)]
    assert sum(in_address(f"https://host/{key}/v1") == "path" for key in keys) >= 45


def test_hexadecimal_keys_are_found():
    assert in_address(f"https://host/{secrets.token_hex(16)}/v1") == "path"


PLAN = {"model": "m", "tasks": ["gsm8k"]}


@pytest.mark.parametrize(
    ("plan", "place"),
    [
        ({"base_url": f"http://h:1/{RANDOM}/v1"}, "base_url: its path"),
        ({"base_url": f"http://u:{RANDOM}@h:1"}, "base_url: credentials"),
        ({"base_url": f"http://u:{RANDOM}@${{H}}:1"}, "base_url: holds a variable"),
        ({"base_url": f"http://u:{RANDOM}/x@h:1"}, "base_url: not a URL"),
        ({"base_url": f"http://h:1/v1?x={RANDOM}"}, "base_url: credentials, a query"),
        ({"protocol": {"extra_body": {"api_key": RANDOM}}}, "extra_body.api_key: looks like"),
        ({"protocol": {"extra_body": {"a": [f"sk-{RANDOM}"]}}}, "extra_body.a[0]: looks like"),
        (
            {"launcher": {"name": "vllm", "extra_args": ["--api-key", RANDOM]}},
            "launcher.extra_args.--api-key: looks like",
        ),
        (
            {"launcher": {"name": "trtllm", "config": {"hf_token": RANDOM}}},
            "launcher.config.hf_token: looks like",
        ),
        (
            {"launcher": {"name": "external", "servers": {"context_0": f"http://h/{RANDOM}/v1"}}},
            "launcher.servers.context_0: looks like",
        ),
        ({"connection": {"headers": {"X-Team": f"gsk_{RANDOM}"}}}, "headers.X-Team: looks like"),
        ({"connection": {"proxy": f"http://u:{RANDOM}@h:1"}}, "proxy: holds credentials"),
        ({"connection": {"proxy": f"http://h:1/{RANDOM}"}}, "proxy: expected"),
        ({"connection": {"api_key_env": f"glpat-{RANDOM}"}}, "expected the name of an env"),
        ({"model": f"sk-{RANDOM}"}, "model: looks like"),
    ],
)
def test_a_key_in_a_plan_is_refused_before_anything_is_written(tmp_path, plan, place):
    file, out = tmp_path / "plan.yaml", tmp_path / "out"
    file.write_text(json.dumps(PLAN | plan))
    done = serve_eval("run", file, "-o", out)
    assert (done.returncode, place in done.stderr) == (2, True), done.stderr
    assert RANDOM not in done.stdout + done.stderr
    assert not out.exists()


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--base-url", f"http://h/{RANDOM}/v1", "--tasks", "gsm8k"),
        ("run", "--tasks", "gsm8k", "--extra-body", json.dumps({"token": RANDOM})),
        (
            "run",
            "--tasks",
            "gsm8k",
            "--set",
            f"protocol.extra_body={json.dumps({'token': RANDOM})}",
        ),
        ("compare", f"http://h/{RANDOM}/v1", "http://h:2", "--tasks", "gsm8k"),
        ("compare", "http://h:2", f"http://u:{RANDOM}@h", "--tasks", "gsm8k"),
        ("verify", f"http://h/{RANDOM}/v1", "http://h:2"),
        ("smoke", f"http://h/{RANDOM}/v1"),
        ("setup", "doctor", f"http://u:{RANDOM}@h/v1"),
        (f"http://u:{RANDOM}@h/v1",),
        ("run", f"sk-{RANDOM}", f"--sk-{RANDOM}"),
    ],
)
def test_no_command_repeats_a_key(tmp_path, words):
    out = ("-o", str(tmp_path / "out")) if words[0] in ("run", "compare", "verify") else ()
    done = serve_eval(*words, *out)
    assert done.returncode == 2, done.stderr
    assert RANDOM not in done.stdout + done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("variable", ["SERVE_EVAL_BASE_URL", "OPENAI_BASE_URL"])
def test_a_key_in_an_address_of_the_environment_is_refused(variable, tmp_path):
    address = {variable: f"https://h/{RANDOM}/v1"}
    done = serve_eval("run", "--tasks", "gsm8k", "-o", tmp_path / "out", **address)
    assert (done.returncode, RANDOM in done.stderr) == (2, False)
    assert not (tmp_path / "out").exists()


def test_a_key_in_a_suite_is_refused(tmp_path):
    entry = {"name": "a", **PLAN, "base_url": "h:1", "attributes": {"api_key": RANDOM}}
    (tmp_path / "suite.yaml").write_text(json.dumps({"name": "s", "plans": [entry]}))
    done = serve_eval("run", tmp_path / "suite.yaml", "-o", tmp_path / "out")
    assert (done.returncode, RANDOM in done.stderr) == (2, False)
    assert "attributes.api_key: looks like a secret" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("key", [KEY, ODD])
@pytest.mark.parametrize("how", WRITINGS)
def test_a_secret_is_found_however_it_is_written(key, how):
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
def test_what_is_no_secret_stays_byte_for_byte(text):
    masking = Masking([KEY, ODD, "short"])
    assert masking.text(text) == text
    for body in (
        text.encode(),
        json.dumps({"a": text, "b": 1e400}).encode(),
        b"\xff\xfe" + text.encode("utf-16"),
    ):
        assert masking.body(body) == body
        assert not masking.holds(body)


def test_json_stays_json_and_numbers_are_looked_at_too():
    told = {"text": f"a\n{KEY[1:]} b", KEY: [None, True, 1.5, "\\" + ODD], "n": "\u00e9"}
    masked = json.loads(Masking([KEY, ODD]).body(json.dumps(told).encode()))
    assert masked == {"text": "a\n*** b", "***": [None, True, 1.5, "\\***"], "n": "\u00e9"}
    assert Masking(["1234567890123456"]).body(b'{"id": 1234567890123456}') == b'{"id": ***}'
    lines = f"event: x\r\ndata: {json.dumps({'a': 'n' + KEY})}\r\n\r\ndata: [DONE]\n".encode()
    assert Masking([KEY]).body(lines) == b'event: x\r\ndata: {"a":"n***"}\n\r\ndata: [DONE]\n'
    assert Masking([KEY]).body(f"<b>{KEY}\xff</b>".encode("latin-1")) == b"<b>***\xff</b>"
    nested = "[" * 100_000 + f'"{KEY}"'
    assert KEY.encode() not in Masking([KEY]).body(nested.encode())


def test_a_secret_in_pieces_is_taken_out_of_all_of_them():
    masking = Masking([KEY])
    pieces = ["The ", "key", " sk-li", "ve-Q7pRz", "2VwX9m", "T4kLd is", " ", "yours"]
    assert masking.pieces(pieces) == ["The ", "key", " ***", "", "", " is", " ", "yours"]
    assert masking.pieces([KEY, " ", KEY]) == ["***", " ", "***"]
    assert masking.pieces([f"{KEY} and {KEY}", "x"]) == ["*** and ***", "x"]
    assert masking.pieces(["a", "b"]) == ["a", "b"]
    assert masking.pieces([*KEY, "."]) == ["***", *[""] * 23, "."]


def test_every_text_of_an_answer_is_looked_at():
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
    assert masked.prompt_logprobs.tokens == ("x", "***", "", "y")
    texts = [value for value in msgspec.structs.astuple(masked) if isinstance(value, str)]
    assert texts == ["a *** b"] * 8
    plain = Said(text="plain", tool_calls=(ToolCall("search", "{}"),))
    assert Masking([KEY]).value(plain) is plain


def test_short_secrets_are_taken_out_of_messages_alone():
    masking = Masking(["EMPTY", "", KEY])
    assert masking.text("EMPTY") == "EMPTY"
    assert masking.message(f"EMPTY {KEY}") == "*** ***"
    assert not Masking([""])
    assert Masking(["x"])
    assert not Masking(["x"]).holds(b"x")


def test_of_two_secrets_that_overlap_both_are_gone():
    longer = f"{KEY}-and-more-of-it"
    assert Masking([KEY, longer]).text(f"<{longer}> <{KEY}>") == "<***> <***>"
    assert Masking(["abcdefghijkl", "ghijklmnopqr"]).text("-abcdefghijklmnopqr-") == "-***-"


def test_a_message_is_masked_before_it_is_cut():
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
def test_whatever_the_secret_nothing_of_it_is_left(secret, before, after, how):
    masking, written = Masking([secret]), WRITINGS[how](secret)
    masked = masking.text(before + written + after)
    assert written not in masked
    assert masking.text(masked) == masked


@given(
    secret=st.text("abcdefghijklmnop0123456789", min_size=LEAST_CUT, max_size=60), data=st.data()
)
def test_a_piece_of_half_of_it_is_found_anywhere(secret, data):
    least = -(-len(secret) // 2)
    start = data.draw(st.integers(0, len(secret) - least))
    stop = data.draw(st.integers(start + least, len(secret)))
    assert Masking([secret]).text(f"<{secret[start:stop]}>") == "<***>"


@given(secret=st.text("ab", min_size=LEAST_CUT, max_size=24), data=st.data())
@example(secret="aabbbbbbbbbbbbaabbbabb", data=None)
def test_a_piece_is_found_where_the_secret_repeats_itself(secret, data):
    least = -(-len(secret) // 2)
    start = 0 if data is None else data.draw(st.integers(0, len(secret) - least))
    before = "ababbab" if data is None else data.draw(st.text("ab", max_size=6))
    piece = "bbbbbbbbbbb" if data is None else secret[start : start + least]
    masked = Masking([secret]).text(before + piece)
    assert not any(secret[at : at + least] in masked for at in range(len(secret) - least + 1))


@pytest.mark.parametrize(
    "secret", ["P\u00c4SSW\u00d6RD-Q7pRz", "P\u00c4SSW\u00d6RD-\u00c9-\u00c0-Q7pRz2VwX9mT4kLd"]
)
def test_capital_letters_beyond_ascii_are_found(secret):
    for text in (secret, f"proxy://u:{secret}@host"):
        assert secret[:9] not in Masking([secret]).text(text)
        assert secret[:9].encode() not in Masking([secret]).body(text.encode())


@given(st.binary(max_size=200))
def test_bytes_without_a_secret_stay_as_they_are(body):
    assert Masking([KEY]).body(body) == body
