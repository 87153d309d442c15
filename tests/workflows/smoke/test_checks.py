"""Each check, provoked to each of its rows by an endpoint with one fault."""

import random

import pytest

from serve_eval.checks.kinds.ending import COUNT
from serve_eval.checks.kinds.sampling import LEVEL, count_alike, rate_likeness
from serve_eval.workflows import smoke
from tests.workflows.smoke.server import Quirks, create
from tests.workflows.smoke.trying import by_name, smoke_of

PASS, FAIL, UNSUPPORTED = "PASS", "FAIL", "UNSUPPORTED"


def _quirks(*names, **more):
    return Quirks(names=frozenset(names), **more)


def _has(*fields):
    """Return a server that refuses bodies with any of these fields."""
    return Quirks(refuses=lambda body: any(field in body for field in fields))


def _errs(field):
    return Quirks(errs=lambda body: field in body)


def _prompted(text, by="refuses"):
    """Return a server that refuses or fails on bodies whose prompt contains this text."""
    return Quirks(**{by: lambda body: text in str(body.get("messages", body.get("prompt")))})


def _streams(body):
    return bool(body.get("stream"))


def _asks_portably(body):
    return body.get("response_format", {}).get("type") == "json"


WRAPPED = (
    500,
    {
        "detail": (
            "Internal server error 400, message='Bad Request',"
            " url='http://localhost:1/v1/completions'"
        )
    },
)
ONE_PROMPT = (
    500,
    {
        "detail": (
            "Internal server error Disaggregated server currently only supports single string"
            " prompt"
        )
    },
)
NO_SUCH_FORM = (
    "[{'type': 'literal_error', 'loc': ('body', 'response_format', 'type'), 'msg': \"Input should"
    " be 'text' or 'json_schema'\", 'input': 'json'}]"
)
SOUND = Quirks()
CASES = [
    ("health", UNSUPPORTED, "no /health", _quirks("health_page")),
    ("health", FAIL, "HTTP 503", _quirks("unhealthy")),
    ("version", UNSUPPORTED, "no /version", _quirks("no_version")),
    ("version", FAIL, "HTTP 500: oops", _quirks("version_500")),
    ("version", PASS, "a disaggregated orchestrator", _quirks("orchestrator")),
    ("models", UNSUPPORTED, "orchestrator has no such route", _quirks("no_models", "orchestrator")),
    ("models", UNSUPPORTED, "the list is empty", _quirks("empty_models")),
    ("models", FAIL, "HTTP 500: no cache folder", _quirks("models_500")),
    ("chat", UNSUPPORTED, "HTTP 404", _quirks("no_chat")),
    ("chat", FAIL, "role is 'user'", _quirks("odd_role")),
    ("chat", FAIL, "finish_reason is 'unknown'", _quirks("odd_finish")),
    ("chat", FAIL, "the answer is empty", _quirks("empty")),
    ("chat", PASS, "''", _quirks("empty", "thinks_in_secret")),
    ("chat", FAIL, "the answer arrives as reasoning", _quirks("misfiles")),
    ("chat", FAIL, "HTTP 500", _errs("messages")),
    (
        "chat",
        UNSUPPORTED,
        "chat template",
        _quirks(refuses=lambda b: "messages" in b, refusal=(400, "no chat template")),
    ),
    ("completions", UNSUPPORTED, "HTTP 404", _quirks("no_completions")),
    ("completions", FAIL, "HTTP 500", _errs("prompt")),
    ("completions", FAIL, "the answer is empty", _quirks("empty")),
    ("stream_chat", UNSUPPORTED, "stream was ignored", _quirks("no_stream")),
    ("stream_chat", UNSUPPORTED, "refused: HTTP 400", Quirks(refuses=_streams)),
    ("stream_chat", FAIL, "HTTP 500", Quirks(errs=_streams)),
    ("stream_chat", FAIL, "without data: [DONE]", _quirks("no_done")),
    ("stream_chat", FAIL, "without a finish_reason", _quirks("no_finish")),
    ("stream_chat", FAIL, "the answer is lost", _quirks("done_only")),
    ("stream_chat", FAIL, "the engine is gone", _quirks("error_event")),
    ("stream_chat", FAIL, "not a JSON object: {oops", _quirks("no_json_event")),
    ("stream_chat", FAIL, "the stream was cut", _quirks("cut_streams")),
    ("stream_chat", FAIL, "the streamed answer is empty", _quirks("empty")),
    ("stream_chat", FAIL, "the answer arrives as reasoning", _quirks("misfiles_streams")),
    ("stream_chat", FAIL, "the beginning of the whole", _quirks("misfiles_beginnings")),
    ("stream_chat", PASS, "[DONE]", _quirks("empty", "thinks_in_secret")),
    ("stream_chat", PASS, "[DONE]", _quirks("carriage_returns")),
    ("stream_completions", UNSUPPORTED, "completions are not answered", _quirks("no_completions")),
    ("stream_completions", FAIL, "without data: [DONE]", _quirks("no_done")),
    ("stream_usage", UNSUPPORTED, "include_usage was ignored", _quirks("no_stream_usage")),
    ("stream_usage", UNSUPPORTED, "no stream", _quirks("no_stream")),
    ("stream_usage", FAIL, "more than 16 tokens", _quirks("counts_too_much")),
    ("max_tokens", FAIL, "ignored: 200 tokens", _quirks("ignores_max_tokens")),
    ("max_tokens", UNSUPPORTED, "refused", _prompted("Count from")),
    (
        "max_completion_tokens",
        FAIL,
        "ignored: the connection was closed after 8192 bytes",
        _quirks("ignores_max_completion_tokens"),
    ),
    (
        "max_completion_tokens",
        FAIL,
        "characters",
        _quirks("ignores_max_completion_tokens", "unskilled"),
    ),
    (
        "max_completion_tokens",
        FAIL,
        "was not cut",
        _quirks("ignores_max_completion_tokens", knows={COUNT: "6, 7, 8, 9, 10"}),
    ),
    ("max_completion_tokens", UNSUPPORTED, "refused", _has("max_completion_tokens")),
    ("stop", PASS, "cut before", _quirks("one_word")),
    ("stop", FAIL, "instead of before it", _quirks("keeps_stop")),
    ("stop", FAIL, "continues after", _quirks("ignores_stop")),
    ("stop", FAIL, "finish_reason is 'length'", _quirks("stop_as_length")),
    ("stop", UNSUPPORTED, "refused", _has("stop")),
    ("temperature_0", FAIL, "differs from the first at character", _quirks("restless")),
    ("temperature_0", UNSUPPORTED, "refused", _prompted("surprised you")),
    ("first_token", FAIL, "lacks the beginning of the whole answer", _quirks("streams_lose_first")),
    ("first_token", FAIL, "repeats the beginning of", _quirks("streams_double_first")),
    ("first_token", FAIL, "differs from the whole answer", _quirks("streams_differ")),
    ("first_token", FAIL, "one token is 'else', but 3 are", _quirks("other_first_alone")),
    ("first_token", UNSUPPORTED, "answers vary at temperature 0", _quirks("restless")),
    ("first_token", UNSUPPORTED, "stream was ignored", _quirks("no_stream")),
    ("temperature", FAIL, "ignored: all 4 answers", _quirks("always_greedy")),
    ("temperature", UNSUPPORTED, "refused", Quirks(refuses=lambda body: body["temperature"] > 1)),
    (
        "temperature",
        PASS,
        "4 different answers",
        _quirks("ignores_seed", refuses=lambda b: "seed" in b, refusal=(400, "Extra inputs: seed")),
    ),
    (
        "seed",
        UNSUPPORTED,
        "ignored: 5 answers to one seed are 5 texts, no more alike than those to other seeds",
        _quirks("ignores_seed"),
    ),
    (
        "seed",
        UNSUPPORTED,
        "not reproducible: 5 answers to one seed are 5 texts, which begin alike (",
        _quirks("parts_later"),
    ),
    (
        "seed",
        UNSUPPORTED,
        "answers vary at temperature 0 too, so the seed cannot be judged",
        _quirks("restless"),
    ),
    ("seed", UNSUPPORTED, "cannot be tested", _quirks("always_greedy")),
    ("seed", FAIL, "HTTP 500", Quirks(errs=lambda body: body.get("seed") == 7)),
    ("n", UNSUPPORTED, "ignored: one choice", _quirks("one_choice")),
    ("n", UNSUPPORTED, "refused: HTTP 500", _quirks(refuses=lambda b: "n" in b, refusal=WRAPPED)),
    ("n", FAIL, "choices with indices [0, 1, 2]", _quirks("a_choice_too_many")),
    ("n", FAIL, "with indices [0, 0]", _quirks("one_index")),
    ("logprobs_chat", UNSUPPORTED, "ignored", _quirks("no_logprobs")),
    ("logprobs_chat", UNSUPPORTED, "broken characters", _quirks("no_logprobs", "broken")),
    ("logprobs_chat", PASS, "1 tokens", _quirks("few_logprobs", "broken")),
    ("logprobs_chat", FAIL, "1 log-probabilities for 4", _quirks("few_logprobs")),
    ("logprobs_chat", FAIL, "0.5 is not a log-probability", _quirks("bad_logprobs")),
    ("logprobs_chat", FAIL, "8 log-probabilities for 4 tokens", _quirks("twice_the_logprobs")),
    ("logprobs_chat", FAIL, "2 top_logprobs were requested", _quirks("no_top")),
    *(
        case
        for name in ("logprobs_chat", "logprobs_completions")
        for case in (
            (name, PASS, "4 tokens; streamed: none", SOUND),
            (name, PASS, "4 tokens, also streamed", _quirks("streams_logprobs")),
            (
                name,
                FAIL,
                "1 log-probabilities in a stream, 4 in the whole answer",
                _quirks("streams_logprobs", "streams_few_logprobs"),
            ),
            (
                name,
                PASS,
                "streamed: 4, of another text",
                _quirks("streams_logprobs", "streams_differ"),
            ),
        )
    ),
    ("logprobs_completions", UNSUPPORTED, "ignored", _quirks("no_logprobs")),
    ("logprobs_completions", UNSUPPORTED, "ask for them by chat", _quirks("chat_logprobs")),
    (
        "logprobs_completions",
        FAIL,
        "in the form of chat: 0.5 is not",
        _quirks("chat_logprobs", "bad_logprobs"),
    ),
    (
        "logprobs_completions",
        FAIL,
        "in the form of chat: 1 log-probabilities for",
        _quirks("chat_logprobs", "few_logprobs"),
    ),
    ("logprobs_completions", FAIL, "not a log-probability", _quirks("bad_logprobs")),
    (
        "prompt_logprobs",
        UNSUPPORTED,
        "log-probabilities for a prompt",
        _quirks("no_prompt_logprobs"),
    ),
    ("prompt_logprobs", UNSUPPORTED, "this field is not taken", _has("echo", "prompt_logprobs")),
    ("prompt_logprobs", FAIL, "HTTP 500", _errs("echo")),
    (
        "prompt_logprobs",
        FAIL,
        "only 0 are the likeliest at their position",
        _quirks("misplaced_logprobs"),
    ),
    ("json", UNSUPPORTED, "ignored", _quirks("no_guided")),
    ("json", FAIL, "HTTP 500", _errs("response_format")),
    ("json_schema", UNSUPPORTED, "ignored", _quirks("no_guided")),
    ("json_schema", FAIL, "violates the schema", _quirks("wrong_guided")),
    (
        "json_schema",
        UNSUPPORTED,
        "the schema is followed as response_format type json",
        _quirks("wrong_json_schema"),
    ),
    (
        "json_schema",
        FAIL,
        "violates the schema",
        _quirks("wrong_json_schema", refuses=_asks_portably),
    ),
    ("json_schema", FAIL, "violates the schema", _quirks("wrong_json_schema", errs=_asks_portably)),
    (
        "json_schema",
        FAIL,
        "violates the schema",
        _quirks("wrong_json_schema", owner="tensorrt_llm"),
    ),
    (
        "json_portable",
        UNSUPPORTED,
        "the schema is followed as response_format type json_schema",
        _quirks("wrong_json", owner="vllm"),
    ),
    ("json_portable", FAIL, "violates", _quirks("wrong_json", owner="tensorrt_llm")),
    ("json_portable", UNSUPPORTED, "refused", _has("response_format")),
    (
        "json_portable",
        UNSUPPORTED,
        "refused: HTTP 400: response_format.type: Input should be 'text' or 'json_schema'",
        _quirks(refuses=lambda b: "response_format" in b, refusal=(400, {"error": NO_SUCH_FORM})),
    ),
    (
        "json_schema",
        UNSUPPORTED,
        "white space within the JSON until max_tokens. To forbid white space, start vLLM with"
        ' --structured-outputs-config \'{"backend":"xgrammar","disable_any_whitespace":true}\'',
        _quirks("blank_json", owner="vllm"),
    ),
    ("json", UNSUPPORTED, "only max_tokens ends it", _quirks("blank_json", "orchestrator")),
    ("json", UNSUPPORTED, "start vLLM with --structured-outputs-config", _quirks("blank_json")),
    (
        "json",
        UNSUPPORTED,
        "until max_tokens. The schema allows it, so only max_tokens ends it.",
        _quirks("blank_json", owner="tensorrt_llm"),
    ),
    ("json_portable", FAIL, "violates the schema", _quirks("wrong_guided")),
    (
        "tools",
        UNSUPPORTED,
        "requires --jinja",
        Quirks(
            refuses=lambda body: "tools" in body,
            refusal=(500, {"error": {"message": "tools param requires --jinja flag"}}),
        ),
    ),
    ("tools", UNSUPPORTED, "none was called", _quirks("no_tools")),
    ("tools", UNSUPPORTED, "refused", _has("tools")),
    ("tools", FAIL, "start the server with a tool parser", _quirks("call_as_text")),
    ("tools", FAIL, "not a JSON object", _quirks("bad_arguments")),
    ("reasoning", UNSUPPORTED, "no thoughts", _quirks("no_thoughts")),
    ("reasoning", UNSUPPORTED, "cut within its thoughts", _quirks("long_thoughts")),
    ("reasoning", FAIL, "the thoughts loop: 'hm'", _quirks("looping_thoughts")),
    ("reasoning", UNSUPPORTED, "at temperature 0 the thoughts loop", _quirks("greedy_loops")),
    ("reasoning", FAIL, "never end", _quirks("open_thoughts")),
    ("reasoning", FAIL, "still have their tags", _quirks("tags_left")),
    ("reasoning", PASS, "no reasoning parser", _quirks("tags_in_text")),
    ("system_role", UNSUPPORTED, "refused", _prompted("'system'")),
    ("system_role", UNSUPPORTED, "not counted", _quirks("no_prompt_tokens")),
    ("system_role", FAIL, "ignored", _quirks("ignores_system")),
    ("system_role", FAIL, "<|im_end|>", _quirks("markers", "unskilled")),
    ("special_tokens", UNSUPPORTED, "changes nothing", _quirks("no_special_setting")),
    ("special_tokens", UNSUPPORTED, "refused", _has("add_special_tokens")),
    ("special_tokens", FAIL, "doubled", _quirks("doubles_special_tokens")),
    (
        "token_ids",
        UNSUPPORTED,
        "refused",
        Quirks(refuses=lambda b: isinstance(b.get("prompt"), list)),
    ),
    ("token_ids", FAIL, "were counted as 16", _quirks("ids_as_text")),
    (
        "batch",
        UNSUPPORTED,
        "HTTP 500",
        _quirks(refuses=lambda b: isinstance(b.get("prompt"), list), refusal=ONE_PROMPT),
    ),
    ("batch", FAIL, "1 answers to two prompts", _quirks("one_of_batch")),
    ("tokenize", PASS, "chat 7, completions 6 prompt tokens, as counted", SOUND),
    ("tokenize", PASS, "completions 6 prompt", _quirks("texts_only")),
    ("tokenize", PASS, "completions 6 prompt", _quirks("no_tokenize", "internal_tokenize")),
    ("tokenize", UNSUPPORTED, "not offered", _quirks("no_tokenize")),
    ("tokenize", UNSUPPORTED, "not offered", _quirks("other_tokenize")),
    ("tokenize", UNSUPPORTED, "not counted", _quirks("no_prompt_tokens")),
    (
        "tokenize",
        FAIL,
        "chat count 7 prompt tokens, but the server's tokenizer gives 8",
        _quirks("tokenizes_one_more"),
    ),
    ("tokenize", FAIL, "a special token too many", _quirks("doubles_special_tokens")),
    ("returned_ids", PASS, "chat 7 read, 8 written; completions 6 read, 8 written", SOUND),
    ("returned_ids", PASS, "chat 7 read", _quirks("no_tokenize")),
    ("returned_ids", PASS, "completions 8 written", _quirks("no_ids", "ids_instead_of_text")),
    ("returned_ids", UNSUPPORTED, "not offered", _quirks("no_ids")),
    ("returned_ids", UNSUPPORTED, "not offered", _has("return_token_ids", "detokenize")),
    (
        "returned_ids",
        FAIL,
        "chat: the ids of the prompt differ from the tokenizer's: 5, not 0, at position 0",
        _quirks("other_ids"),
    ),
    ("returned_ids", FAIL, "chat: the ids of the prompt differ", _quirks("an_id_too_many")),
    (
        "returned_ids",
        FAIL,
        "chat: 8 ids of a prompt of 7 tokens",
        _quirks("an_id_too_many", "no_tokenize"),
    ),
    ("returned_ids", FAIL, "chat: 4 ids of an answer of 8 tokens", _quirks("few_ids")),
    ("unknown_field", PASS, "refused", _has("serve_eval_unknown_field")),
    ("unknown_field", FAIL, "HTTP 500", _errs("serve_eval_unknown_field")),
    (
        "openai_chat",
        UNSUPPORTED,
        "HTTP 400",
        Quirks(refuses=lambda b: b.get("max_tokens") == 8 and "messages" in b),
    ),
    (
        "openai_chat",
        FAIL,
        "HTTP 500",
        Quirks(errs=lambda b: b.get("max_tokens") == 8 and "messages" in b),
    ),
    ("openai_completions", UNSUPPORTED, "not answered", _quirks("no_completions")),
    ("openai_completions", FAIL, "no text", _quirks("empty")),
    ("openai_stream_chat", UNSUPPORTED, "not answered", _quirks("no_chat")),
    ("openai_stream_chat", FAIL, "the engine is gone", _quirks("error_event")),
    ("openai_stream_completions", UNSUPPORTED, "not answered", _quirks("no_completions")),
    ("openai_stream_completions", FAIL, "Error", _quirks("no_json_event")),
    ("concurrency", FAIL, "63 of 64 answered; else HTTP 500", _prompted("the number 12.", "errs")),
    ("concurrency", FAIL, "a stream was cut", _quirks("newest_stream_only")),
    ("questions", FAIL, "0 of 20 right", _quirks("unskilled")),
    ("questions", UNSUPPORTED, "20 were cut within their thoughts", _quirks("long_thoughts")),
    ("questions", PASS, "20 of 20", _quirks("no_chat")),
    ("passkey_1k", FAIL, "not found in", _quirks("unskilled")),
    ("passkey_1k", UNSUPPORTED, "cut within its thoughts", _quirks("long_thoughts")),
    ("passkey_1k", PASS, "found in", _quirks("no_chat")),
    ("passkey_8k", UNSUPPORTED, "refused", _prompted("pass key")),
    ("image", UNSUPPORTED, "refused: HTTP 400: this is not a multi", _quirks("no_media")),
    ("image", UNSUPPORTED, "refused: HTTP 500: image input is not", _quirks("no_media_500")),
    ("image", UNSUPPORTED, "chat is not answered", _quirks("no_chat")),
    ("image", FAIL, "prompt tokens with the image, ", _quirks("ignores_media")),
    ("image", FAIL, "; 64 prompt tokens", _quirks("blind")),
    ("image", FAIL, "HTTP 500: Internal Server Error", _quirks("media_500")),
    ("image", PASS, "answered 'A red circle.'", _quirks("no_prompt_tokens")),
    ("audio", UNSUPPORTED, "refused: HTTP 400", _quirks("no_media")),
    ("audio", FAIL, "; 64 prompt tokens", _quirks("blind")),
    ("video", UNSUPPORTED, "refused: HTTP 400", _quirks("no_media")),
    ("video", FAIL, "ignored: ", _quirks("ignores_media")),
    ("bad_media", UNSUPPORTED, "no media are taken", _quirks("no_media")),
    ("bad_media", FAIL, "a text sent as image was accepted", _quirks("takes_texts")),
    ("bad_media", FAIL, "not refused clearly: HTTP 500", _quirks("texts_500")),
    ("bad_media", FAIL, "half of the file was ignored (image)", _quirks("ignores_halves")),
    ("bad_media", FAIL, "not refused clearly (image): HTTP 500", _quirks("halves_500")),
    ("bad_media", PASS, "half of the video read as far as it goes", _quirks("reads_halves")),
    ("bad_media", PASS, "half of the audio refused", SOUND),
    ("large_media", UNSUPPORTED, "no media are taken", _quirks("no_media")),
    ("large_media", PASS, "17 MB is answered", SOUND),
    ("large_media", PASS, "17 MB is refused: HTTP 413", _quirks("large_413")),
    ("large_media", FAIL, "neither answered nor refused clearly", _quirks("large_500")),
    ("cancel", UNSUPPORTED, "no answer was long enough", _quirks("unskilled", "no_thoughts")),
    ("cancel", FAIL, "the connection ended within the answer", _quirks("cut_long_streams")),
    ("cancel", UNSUPPORTED, "no stream", _quirks("no_stream")),
    ("cancel", PASS, "after 8 cancelled ones", _quirks(context=500)),
    ("cancel", PASS, "after 8 cancelled ones", _quirks("context_untold", context=500)),
    ("cancel", PASS, "after 8 cancelled ones", _has("ignore_eos")),
    ("reasoning", PASS, "closed", _quirks(context=500)),
    ("long_prompt", FAIL, "accepted: ", _quirks("no_context")),
    ("long_prompt", FAIL, "without a reason", _quirks("no_reason")),
    ("long_prompt", FAIL, "HTTP 500", Quirks(errs=lambda body: len(str(body)) > 40000)),
    ("long_prompt", UNSUPPORTED, "forwarded as HTTP 500", _quirks("wraps_refusals")),
    ("long_prompt", UNSUPPORTED, "smoke.context_tokens", _quirks("context_untold")),
    ("max_tokens_0", FAIL, "taken as no limit", _quirks("max_tokens_0_is_no_limit")),
    (
        "max_tokens_0",
        FAIL,
        "no limit",
        _quirks("max_tokens_0_is_no_limit", knows={COUNT: "6, 7, 8, 9, 10"}),
    ),
    ("max_tokens_0", UNSUPPORTED, "taken as one token", _quirks("max_tokens_0_is_1")),
    ("max_tokens_0", UNSUPPORTED, "not sent", _quirks("orchestrator")),
    ("max_tokens_0", FAIL, "HTTP 500", Quirks(errs=lambda body: body.get("max_tokens") == 0)),
]
STANDS_ON = {
    "stream_usage": ["stream_chat", "stream_completions"],
    "first_token": ["temperature_0"],
    "seed": ["temperature_0", "temperature"],
    "returned_ids": ["tokenize"],
    "concurrency": ["stream_chat"],
    "cancel": ["stream_chat"],
    "max_completion_tokens": ["max_tokens"],
    "max_tokens_0": ["version", "max_tokens"],
    "models": ["version"],
    "json": ["version"],
    "bad_media": ["image", "audio", "video"],
    "large_media": ["image"],
}
NEVER_UNSUPPORTED = {"reachable", "unknown_field", "concurrency"}
NEVER_FAILS = {"passkey_8k"}
"""Checks whose failure is tested through the same check at another length."""


