"""Test the smoke test as a whole, and its row on the tokens of prompts."""

import asyncio
import json
import os
import shlex
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from serve_eval.checks.answer import MOST_ROOM, ROOM
from serve_eval.checks.kinds.tokens import prompt_tokens_check
from serve_eval.checks.row import CheckOutcome, SentRequest, curl
from serve_eval.errors import PlanError, install_command
from serve_eval.launchers._simulated.simulator import SimulatorConfig, create_app
from serve_eval.launchers.embedded import WEIGHTS
from serve_eval.report.ci import write_junit
from serve_eval.report.document import make_ci_result
from serve_eval.schema import Connection
from serve_eval.workflows import smoke
from serve_eval.workflows.smoke import make_document
from tests.cli.command import in_a_process, serve_eval
from tests.evidence.prompt_audit.test_read import (
    TEMPLATE,
    local_side,
    make_folder,
    serve_folder,
)
from tests.scripted_server import EVERY_PATH, ScriptedServer, raw
from tests.workflows.smoke.server import Quirks, create
from tests.workflows.smoke.trying import by_name, smoke_at, smoke_of


def _quirks(*names, **more):
    return create(Quirks(names=frozenset(names), **more))


def _write_junit(done):
    return write_junit(make_ci_result(make_document(done, "http://h/v1")))


# --------------------------------------------------------------------------------------------------
# reach and early ends


@pytest.mark.parametrize(
    ("path", "prefix"),
    [("", "/v1"), ("/v1", "/v1"), ("/v1/chat/completions", "/v1"), ("/api", "/api")],
)
def test_the_base_url_is_taken_in_every_shape(path, prefix):
    done = smoke_of(_quirks(prefix=prefix), path, only=[])
    assert by_name(done)["reachable"].outcome == "PASS"
    assert by_name(done)["chat"].outcome == "PASS"


@pytest.mark.parametrize(("path", "prefix"), [("/v1", ""), ("/api", "/api/v1")])
def test_another_base_url_than_the_one_given_is_found_and_named(path, prefix):
    done = smoke_of(_quirks(prefix=prefix), path, only=["openai_chat"])
    assert f"{prefix}, not" in by_name(done)["reachable"].told
    assert by_name(done)["openai_chat"].outcome == "PASS"


@pytest.mark.parametrize(
    ("server", "told"),
    [
        (_quirks("page"), "is not the base URL of an OpenAI-compatible server"),
        (_quirks("key"), "No key was sent: set OPENAI_API_KEY"),
        (_quirks("no_models"), "Name one with --model"),
        (_quirks("loading"), "may still be loading its model"),
    ],
)
def test_where_nothing_can_be_asked_it_says_what_to_do(server, told):
    done = smoke_of(server)
    assert [row.name for row in done.rows] == ["reachable"]
    assert told in done.rows[0].told
    assert "/models" in (done.rows[0].curl or "")
    assert (done.exit_code, done.stopped) == (4, "the endpoint cannot be checked")


def test_an_endpoint_that_is_starting_fails_nothing():
    done = smoke_of(_quirks("starting"))
    assert done.rows == []
    assert "/v1 is starting: it is loading its model. Try again" in done.stopped
    assert done.exit_code == 4
    assert "is starting" in _write_junit(done)


def test_nobody_listening_is_exit_code_4():
    done = asyncio.run(smoke_at("http://127.0.0.1:9/v1"))
    assert "cannot be reached" in done.rows[0].told
    assert done.exit_code == 4


@pytest.mark.parametrize(
    "server", [_quirks("no_chat", "no_completions"), _quirks(errs=lambda body: True)]
)
def test_an_endpoint_that_answers_neither_kind_is_exit_code_4(server):
    done = smoke_of(server, model="m")
    assert done.stopped == "the endpoint answers neither chat nor completions"
    assert (done.exit_code, done.rows[-1].name) == (4, "completions")


