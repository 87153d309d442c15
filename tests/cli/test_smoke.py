"""`serve-eval smoke`: the table, its files and its exit codes."""

import json
import re
import shlex
import subprocess
from xml.etree import ElementTree

import pytest

from serve_eval.checks.answer import Answer, read_stream
from serve_eval.checks.kinds.answering import PROMPT
from serve_eval.checks.row import SentRequest
from serve_eval.masking import Masking
from serve_eval.workflows import smoke
from tests.cli.command import serve_eval
from tests.json_files import read_json
from tests.standin.deployments import environment, free_port, running, wait_healthy
from tests.workflows.smoke.server import Quirks, create

ROW = re.compile(r"^ (PASS|FAIL|UNSUPPORTED) +(\w+) +([\d.]+)  (.+)$", re.MULTILINE)
"""A row of the whole table, which -v prints."""


def _smoke(quirks, *arguments, **environ):
    with create(quirks).serve_in_thread() as url:
        return serve_eval(f"smoke {url}", *arguments, **environ)


def _quirks(*names, **more):
    return Quirks(names=frozenset(names), **more)


def test_a_sound_endpoint_exits_with_0_and_says_beforehand_what_it_costs():
    done = _smoke(_quirks(), "-v")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [name for _, name, _, _ in ROW.findall(done.stdout)] == [
        one.name for one in smoke.choose_checks("quick")
    ]
    assert smoke.cost(smoke.choose_checks("quick")) in done.stderr
    checks = len(smoke.choose_checks("quick"))
    assert re.search(r"^ asked    \d+ requests, \d+ generated tokens, ", done.stdout, re.MULTILINE)
    assert "questions" in done.stdout
    assert "(tests the model)" in done.stdout
    assert "curl" not in done.stdout
    folded = _smoke(_quirks()).stdout.splitlines()
    assert folded[0] == f" PASS   smoke test  {checks} passed"
    assert [line.split()[0] for line in folded[1:]] == ["asked", "more"]


def test_the_request_of_the_first_failure_can_be_pasted_and_shows_it():
    quirks = _quirks("unhealthy", "no_tools")
    plain = _smoke(quirks).stdout
    assert plain.count("curl -sS") == 1
    assert " why      health: HTTP 503: an empty body\n" in plain
    assert " lacks    tools\n" in plain
    assert "chat" not in plain
    with create(quirks).serve_in_thread() as url:
        told = json.loads(serve_eval(f"smoke {url} --json").stdout)
        [command] = told["commands"]
        sent = subprocess.run([*shlex.split(command), "-w", "%{http_code}"], capture_output=True)
    assert sent.stdout == b"503"
    done = _smoke(quirks, "-v")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    at = lines.index("   # health")
    assert re.fullmatch(r"   curl -sS http://127.0.0.1:\d+/health --noproxy '\*'", lines[at + 1])
    at = lines.index("   # tools")
    assert "get_weather" in lines[at + 1]


def test_long_requests_stand_in_json_and_junit_only(tmp_path):
    out = tmp_path / "junit.xml"
    quirks = _quirks("unskilled")
    table = _smoke(quirks, "--junit", out, "-v").stdout
    assert re.search(r"# passkey_1k: \d,\d{3} characters, on the page and with --json", table)
    assert "a model without instruction tuning fails them on a sound server" in table
    failure = ElementTree.parse(out).find("testsuite/testcase[@name='passkey_1k']/failure")
    assert (failure.text or "").startswith("curl ")
    done = json.loads(_smoke(quirks, "--json").stdout)["result"]
    rows = {row["name"]: row for row in done["rows"]}
    assert rows["passkey_1k"]["curl"].startswith("curl ")
    assert (rows["passkey_1k"]["outcome"], rows["passkey_1k"]["model"]) == ("FAIL", True)
    assert (done["exit_code"], done["stopped"]) == (1, "")


def test_required_checks_fail_where_they_are_unsupported():
    assert _smoke(_quirks("no_tools")).returncode == 0
    done = _smoke(_quirks("no_tools"), "--require", "chat, tools")
    assert done.returncode == 1
    assert "required: tools were accepted" in done.stdout