def test_a_sound_endpoint_passes_everything():
    done = smoke_of(create(SOUND), passkey_tokens=2000)
    assert {row.name for row in done.rows} == {
        check.name for check in smoke.choose_checks("full", passkey_tokens=2000)
    }
    assert {row.name: row.told for row in done.rows if row.outcome != PASS} == {}
    assert (done.exit_code, done.stopped) == (0, "")


@pytest.mark.parametrize(
    ("name", "outcome", "told", "quirks"),
    CASES,
    ids=[f"{name}-{outcome}-{told}" for name, outcome, told, _ in CASES],
)
def test_a_fault_has_its_row(name, outcome, told, quirks):
    done = smoke_of(create(quirks), only=[name, *STANDS_ON.get(name, [])], model="m")
    row = by_name(done)[name]
    assert (row.outcome, told in row.told) == (outcome, True), row
    assert row.curl is None or outcome != PASS


def test_the_table_above_provokes_every_check():
    seen = {(name, outcome) for name, outcome, _, _ in CASES}
    for check in smoke.choose_checks("full"):
        if check.name not in NEVER_UNSUPPORTED:
            assert (check.name, UNSUPPORTED) in seen, check.name
        if check.name not in NEVER_FAILS and check.name != "reachable":
            assert (check.name, FAIL) in seen, check.name


