"""Test what is known of servers: addresses, typed facts, and why answers were cut."""

import json

import msgspec
import pytest
from msgspec import UNSET

from serve_eval.errors import PlanError, RunFolderError
from serve_eval.schema import (
    Cut,
    DeployedServer,
    DeploymentInfo,
    Endpoint,
    HeldServers,
    KvTransfer,
    Outcome,
    Response,
    SamplingParams,
    ServerInfo,
    Usage,
    find_cut,
)
from serve_eval.schema.base_url import normalise_base_url
from serve_eval.storage.sessions import read_sessions

WRITTEN = {
    "launcher": "trtllm_disaggregated",
    "commands": [["trtllm-serve", "serve", "m"], ["trtllm-serve", "disaggregated"]],
    "servers": {"context_0": "http://127.0.0.1:1", "orchestrator": "http://127.0.0.1:2"},
    "log_dir": "/out/logs",
    "logs": {"context_0": "/out/logs/context_0.log"},
    "kv_transfer": {"backend": "UCX", "nvlink": None, "UCX_TLS": "^ib"},
    "perf_metrics": {"output_dir": "/out/logs/perf_metrics", "trace_dir": None},
    "attached": {"id": "0a1b2c3d", "holder": 7, "since": "2026-11-23T00:00:00+00:00"},
    "models": ["m"],
    "version": "1.2.1",
    "deployment": {
        "workers": [
            {
                "name": "context_0",
                "role": "context",
                "url": "http://127.0.0.1:1",
                "parallelism": {"tp": 2},
                "config": {"max_num_tokens": 4096, "kv_cache_config": {"dtype": "fp8"}},
                "version": "1.2.1",
                "server_info": {"anything": [1]},
            }
        ],
        "front_door": {"name": "orchestrator", "url": "http://127.0.0.1:2", "version": "1.2.1"},
        "cluster_before": {"is_ready": True, "current_workers": {}},
        "cluster_after": {"is_ready": True},
    },
    "hidden_retries": {"context": 0, "generation": 3},
}
"""From the report.json of a run before these were types."""


def _written(endpoint):
    return json.loads(msgspec.json.encode(endpoint))["info"]


def _endpoint(info):
    return msgspec.json.decode(
        json.dumps({"base_url": "http://h:1/v1", "info": info}).encode(), type=Endpoint
    )


def test_what_a_run_wrote_is_read_into_types_and_written_as_it_was():
    info = _endpoint(WRITTEN).info
    assert info.commands[1] == ("trtllm-serve", "disaggregated")
    assert info.kv_transfer == KvTransfer(backend="UCX", nvlink=None, ucx_tls="^ib")
    assert info.attached.holder == 7
    assert info.deployment.disaggregated
    assert [one.name for one in info.deployment.servers] == ["orchestrator", "context_0"]
    assert info.workers[0].parallelism == {"tp": 2}
    assert _written(_endpoint(WRITTEN)) == WRITTEN


def test_what_was_not_told_is_not_written_and_what_is_empty_is():
    assert _written(Endpoint(base_url="http://h:1/v1")) == {}
    told = ServerInfo(launcher="embedded", pid=7, also={}, hidden_retries={})
    written = {"launcher": "embedded", "pid": 7, "also": {}, "hidden_retries": {}}
    assert _written(Endpoint(base_url="http://h:1/v1", info=told)) == written


def test_a_launcher_of_the_user_tells_more_under_names_of_its_own():
    mine = {"launcher": "mine", "gpu type": "L4", "extra": [1, None], "models": ["m"]}
    endpoint = Endpoint(base_url="http://h:1/v1", info=mine)
    assert endpoint.info.extra == {"gpu type": "L4", "extra": [1, None]}
    assert _written(endpoint) == mine
    assert _endpoint(_written(endpoint)) == endpoint
    more = endpoint.with_info(version="2", rack=4)
    assert (more.info.launcher, more.info.version) == ("mine", "2")
    assert _written(more) == {**mine, "version": "2", "rack": 4}
    assert _written(more.with_info(rack=5)) == {**mine, "version": "2", "rack": 5}


def test_what_is_found_out_later_is_added():
    servers = (DeployedServer(name="a", url="http://h:2", role="server"),)
    endpoint = _endpoint({"version": "1"}).with_info(
        deployment=DeploymentInfo(workers=servers), attached=HeldServers(id="x", holder=1, since="")
    )
    assert endpoint.info.workers == servers
    assert _written(endpoint) == {
        "version": "1",
        "deployment": {"workers": [{"name": "a", "url": "http://h:2", "role": "server"}]},
        "attached": {"id": "x", "holder": 1, "since": ""},
    }