def test_a_key_is_sent_and_never_shown(tmp_path):
    echo = (400, {"message": "no, Bearer right, and not sesame-1234"})
    quirks = _quirks("key", refuses=lambda body: "n" in body, refusal=echo)
    page = tmp_path / "smoke.html"
    flags = ["--header", "X-Secret: ${MINE}", "--junit", str(tmp_path / "j.xml")]
    flags += ["--set", f"smoke.page={page}"]
    for more in ([], ["--json"]):
        done = _smoke(
            quirks, "-v", *flags, *more, COLUMNS="9999", OPENAI_API_KEY="right", MINE="sesame-1234"
        )
        assert done.returncode == 0, done.stdout
        said = done.stdout + done.stderr + (tmp_path / "j.xml").read_text() + page.read_text()
        assert f"page: {page}" in done.stderr
        assert "Bearer right" not in said
        assert "sesame" not in said
        lines = done.stdout.replace('\\"', '"')
        assert "'Authorization: Bearer '\"${OPENAI_API_KEY}\"" in lines
        assert "'X-Secret: '\"${MINE}\"" in lines
    assert _smoke(quirks, OPENAI_API_KEY="wrong").returncode == 4
    assert _smoke(quirks, "--api-key-env", "", OPENAI_API_KEY="right").returncode == 4


def test_a_proxy_is_used_for_all_requests():
    with create(_quirks()).serve_in_thread() as url:
        serve_eval(
            "smoke http://nowhere.invalid --set",
            "connection.proxy=" + str(url.removesuffix("/v1")),
            exits=0,
        )


def test_the_dry_run_sends_nothing():
    done = serve_eval("smoke 127.0.0.1:9 --level full --set smoke.passkey=32000 --dry-run", exits=0)
    assert re.search(r"^passkey +2 requests", done.stdout, re.MULTILINE)
    assert re.search(r"^max_tokens_0 +2 requests", done.stdout, re.MULTILINE)
    assert "nothing was sent" in done.stdout
    told = json.loads(serve_eval("smoke 127.0.0.1:9 --dry-run --json").stdout)
    assert [one["name"] for one in told["checks"]] == [
        one.name for one in smoke.choose_checks("quick")
    ]


def test_nobody_listening_is_said_with_what_to_do():
    done = serve_eval("smoke 127.0.0.1:9", exits=4)
    assert done.stdout.startswith(" ERROR   smoke test  1 failed (reachable)\n")
    said = " ".join(done.stdout.split())
    assert "A server that is still loading its model refuses connections" in said


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--level some", "--level: must be quick or full"),
        ("--require caht", "Did you mean 'chat'?"),
        ("--require cancel", "cancel is only checked at --level full"),
        ("--set smoke.passkey=0", "smoke.passkey must be above 0"),
        ("--set smoke.timeout=-1", "smoke.timeout must be above 0"),
        ("--api-key x", "visible to every user"),
        ("--header 'X-Key: sk-0123456789'", "looks like a secret"),
        ("--header nothing", "expected 'Name: value'"),
        ("--junit /no/such/folder/x.xml", "is not a folder"),
        ("--set connection.max_tokens_field=most", "expected max_tokens or max_completion_tokens"),
    ],
)
def test_what_cannot_be_meant_is_exit_code_2(arguments, told):
    serve_eval(f"smoke 127.0.0.1:9 {arguments}", exits=2, tells=told)


def test_variables_are_read_as_for_a_run():
    done = _smoke(
        _quirks(refuses=lambda body: "messages" in body and "max_tokens" in body),
        "--level",
        "quick",
    )
    assert re.search(r" chat: HTTP 400", done.stdout), done.stdout
    server = create(_quirks("no_models", refuses=lambda b: "messages" in b and "max_tokens" in b))
    with server.serve_in_thread() as url:
        done = serve_eval(
            "smoke -v",
            SERVE_EVAL_BASE_URL=url,
            SERVE_EVAL_MODEL="m",
            SERVE_EVAL_MAX_TOKENS_FIELD="max_completion_tokens",
        )
    assert re.search(r"^ PASS +chat ", done.stdout, re.MULTILINE)
    assert done.returncode == 0, done.stdout