def test_a_model_that_is_not_served_is_named():
    done = smoke_of(create_app(SimulatorConfig(model="real")), model="reel", only=[])
    assert "Did you mean 'real'?" in by_name(done)["chat"].told


# --------------------------------------------------------------------------------------------------
# cost


@pytest.mark.parametrize("level", ["quick", "full"])
def test_no_more_is_sent_than_was_stated(level):
    server = _quirks()
    done = smoke_of(server, level=level)
    checks = smoke.choose_checks(level, context_tokens=9000)
    assert done.exit_code == 0
    assert len(server.requests) == done.requests <= sum(check.requests for check in checks)
    asked = [request.body for request in server.requests if request.method == "POST"]
    most = [
        body.get("max_completion_tokens", body.get("max_tokens")) * body.get("n", 1)
        for body in asked
        if "add_generation_prompt" not in body and set(body) != {"model", "prompt"}  # /tokenize
    ]
    thoughts = MOST_ROOM + ROOM * len(most)  # the model thinks
    assert sum(most) <= sum(check.tokens for check in checks) + thoughts
    words = sum(len(str(body.get("messages", body.get("prompt"))).split()) for body in asked)
    assert words <= sum(check.prompt_tokens for check in checks)
    assert most.count(0) == (level == "full")  # two such requests ended an early trtllm-serve


@pytest.mark.parametrize("context_tokens", [None, 4000])
def test_the_cost_is_a_line(context_tokens):
    quick, full = (
        smoke.cost(smoke.choose_checks(level, context_tokens=context_tokens))
        for level in ("quick", "full")
    )
    assert "at most" in quick
    assert "longer than the context" not in quick
    assert "longer than the context" in full


# --------------------------------------------------------------------------------------------------
# required, exit codes


def test_unsupported_is_no_failure_unless_it_is_required():
    assert smoke_of(_quirks("no_tools"), only=["tools"]).exit_code == 0
    done = smoke_of(_quirks("no_tools"), only=["tools"], needed=["tools"])
    assert (done.exit_code, by_name(done)["tools"].outcome) == (1, "FAIL")
    assert by_name(done)["tools"].told.startswith("required: tools were accepted")


def test_what_is_required_has_to_be_checked():
    checks = smoke.choose_checks("quick")
    assert smoke.check_required(["chat", "json_schema"], checks) == {"chat", "json_schema"}
    with pytest.raises(PlanError, match="Did you mean 'json_schema'") as caught:
        smoke.check_required(["json_shema", "cancel"], checks)
    assert "cancel is only checked at --level full" in str(caught.value)


# --------------------------------------------------------------------------------------------------
# as curl

BODY = {
    "model": 'it\'s `m` & "$x"; !x',
    "prompt": 'it\'s "$HOME" `ls` \\n\n<é> !x',
    "max_tokens": 1,
}