def test_a_slot_that_a_cancelled_request_keeps_is_missed_by_the_next():
    done = smoke_of(
        create(_quirks("leak")), only=["stream_chat", "cancel", "long_prompt"], timeout_s=1.0
    )
    row = by_name(done)["cancel"]
    assert row.outcome == FAIL
    assert "after 8 cancelled requests, the next one failed: no answer within 1 s" in row.told
    assert done.stopped == "a short request was no longer answered after cancel"
    assert "long_prompt" not in by_name(done)


def test_a_server_that_dies_of_a_long_prompt_is_told():
    done = smoke_of(
        create(_quirks("dies_of_long_prompts")), only=["long_prompt", "max_tokens_0"], timeout_s=0.7
    )
    assert "after that a short request was no longer answered" in by_name(done)["long_prompt"].told
    assert "max_tokens_0" not in by_name(done)
    assert done.exit_code == 1


def test_how_much_alike_answers_to_one_seed_must_begin():
    others = ["a b", "c d", "e f", "g h"]
    parted = ["x y z", "x y q", "x w", "x y z", "x v"]
    assert count_alike(["x y z", "x y q", "x w"]) == (4 + 2 + 2) / 3
    assert rate_likeness(parted, others) == 1 / 126
    assert rate_likeness(["i j", "k l", "m n", "o p", "q r"], others) == 1.0


def test_a_server_that_ignores_seeds_is_seldom_called_not_reproducible():
    rng = random.Random(0)
    rates = [
        rate_likeness(drawn[:5], drawn[5:])
        for drawn in ([f"{rng.getrandbits(24):024b}" for _ in range(9)] for _ in range(1000))
    ]
    assert sum(rate <= LEVEL for rate in rates) <= 30  # a binomial of .02 has more once in 80
