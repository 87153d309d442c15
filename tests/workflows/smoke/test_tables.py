"""Test whole tables of smoke tests, of our own endpoints and of other servers.

Our own are the stand-in in both flavours, the simulated endpoint and the embedded model. Tables of
real servers of other projects are in tests/peers.
"""

import asyncio
from contextlib import ExitStack
from typing import NamedTuple

import pytest
import yaml

from serve_eval.checks.row import CheckOutcome
from serve_eval.launchers import embedded
from serve_eval.launchers._simulated.simulator import SimulatorConfig, create_app
from serve_eval.schema import LaunchContext
from serve_eval.workflows import smoke
from tests.scripted_server import ScriptedServer, answer, json_reply, raw, version
from tests.sglang_server import SglangServer
from tests.standin.deployments import environment, free_port, running, wait_healthy
from tests.workflows.smoke.server import Quirks, create
from tests.workflows.smoke.trying import by_name, smoke_at, smoke_of

FAIL, UNSUPPORTED = "FAIL", "UNSUPPORTED"
CONTEXT = 12000


def no_pass(done):
    """Return the rows other than PASS of a smoke test in which each check has its row."""
    assert [row.name for row in done.rows] == [
        check.name for check in smoke.choose_checks("full")
    ], done.stopped
    return {row.name: row.outcome for row in done.rows if row.outcome != "PASS"}


# --------------------------------------------------------------------------------------------------
# the stand-in


class Pair(NamedTuple):
    worker: str
    orchestrator: str


def _pair(flavour, folder):
    """Yield a context and a generation server with their orchestrator.

    Each worker is a whole server as well.
    """
    (folder / "w.yaml").write_text(yaml.safe_dump({"cache_transceiver_config": {"backend": "UCX"}}))
    ports = [free_port() for _ in range(3)]
    urls = [[f"localhost:{port}"] for port in ports]
    config = {
        "port": ports[2],
        "context_servers": {"urls": urls[0]},
        "generation_servers": {"urls": urls[1]},
    }
    (folder / "d.yaml").write_text(yaml.safe_dump(config))
    env = environment(flavour, STANDIN_SKILLS="1", STANDIN_POLL_S="0.1")
    lengths = [
        "--max_seq_len",
        str(CONTEXT),
        "--max_num_tokens",
        "16384",
        "--config",
        str(folder / "w.yaml"),
    ]
    arguments = [["M", "--port", str(port), *lengths] for port in ports[:2]]
    arguments.append(["disaggregated", "-c", str(folder / "d.yaml")])
    with ExitStack() as stack:
        logs = [folder / f"{number}.log" for number in range(3)]
        started = [
            stack.enter_context(running(one, log, env))
            for one, log in zip(arguments, logs, strict=True)
        ]
        found = [wait_healthy(*one) for one in zip(started, ports, logs, strict=True)]
        yield Pair(found[1], found[2])


@pytest.fixture(scope="module")
def v12(tmp_path_factory):
    yield from _pair("v12", tmp_path_factory.mktemp("v12"))


@pytest.fixture(scope="module")
def main(tmp_path_factory):
    yield from _pair("main", tmp_path_factory.mktemp("main"))


NO_MEDIA = dict.fromkeys(("image", "audio", "video", "bad_media", "large_media"), UNSUPPORTED)
WORKER = NO_MEDIA | dict.fromkeys(
    ("prompt_logprobs", "json", "json_schema", "json_portable", "tools", "reasoning"), UNSUPPORTED
)
"""trtllm-serve has no log-probabilities of prompts; the stand-in does not imitate the others."""
WORKER_OF_1_2 = WORKER | {"tokenize": UNSUPPORTED}
"""Only main has a route that tokenizes."""
ORCHESTRATOR = WORKER_OF_1_2 | dict.fromkeys(("batch", "max_tokens_0"), UNSUPPORTED)
"""An orchestrator takes one prompt per request, and has no such route."""
IN_THE_TEXT = {"tools": FAIL}
"""Without a tool parser, main leaves the calls in the text as its model writes them."""
OF_1_2 = ORCHESTRATOR | dict.fromkeys(("models", "long_prompt", "n"), UNSUPPORTED)
"""Version 1.2 has no list of models, turns a worker's refusal into a 500, and gives one choice."""


def _whole(url):
    return asyncio.run(smoke_at(url, model="M", context_tokens=CONTEXT))


def test_a_worker_of_the_1_2_line(v12):
    assert no_pass(_whole(v12.worker)) == WORKER_OF_1_2


def test_an_orchestrator_of_the_1_2_line(v12):
    assert no_pass(_whole(v12.orchestrator)) == OF_1_2