@pytest.mark.parametrize(
    ("connection", "environ"),
    [
        (Connection(), {}),
        (Connection(), {"OPENAI_API_KEY": "sesame"}),
        (Connection(api_key_env="MINE", headers={"X-Team": 'a "b" $c'}), {"MINE": "sesame"}),
        (Connection(headers={"X-Key": "a`b!x ${TEAM_KEY}$x 'y' !!"}), {"TEAM_KEY": "sesame"}),
    ],
)
@pytest.mark.parametrize("path", ["/v1", "/it's a $HOME/${HOME}`ls`!x&;/[1-2]{a,b}/v1"])
def test_the_curl_line_sends_the_request_again(connection, environ, path):
    server = ScriptedServer(raw(), paths=EVERY_PATH)

    async def main():
        async with server.serve() as url:
            line = curl(
                SentRequest(url=f"{url.removesuffix('/v1')}{path}/completions", body=BODY),
                connection,
                environ,
            )
            # A user pastes it into an interactive shell, in which `!` may recall a command.
            shell = await asyncio.create_subprocess_exec(
                *("bash", "--noprofile", "--norc", "-i"),
                env={"PATH": "/usr/bin:/bin", "HISTFILE": "/dev/null", **environ},
                start_new_session=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            _, error = await shell.communicate(f"{line}\nexit\n".encode())
            assert shell.returncode == 0, error
            return line

    if subprocess.run(["which", "curl"], capture_output=True, check=False).returncode:
        pytest.skip("curl is not installed")
    line = asyncio.run(main())
    assert "sesame" not in line
    [asked] = server.asked
    assert (asked.method, asked.path) == ("POST", f"{path}/completions")
    assert asked.body == BODY
    headers = asked.headers
    assert headers["Content-Type"] == "application/json"
    for name, value in connection.headers.items():
        assert headers[name] == value.replace("${TEAM_KEY}", "sesame")
    if "TEAM_KEY" not in environ:
        assert headers.get("Authorization") == ("Bearer sesame" if environ else None)


@pytest.mark.parametrize("body", [BODY, None, {**BODY, "stream": True}])
def test_the_curl_line_is_words_of_a_shell(body):
    connection = Connection(proxy="http://${U}:${P}@proxy:1", ca_bundle="/my certs/ca.pem")
    words = shlex.split(curl(SentRequest(url="https://h/v1/models", body=body), connection, {}))
    assert words[:3] == ["curl", "-sS", "https://h/v1/models"]
    assert "/my certs/ca.pem" in words
    assert "http://${U}:${P}@proxy:1" in words
    assert ("-N" in words) == bool(body and body.get("stream"))
    if body is not None:
        assert json.loads(words[-1]) == body


# --------------------------------------------------------------------------------------------------
# as JUnit


def test_the_junit_file_has_a_case_for_each_row():
    done = smoke_of(_quirks("no_tools", "unhealthy", "one_choice"), level="quick")
    [suite] = ElementTree.fromstring(_write_junit(done))
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == (
        str(len(done.rows)),
        "1",
        "0",
    )
    cases = {case.get("name"): case for case in suite}
    assert set(cases) == set(by_name(done))
    [failure] = cases["health"]
    assert (failure.tag, failure.get("message")) == ("failure", "HTTP 503: an empty body")
    assert failure.text == by_name(done)["health"].curl
    assert cases["tools"][0].tag == "skipped"
    assert cases["chat"][0].tag == "system-out"


def test_the_junit_file_is_xml_whatever_a_server_says():
    odd = (400, {"message": 'no \x1b[31m \x00 ]]> "<é>" \ufffe'})
    done = smoke_of(_quirks(refuses=lambda body: "n" in body, refusal=odd), only=["n"])
    [suite] = ElementTree.fromstring(_write_junit(done))
    assert suite.get("skipped") == "1"


def test_a_smoke_test_that_stopped_is_an_error_in_junit():
    done = smoke_of(_quirks("page"))
    [suite] = ElementTree.fromstring(_write_junit(done))
    assert (suite.get("errors"), suite[-1].get("name")) == ("1", "stopped")


NO_PACKAGE = "raise ImportError('not installed')\n"
PACKAGE = """
from pathlib import Path
from tests.evidence.prompt_audit.test_read import EmbeddedTokenizer

class Tokenizer:
    @classmethod
    def from_file(cls, path):
        self = cls()
        self.own = EmbeddedTokenizer(Path(path).parent)
        return self
    def encode(self, text, add_special_tokens):
        self.ids = self.own.encode(text, add_special_tokens=add_special_tokens)
        return self
    def id_to_token(self, token):
        return self.own.piece(token)
    def token_to_id(self, piece):
        return self.own.find(piece)
"""
"""A package with the interface of `tokenizers`, which this environment may lack."""


def _row(server, local):
    return by_name(smoke_of(server, only=["prompt_tokens"], local=local))["prompt_tokens"]


def test_equal_ids_pass_and_so_do_equal_counts():
    row = _row(serve_folder(WEIGHTS), local_side(WEIGHTS))
    assert (row.outcome, row.told) == (CheckOutcome.PASS, "4 prompts have the ids of the files")
    row = _row(serve_folder(WEIGHTS, ids=False), local_side(WEIGHTS))
    assert row.outcome is CheckOutcome.PASS
    assert row.told == "4 their number of tokens (ids are not available)"


def test_another_template_fails_and_is_named(tmp_path):
    served = make_folder(tmp_path, "<|system|>\nBe nice.<|end|>\n" + TEMPLATE)
    row = _row(serve_folder(served), local_side(WEIGHTS))
    assert row.outcome is CheckOutcome.FAIL
    assert row.told.startswith(
        "chat 'Name a colour.': the server adds a system message before the first turn:"
        " '<|system|>\\nBe nice.<|end|>\\n'"
    )
    row = _row(serve_folder(served, ids=False), local_side(WEIGHTS))
    assert row.outcome is CheckOutcome.FAIL
    assert "more than the folder" in row.told


def test_a_route_with_other_tokens_than_answers_count_fails():
    row = _row(serve_folder(WEIGHTS, counted_more=1), local_side(WEIGHTS))
    assert row.outcome is CheckOutcome.FAIL
    assert "/tokenize gives 16 tokens, but its answers count 17" in row.told
    assert row.told.endswith("; 1 more")


def test_such_a_route_fails_even_if_the_counts_are_those_of_the_files(tmp_path):
    served = make_folder(tmp_path, "<|end|>" + TEMPLATE)
    row = _row(serve_folder(served, bos="<|end|>", counted_more=-1), local_side(WEIGHTS))
    assert row.outcome is CheckOutcome.FAIL
    assert "/tokenize gives 17 tokens, but its answers count 16" in row.told


@pytest.mark.parametrize("begin", ["{{ strftime_now('%d %b %Y') }}", "<|end|><|end|>"])
def test_a_date_or_a_doubled_token_on_both_sides_passes_and_is_named(tmp_path, begin):
    folder = make_folder(tmp_path, begin + TEMPLATE, bos_token="<|end|>")
    row = _row(serve_folder(folder), local_side(folder))
    assert row.outcome is CheckOutcome.PASS
    told = "writes the date 26 Nov 2026" if "strftime" in begin else "begins 2 times with <|end|>"
    assert told in row.told


def test_prompts_that_cannot_be_read_are_unsupported(tmp_path):
    folder = make_folder(tmp_path, "{{ raise_exception('no') }}")
    row = _row(serve_folder(WEIGHTS, chats_only=True), local_side(folder))
    assert row.outcome is CheckOutcome.UNSUPPORTED
    assert "the chat template fails: no" in row.told


def test_the_command_reads_the_folder_with_the_package(tmp_path):
    (tmp_path / "tokenizers.py").write_text(PACKAGE)
    path = os.pathsep.join([str(tmp_path), str(Path.cwd())])
    with serve_folder(WEIGHTS).serve_in_thread() as url:
        done = in_a_process(f"smoke {url} -v --set smoke.tokenizer={WEIGHTS}", PYTHONPATH=path)
    [line] = [one for one in done.stdout.splitlines() if " prompt_tokens " in one]
    assert line.split()[0] == "PASS", done.stdout + done.stderr
    assert line.endswith("4 prompts have the ids of the files")


def test_the_extra_is_named_if_its_package_is_missing(tmp_path):
    (tmp_path / "tokenizers.py").write_text(NO_PACKAGE)
    path = os.pathsep.join([str(tmp_path), str(Path.cwd())])
    done = in_a_process(
        f"smoke 127.0.0.1:9 --set smoke.tokenizer={WEIGHTS}", PYTHONPATH=path, exits=2
    )
    assert install_command("tokenizer") in done.stderr
    serve_eval(
        f"smoke 127.0.0.1:9 --set smoke.tokenizer={tmp_path}",
        exits=2,
        tells="has no tokenizer.json",
    )


def test_its_cost_is_declared():
    check = prompt_tokens_check(local_side(WEIGHTS))
    assert (check.requests, check.tokens) == (32, 8)