@pytest.mark.parametrize(
    ("info", "said"),
    [
        (
            {"servers": ["http://h:1"]},
            r"info of an endpoint: Expected `object \| null`, got `array` - at `\$\.servers`",
        ),
        (
            {"deployment": {"workers": [{"url": "u"}]}},
            r"missing required field `name` - at `\$\.deployment\.workers",
        ),
        ({"version": 3, "mine": 4}, r"got `int` - at `\$\.version`"),
        (["a"], r"expected a ServerInfo or a mapping with names, not \['a'\]"),
        ({1: "a"}, r"expected a ServerInfo or a mapping with names, not \{1: 'a'\}"),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_place(info, said, tmp_path):
    with pytest.raises(TypeError, match=said):
        Endpoint(base_url="http://h:1/v1", info=info)
    if isinstance(info, dict) and 1 not in info:
        with pytest.raises(msgspec.ValidationError, match=said):
            _endpoint(info)
        _note(tmp_path, {"base_url": "http://h:1/v1", "info": info})
        with pytest.raises(RunFolderError, match=rf"environment\.json cannot be read: .*{said}"):
            read_sessions(tmp_path)


def test_a_session_without_any_is_read(tmp_path):
    _note(tmp_path, {"base_url": "http://h:1/v1"})
    assert [session.endpoint.info for session in read_sessions(tmp_path)] == [ServerInfo()]


def _note(run, endpoint):
    (run / "environment.json").write_text(json.dumps([{"endpoint": endpoint}]))


@pytest.mark.parametrize(
    ("given", "resolved"),
    [
        ("host:8000", "http://host:8000/v1"),
        ("localhost:8000", "http://localhost:8000/v1"),
        ("10.0.0.1:8000", "http://10.0.0.1:8000/v1"),
        ("host", "http://host/v1"),
        ("http://host:8000", "http://host:8000/v1"),
        ("http://host:8000/", "http://host:8000/v1"),
        ("http://host:8000/v1", "http://host:8000/v1"),
        ("http://host:8000/v1/", "http://host:8000/v1"),
        ("host:8000/v1", "http://host:8000/v1"),
        ("https://host/v1/completions", "https://host/v1"),
        ("https://host/v1/chat/completions/", "https://host/v1"),
        ("http://host/completions", "http://host/v1"),
        ("host:8000/v1/v1", "http://host:8000/v1"),
        ("https://host/openai/v1/v1/", "https://host/openai/v1"),
        ("https://host/v1/chat/completions/v1", "https://host/v1"),
        ("https://host/openai/v1", "https://host/openai/v1"),
        ("https://host/api/paas/v4", "https://host/api/paas/v4"),
        ("[::1]:8000", "http://[::1]:8000/v1"),
        ("  host:8000 ", "http://host:8000/v1"),
    ],
)
def test_every_form_that_users_paste_is_resolved(given, resolved):
    assert normalise_base_url(given) == resolved
    assert normalise_base_url(resolved) == resolved


def test_an_ipv6_address_without_brackets_is_told_so():
    with pytest.raises(PlanError, match=r"brackets, as in http://\[::1\]:8000/v1"):
        normalise_base_url("::1:8000")


@pytest.mark.parametrize(
    "given",
    [
        "",
        "http://",
        "ftp://host",
        "http://${HOST}/v1",
        "unix:///socket",
        "http://host:port",
        "http://host:99999",
        "::1:8000",
        "http://::1:8000/v1",
        "http://user:pass@host/v1",
        "http://host/v1?api_key=sk-secret",
    ],
)
def test_what_is_no_address_or_holds_a_secret_is_refused_without_repeating_it(given):
    with pytest.raises(PlanError) as caught:
        normalise_base_url(given)
    assert "sk-secret" not in str(caught.value)
    assert "pass@" not in str(caught.value)


LIMIT = 100


def _answer(finish, tokens=0, **more):
    thoughts = more.pop("thoughts", UNSET)
    usage = Usage(completion_tokens=tokens, reasoning_tokens=thoughts)
    return Response(text=more.pop("text", "x"), finish_reason=finish, usage=usage, **more)


@pytest.mark.parametrize(
    ("response", "outcome", "cut"),
    [
        (_answer("stop", 20), Outcome.CORRECT, None),
        (_answer("stop", 20), Outcome.UNPARSED, None),
        (_answer("length", 100), Outcome.WRONG, Cut.MAX_TOKENS),
        (_answer("length", 100), Outcome.CORRECT, Cut.MAX_TOKENS),
        (_answer("length", 99), Outcome.WRONG, Cut.WINDOW),
        (_answer("length", 0), Outcome.WRONG, Cut.MAX_TOKENS),
        # Thoughts within the count, apart from it, and both together below the limit.
        (_answer("length", 100, thoughts=90), Outcome.WRONG, Cut.MAX_TOKENS),
        (_answer("length", 40, thoughts=60), Outcome.WRONG, Cut.MAX_TOKENS),
        (_answer("length", 40, thoughts=30), Outcome.WRONG, Cut.WINDOW),
        # The server's own word for its window.
        (_answer("length", 100, server_finish="model_length"), Outcome.WRONG, Cut.WINDOW),
        (
            _answer("length", 0, server_finish="Context_Window_Exceeded"),
            Outcome.WRONG,
            Cut.WINDOW,
        ),
        (_answer("length", 100, server_finish="max_output_tokens"), Outcome.WRONG, Cut.MAX_TOKENS),
        # A stop string ends every answer of some prompts: it cut those without a result.
        (_answer("stop", 20, stop_reason="Q:"), Outcome.WRONG, None),
        (_answer("stop", 20, stop_reason="Q:"), Outcome.UNPARSED, Cut.STOP_STRING),
        (_answer("stop", 0, stop_reason="Q:", text=""), Outcome.EMPTY, Cut.STOP_STRING),
        (_answer("stop", 20, text="", reasoning="so"), Outcome.REASONING_ONLY, Cut.STOP_STRING),
        (_answer("repetition", 20), Outcome.UNPARSED, None),
        (_answer("stop", 20, stop_reason="repetition_detected"), Outcome.UNPARSED, None),
    ],
)
def test_the_cause_of_a_cut(response, outcome, cut):
    asked = SamplingParams(max_tokens=LIMIT, stop=("Q:",))
    assert find_cut(response, outcome, asked) is cut


def test_a_token_or_two_are_cut_by_design():
    asked = SamplingParams(max_tokens=2)
    assert find_cut(_answer("length", 2), Outcome.WRONG, asked) is None


def test_thoughts_that_end_without_stop_strings_were_not_cut_by_one():
    answer = _answer("stop", 20, text="", reasoning="so")
    assert find_cut(answer, Outcome.REASONING_ONLY, SamplingParams(max_tokens=LIMIT)) is None