@pytest.mark.slow
def test_a_worker_of_main(main):
    assert no_pass(_whole(main.worker)) == WORKER | IN_THE_TEXT


@pytest.mark.slow
def test_an_orchestrator_of_main(main):
    assert no_pass(_whole(main.orchestrator)) == ORCHESTRATOR | IN_THE_TEXT


# --------------------------------------------------------------------------------------------------
# endpoints without a model, and others

NO_MODEL = dict.fromkeys(("questions", "passkey_1k", "passkey_8k", "image", "audio", "video"), FAIL)
"""Rows that test the model; this endpoint has none."""


def test_the_simulated_endpoint():
    lacking = ("n", "logprobs_chat", "logprobs_completions", "prompt_logprobs", "json", "reasoning")
    ids = ("special_tokens", "token_ids", "tokenize", "returned_ids")
    unsupported = dict.fromkeys((*lacking, *ids, "cancel"), UNSUPPORTED)
    done = smoke_of(create_app(SimulatorConfig(context_tokens=CONTEXT)), context_tokens=CONTEXT)
    assert no_pass(done) == unsupported | NO_MODEL
    assert {row.name for row in done.rows if row.model} == set(NO_MODEL)


NOT_SERVED = NO_MEDIA | dict.fromkeys(
    ("json", "json_schema", "json_portable", "tools"), UNSUPPORTED
)
TOO_LONG = dict.fromkeys(("passkey_1k", "passkey_8k"), UNSUPPORTED)
"""Rows whose requests do not fit into the model's 512 tokens."""


def test_the_embedded_model_which_is_no_instructed_one(tmp_path):
    async def main():
        async with embedded.launch(
            LaunchContext(model=None, log_dir=tmp_path), embedded.EmbeddedOptions()
        ) as endpoint:
            return await smoke_at(endpoint.base_url)

    done = asyncio.run(main())
    lacking = ("reasoning", "special_tokens", "tokenize", "returned_ids")
    assert no_pass(done) == NOT_SERVED | TOO_LONG | dict.fromkeys(lacking, UNSUPPORTED) | {
        "questions": FAIL
    }
    refused = {row.name: row.told for row in done.rows if row.name in {*NOT_SERVED, *TOO_LONG}}
    for name in NO_MEDIA:
        said = "is not a multimodal model" if name in ("image", "audio", "video") else "no media"
        assert said in refused.pop(name)
    assert all("512 tokens" in refused.pop(name) for name in TOO_LONG)
    assert all("is not served by the embedded model" in told for told in refused.values())


def test_a_server_that_takes_what_vllm_takes():
    # json_schema fails only with a model that writes white space, unless the server forbids it.
    names, rows = {"no_thoughts", "no_special_setting", "no_media"}, ["json_portable", "tools"]
    for blank in (False, True):
        quirks = Quirks(
            names=frozenset({*names, *(["blank_json"] if blank else [])}),
            refuses=lambda body: (
                "tools" in body or body.get("response_format", {}).get("type") == "json"
            ),
            owner="vllm",
        )
        done = smoke_of(create(quirks), model="m", context_tokens=9000)
        lacking = [*rows, "reasoning", "special_tokens", *(["json", "json_schema"] * blank)]
        assert no_pass(done) == NO_MEDIA | dict.fromkeys(lacking, UNSUPPORTED)


def _like(*names):
    lacks = {"no_media", "no_thoughts", "no_tools", "no_special_setting", "no_tokenize", "no_ids"}
    return Quirks(names=frozenset({*lacks, *names}))