def test_what_is_cut_was_masked_before(tmp_path):
    key = "sk-live-Q7pRz2VwX9mT4kLd"
    cut = {PROMPT: "=" * 40 + key}
    done = _smoke(
        _quirks(knows=cut), "--junit", tmp_path / "junit.xml", "--json", OPENAI_API_KEY=key
    )
    rows = {row["name"]: row["told"] for row in json.loads(done.stdout)["result"]["rows"]}
    for name in ("chat", "completions", *(row for row in rows if row.startswith("openai_"))):
        assert "====" in rows[name], name
    for text in (done.stdout, done.stderr, (tmp_path / "junit.xml").read_text()):
        assert "=sk" not in text


def test_pieces_of_a_stream_that_spell_a_key_are_masked():
    key = "sk-live-Q7pRz2VwX9mT4kLd"
    deltas = [
        {"content": key[:9], "reasoning": key[:9]},
        {"content": key[9:], "reasoning": key[9:]},
    ]
    events = [json.dumps({"choices": [{"index": 0, "delta": delta}]}) for delta in deltas]
    content = "".join(f"data: {event}\n\n" for event in events).encode()
    answer = Answer(
        sent=SentRequest(url="http://h"),
        seconds=1.0,
        status=200,
        content=content,
        mask=Masking([key]).text,
    )
    stream = read_stream(answer)
    assert (stream.text, stream.thoughts) == ("***", "***")


def test_a_folder_gets_the_files_for_ci_and_the_page(tmp_path):
    summary = tmp_path / "step.md"
    done = _smoke(_quirks(), "-o", tmp_path / "new/smoke", GITHUB_STEP_SUMMARY=str(summary))
    assert done.returncode == 0
    names = {file.name for file in (tmp_path / "new/smoke").iterdir()}
    assert names == {"junit.xml", "summary.md", "report.html", "smoke.json"}
    assert summary.read_text().strip() == (tmp_path / "new/smoke/summary.md").read_text().strip()
    (tmp_path / "file").write_text("")
    refused = _smoke(_quirks(), "-o", tmp_path / "file")
    assert (refused.returncode, "cannot be used" in refused.stderr) == (2, True)


@pytest.mark.parametrize("after", [1, 9])
def test_a_server_that_dies_is_an_error_and_no_failure(after, tmp_path):
    port, log = free_port(), tmp_path / "server.log"
    command = ["serve", "M", "--port", str(port)]
    with running(command, log, environment(faults={"crash_after": after})) as process:
        url = wait_healthy(process, port, log)
        done = serve_eval(
            f"smoke {url} -o {tmp_path}/night/smoke --notify-text {tmp_path}/line.txt", exits=4
        )
    stored = read_json(tmp_path / "night/smoke/smoke.json")
    assert (stored["exit_code"], stored["rows"][-1]["outcome"]) == (4, "ERROR")
    died = f"the server died during {stored['rows'][-1]['name']}"
    assert stored["stopped"].startswith(f"{died}: no server listens at")
    assert done.stdout.startswith(f" ERROR   smoke test  {died}, ")
    line = (tmp_path / "line.txt").read_text()
    assert re.match(rf"ERROR smoke test M {re.escape(url)}/v1: {died}, .*\d passed", line), line
    cases = ElementTree.parse(tmp_path / "night/smoke/junit.xml").getroot()
    assert (len(cases.findall(".//error")), len(cases.findall(".//failure"))) == (1, 0)
    assert '<strong class="badge">ERROR</strong>' in (
        (tmp_path / "night/smoke/report.html").read_text()
    )
    viewed = serve_eval(f"runs view {tmp_path}/night -o {tmp_path}/all.html")
    assert re.search("ERROR +smoke", viewed.stdout), viewed.stdout