PLAIN = NO_MEDIA | dict.fromkeys(
    ("reasoning", "tools", "special_tokens", "tokenize", "returned_ids"), UNSUPPORTED
)
LIKE = {
    "llama-server": (
        Quirks(
            names=_like(
                "no_version", "chat_logprobs", "no_prompt_logprobs", "max_tokens_0_is_1"
            ).names,
            refuses=lambda body: body.get("response_format", {}).get("type") == "json",
        ),
        {
            "version": UNSUPPORTED,
            "logprobs_completions": UNSUPPORTED,
            "prompt_logprobs": UNSUPPORTED,
            "json_portable": UNSUPPORTED,
            "max_tokens_0": UNSUPPORTED,
        },
    ),
    "llama-cpp-python": (
        Quirks(
            names=_like(
                "health_page",
                "no_version",
                "ignores_max_completion_tokens",
                "no_stream_usage",
                "newest_stream_only",
                "one_choice",
                "max_tokens_0_is_no_limit",
                "misplaced_logprobs",
            ).names,
            errs=lambda body: (
                isinstance(body.get("prompt"), list)
                or body.get("response_format", {}).get("type") in ("json_schema", "json")
            ),
        ),
        {
            "health": UNSUPPORTED,
            "version": UNSUPPORTED,
            "max_completion_tokens": FAIL,
            "stream_usage": UNSUPPORTED,
            "concurrency": FAIL,
            "cancel": FAIL,
            "n": UNSUPPORTED,
            "prompt_logprobs": FAIL,
            "json_schema": FAIL,
            "json_portable": FAIL,
            "token_ids": FAIL,
            "batch": FAIL,
            "max_tokens_0": FAIL,
        },
    ),
    "transformers serve": (
        Quirks(
            names=_like(
                "no_version",
                "empty_models",
                "no_done",
                "keeps_stop",
                "always_greedy",
                "one_choice",
                "no_logprobs",
                "no_guided",
                "no_context",
                "ignores_media",
            ).names,
            refuses=lambda body: (
                bool({"serve_eval_unknown_field", "add_special_tokens", "ignore_eos"} & set(body))
                or isinstance(body.get("prompt"), list)
            ),
            refusal=(422, {"detail": [{"msg": "Extra inputs are not permitted"}]}),
        ),
        {
            "version": UNSUPPORTED,
            "models": UNSUPPORTED,
            "stream_chat": FAIL,
            "stream_completions": FAIL,
            "stop": FAIL,
            "temperature": FAIL,
            "seed": UNSUPPORTED,
            **dict.fromkeys(
                ("n", "logprobs_chat", "logprobs_completions", "prompt_logprobs"), UNSUPPORTED
            ),
            **dict.fromkeys(
                ("json", "json_schema", "json_portable", "token_ids", "batch"), UNSUPPORTED
            ),
            "long_prompt": FAIL,
            **dict.fromkeys(("image", "audio", "video"), FAIL),
        },
    ),
    "xinference": (
        Quirks(
            names=_like(
                "health_page", "no_version", "carriage_returns", "no_stream_usage", "one_choice"
            ).names
            | {"no_logprobs", "no_guided"},
            errs=lambda body: "prompt" in body,
        ),
        {
            "health": UNSUPPORTED,
            "version": UNSUPPORTED,
            "completions": FAIL,
            "stream_usage": UNSUPPORTED,
            "n": UNSUPPORTED,
            **dict.fromkeys(("logprobs_chat", "json", "json_schema", "json_portable"), UNSUPPORTED),
            **dict.fromkeys(
                ("stream_completions", "logprobs_completions", "prompt_logprobs"), UNSUPPORTED
            ),
            **dict.fromkeys(("token_ids", "batch"), UNSUPPORTED),
            **dict.fromkeys(("openai_completions", "openai_stream_completions"), UNSUPPORTED),
        },
    ),
}
"""Observed behaviour of these servers, played by the server of the tests, and the rows that must
report it."""


@pytest.mark.parametrize("name", LIKE)
def test_a_server_that_does_what_another_is_known_to_do(name):
    quirks, rows = LIKE[name]
    done = smoke_of(create(quirks), model="m", context_tokens=9000)
    assert no_pass(done) == PLAIN | rows
    assert done.exit_code == int(FAIL in rows.values())


ROWS = ("health", "version", "models")


def _rows(server):
    found = by_name(smoke_of(server.server, only=ROWS))
    return {name: (found[name].outcome, found[name].told) for name in ROWS}


def test_its_routes_are_asked():
    assert _rows(SglangServer()) == {
        "health": (CheckOutcome.PASS, "HTTP 200, also /health_generate"),
        "version": (CheckOutcome.PASS, "0.5.23"),
        "models": (CheckOutcome.PASS, "1 listed, including m"),
    }


def test_an_engine_that_makes_no_token_fails_though_its_front_is_healthy():
    outcome, told = _rows(SglangServer(healthy=False))["health"]
    assert (outcome, told) == (CheckOutcome.FAIL, "/health_generate: HTTP 503: an empty body")


def test_an_older_one_tells_its_version_too():
    assert _rows(SglangServer(older=True))["version"] == (CheckOutcome.PASS, "0.5.23")


def test_other_servers_are_not_asked_for_its_routes():
    listed = {"data": [{"id": "m", "owned_by": "vllm"}]}
    routes = {"/v1/models": json_reply(listed), "/version": version("0.32.0"), "/health": raw()}
    other = ScriptedServer([answer("Hi")], routes=routes)
    assert by_name(smoke_of(other, only=ROWS))["version"].told == "0.32.0"
    assert not {"/health_generate", "/server_info"} & {one.path for one in other.requests}
