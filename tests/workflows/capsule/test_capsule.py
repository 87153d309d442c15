"""A capsule replays the request of a run byte for byte and contains no key."""

import asyncio
import json
import os
import shutil
import subprocess
import time
from dataclasses import replace
from urllib.parse import unquote

import pytest

from serve_eval.cases import file as cases_file
from serve_eval.client.client import Client
from serve_eval.client.connection import SecretMask
from serve_eval.errors import DatasetError, PlanError, RunFolderError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.launch import _write_answers
from serve_eval.evaluation.prepare import prepare
from serve_eval.launchers._simulated.simulator import STATS, SimulatorConfig, create_app, serve
from serve_eval.schema import Connection, Endpoint, Limits, Spec
from serve_eval.workflows.capsule import capsules
from serve_eval.workflows.diagnose.story import diagnose
from tests.json_files import read_json
from tests.scripted_server import EVERY_PATH, ScriptedServer, external, json_reply
from tests.workflows.diagnose.server import Said, Server, answers_to, plan_for, run, sound

VAULT_KEY = "cw_0x689RpI-jtRR7oE8h_eQsKImvJapLeSbXpwF4e4="
KEY = "a-key-that-nobody-knows"
ENVIRON = {"OPENAI_API_KEY": KEY, "TEAM_TOKEN": "team-secret-value"}


def replayed(server, folder, environ):
    """Send the capsule to a server again and return what curl prints."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")

    async def sent():
        async with server.scripted.serve() as url:
            env = {"PATH": os.environ["PATH"], "BASE_URL": url, **environ}
            command = ["sh", str(folder / "curl.sh")]
            done = await asyncio.to_thread(
                subprocess.run, command, env=env, capture_output=True, text=True, timeout=30
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

    return asyncio.run(sent())


@pytest.mark.parametrize(
    ("options", "stream", "chat"),
    [
        ({}, False, False),
        ({"apply_chat_template": True, "system_prompt": "Überlege „gut“ – 'kurz'"}, True, True),
    ],
)
def test_curl_sends_what_the_run_sent(options, stream, chat, tmp_path):
    plan = replace(
        plan_for(tmp_path, **options),
        no_reference=True,
        limits=Limits(concurrency=4, stream=stream),
    )
    plan = replace(plan, connection=Connection(headers={"X-Team": "${TEAM_TOKEN}"}))
    answers = answers_to(plan.tasks[0])
    server, again = (Server(act=sound, answers=answers) for _ in range(2))
    run(plan, server, tmp_path / "out", ENVIRON)
    [folder] = capsules(tmp_path / "out", ["test-7"], tmp_path / "capsules", environ=ENVIRON)
    body = (folder / "body.json").read_bytes()
    assert server.received.count(body) == 1
    assert ("messages" in json.loads(body), "stream" in json.loads(body)) == (chat, stream)
    out = replayed(again, folder, ENVIRON)
    assert again.received == [body]
    assert again.keys == [f"Bearer {KEY}"]
    target = read_json(folder / "expected.json")["target"]
    actual = read_json(folder / "actual.json")
    assert actual["response"]["text"] == target
    assert actual["score"]["value"] == 1.0
    assert json.dumps(target)[1:-1] in out
    for file in folder.rglob("*"):
        if file.is_file():
            assert not any(secret in file.read_text() for secret in ENVIRON.values()), file.name
            assert file.stat().st_mode & 0o077 == 0
    versions = read_json(folder / "versions.json")
    assert versions["session"]["endpoint"]["info"]["models"] == ["m"]
    assert versions["session"]["serve_eval"]


def test_a_server_without_a_key_gets_a_word_that_is_none(tmp_path):
    plan = replace(plan_for(tmp_path), no_reference=True)
    server = Server(act=sound, answers=answers_to(plan.tasks[0]))
    run(plan, server, tmp_path / "out")
    folders = capsules(tmp_path / "out", ["test-1", "test-2"], tmp_path / "capsules", environ={})
    assert [folder.name for folder in folders] == ["word_problems_test-1", "word_problems_test-2"]
    replayed(server, folders[1], {})
    assert server.keys[-1] == "Bearer none"


def test_a_failure_comes_with_the_log_of_its_time_and_without_the_secrets_in_it(
    tmp_path,
):
    def fails(asked):
        return (
            Said(text=f"no {KEY} here", status=400) if asked.chance("some") < 0.2 else sound(asked)
        )

    plan = replace(plan_for(tmp_path), no_reference=True, repeats=2)
    run(plan, Server(act=fails, answers=answers_to(plan.tasks[0])), tmp_path / "out", ENVIRON)
    lines = (tmp_path / "out/samples/word_problems.jsonl").read_text().splitlines()
    failed = next(
        line["id"]
        for line in map(json.loads, lines)
        if "failure" in line and line["id"].endswith("#2")
    )
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    log = (
        f"2020-01-01 00:00:00 - ERROR - long ago\n{now},123 - ERROR - refused Bearer {KEY}\n  its"
        " traceback\n"
    )
    (tmp_path / "out/logs/server.log").write_text(log)
    [folder] = capsules(tmp_path / "out", [failed], tmp_path / "capsules", environ=ENVIRON)
    actual = read_json(folder / "actual.json")
    assert actual["response"] is None
    assert [failure["status"] for failure in actual["failures"]] == [400]
    assert actual["attempts"][0]["request_id"]
    told = (folder / "logs/server.log").read_text()
    assert "its traceback" in told
    assert "long ago" not in told
    assert not any(KEY in file.read_text() for file in folder.rglob("*") if file.is_file())


def test_what_the_server_said_and_the_plan_hold_no_secret(tmp_path):
    """Answers, failures and the plan are not mappings, but they are searched too."""
    said = "my proxy is http://me:mine@host, my token team-secret-value, and sk-12345678 too"
    answers = answers_to(plan_for(tmp_path).tasks[0])

    def tells(asked):
        return Said(text=said, status=400 if asked.chance("some") < 0.5 else 200)

    plan = replace(plan_for(tmp_path), no_reference=True)
    run(plan, Server(act=tells, answers=answers), tmp_path / "out")
    plan_file = tmp_path / "out/plan.json"
    plan_file.write_text(
        plan_file.read_text().replace('"base_url":', '"hf_token": "abc", "base_url":')
    )
    names = [f"test-{n}" for n in range(8)]
    folders = capsules(tmp_path / "out", names, tmp_path / "capsules", environ=ENVIRON)
    told = [file.read_text() for folder in folders for file in folder.rglob("*") if file.is_file()]
    assert any("my proxy is http://***@host, my token ***, and *** too" in text for text in told)
    assert any('"hf_token": "***"' in text for text in told)
    assert not any(
        word in text for text in told for word in ("me:mine", "team-secret", "sk-1234", '"abc"')
    )


def test_each_choice_of_a_sample_is_a_request_of_its_own(tmp_path):
    plan = replace(plan_for(tmp_path, scoring="loglikelihood", num_samples=20), no_reference=True)
    plan = replace(plan, model="simulated")
    _write_answers(tmp_path / "answers.jsonl", prepare(plan), lambda task, sample: 0.9)
    config = SimulatorConfig(
        answers=tmp_path / "answers.jsonl", prompt_logprobs="prompt_logprobs", record=True
    )
    app = create_app(config)

    async def evaluated():
        async with serve(app) as url:
            here = replace(plan, launcher=external(url))
            await evaluate(here, tmp_path / "out", environ={})

    asyncio.run(evaluated())
    [folder] = capsules(tmp_path / "out", ["test-3"], tmp_path / "capsules", environ={})
    bodies = [read_json(folder / f"body-{number}.json") for number in (1, 2, 3, 4)]
    assert all(body["prompt_logprobs"] == 0 for body in bodies)
    sent = app[STATS].bodies
    assert all(sent.count(body) == 1 for body in bodies)
    assert (folder / "curl.sh").read_text().count("curl -sS") == 4


@pytest.mark.parametrize(
    ("told", "written"),
    [
        (
            {"env": {"HF_TOKEN": "short", "PATH": "/bin"}},
            {"env": {"HF_TOKEN": "***", "PATH": "/bin"}},
        ),
        (
            {"max_tokens_field": "max_tokens", "max_num_tokens": 8192},
            {"max_tokens_field": "max_tokens", "max_num_tokens": 8192},
        ),
        (
            {"tokenizer": "DIR", "api_key_env": "MY_KEY"},
            {"tokenizer": "DIR", "api_key_env": "MY_KEY"},
        ),
        ([f"--key {KEY}", "Authorization: Bearer abcdefgh1"], ["--key ***", "Authorization: ***"]),
        (
            {"url": "http://me:mine@host/v1", "header": "${TEAM_TOKEN}"},
            {"url": "http://***@host/v1", "header": "${TEAM_TOKEN}"},
        ),
        ("sk-12345678 and hf_12345678", "*** and ***"),
    ],
)
def test_what_is_written_of_what_others_told(told, written, tmp_path):
    assert SecretMask(plan_for(tmp_path).connection, ENVIRON).of(told) == written


def test_what_is_refused(tmp_path):
    plan = replace(plan_for(tmp_path), no_reference=True)
    run(plan, Server(act=sound, answers=answers_to(plan.tasks[0])), tmp_path / "out")
    out, to = tmp_path / "out", tmp_path / "capsules"
    with pytest.raises(PlanError, match="no such sample"):
        capsules(out, ["test-100"], to, environ={})
    with pytest.raises(PlanError, match="no such task"):
        capsules(out, ["test-1"], to, task="gsm8k", environ={})
    with pytest.raises(PlanError, match="contains a secret"):
        capsules(out, ["test-1"], to, environ={"MY_TOKEN": "Question"})
    assert not (to / "word_problems_test-1").exists()
    capsules(out, ["test-1"], to, environ={})
    capsules(out, ["test-1"], to, environ={})  # the same content is no conflict
    (to / "word_problems_test-1/curl.sh").write_text("edited")
    with pytest.raises(RunFolderError, match="already exists"):
        capsules(out, ["test-1"], to, environ={})
    saved = (out / "plan.json").read_text()
    (out / "plan.json").write_text(saved.replace('"num_samples": 100', '"num_samples": 99'))
    with pytest.raises(DatasetError, match="differs from the task that"):
        capsules(out, ["test-2"], to, environ={})


def test_ids_that_no_folder_can_have(tmp_path):
    ids = ["a/b", "a-b", "../up", "\U00020000" * 90, "x" * 79 + "/1", "x" * 79 + "/2"]
    cases = [
        f"    - {{case: '{name}', input: {{prompt: 'Word {i}?'}}, expected: aye}}\n"
        for i, name in enumerate(ids)
    ]
    (tmp_path / "odd.yaml").write_text(f"odd:\n  cases:\n{''.join(cases)}")
    plan = replace(plan_for(tmp_path), no_reference=True)
    plan = replace(
        plan, tasks=(Spec(name="cases:odd", options={"path": str(tmp_path / "odd.yaml")}),)
    )
    run(
        plan,
        Server(act=sound, answers={f"Word {i}?": "aye" for i in range(len(ids))}),
        tmp_path / "out",
    )
    lines = (tmp_path / "out/samples/cases-odd.jsonl").read_text().splitlines()
    asked = [json.loads(line)["id"] for line in lines]
    made = capsules(tmp_path / "out", [*asked, asked[0]], tmp_path / "capsules", environ={})
    assert len(set(made)) == len(made) == len(ids)
    assert {folder.parent for folder in made} == {tmp_path / "capsules"}
    assert all((folder / "body.json").exists() for folder in made)


def test_a_folder_of_another_user_puts_nothing_into_the_script(tmp_path):
    plan = replace(plan_for(tmp_path), no_reference=True)
    run(plan, Server(act=sound, answers=answers_to(plan.tasks[0])), tmp_path / "out")
    sign = tmp_path / "ran"
    evil = f'http://127.0.0.1:9/"$(touch {sign})`touch {sign}`}}v1'
    session = tmp_path / "out/environment.json"
    told = read_json(session)
    told[-1]["endpoint"]["base_url"] = evil
    session.write_text(json.dumps(told))
    [folder] = capsules(tmp_path / "out", ["test-1"], tmp_path / "capsules", environ={})
    command, curl = ["sh", str(folder / "curl.sh")], tmp_path / "bin/curl"
    curl.parent.mkdir()
    curl.write_text('#!/bin/sh\nprintf %s "$2"\n')
    curl.chmod(0o700)
    env = {"PATH": f"{curl.parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30)
    assert unquote(done.stdout) == f"{evil}/completions\n"
    assert not sign.exists()
    curl.write_text("#!/bin/sh\nexit 7\n")
    assert subprocess.run(command, env=env, capture_output=True, timeout=30).returncode == 7
    saved = tmp_path / "out/plan.json"
    saved.write_text(saved.read_text().replace('"OPENAI_API_KEY"', f'"X:=$(touch {sign})"'))
    with pytest.raises(RunFolderError, match="not the name of a variable"):
        capsules(tmp_path / "out", ["test-2"], tmp_path / "capsules", environ={})


ODD_PATHS = (
    "/plain/v1",
    "/with space/v1",
    "/with%20space/v1",
    "/it's/v1",
    '/a"b/v1',
    "/a&b;c|d<e>f/v1",
    "/$HOME/${HOME}/$(touch ran)/`touch ran`/v1",
    "/a!b!!/v1",
    "/[1-3]/{a,b}/v1",
    "/*/../~/v1",
    "/a\\b/v1",
    "/Straße/é/v1",
)


def test_the_script_asks_where_the_run_asked_whatever_the_address_holds(tmp_path):
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    server = ScriptedServer(json_reply({}), paths=EVERY_PATH)
    plan = replace(plan_for(tmp_path), no_reference=True)
    plan = replace(
        plan, connection=Connection(headers={"X-Team": 'it\'s "$HOME" `a` !x & ${TEAM_TOKEN}; \\'})
    )
    run(plan, Server(act=sound, answers=answers_to(plan.tasks[0])), tmp_path / "out", ENVIRON)
    session = tmp_path / "out/environment.json"

    async def story():
        async with server.serve() as url:
            for number, path in enumerate(ODD_PATHS):
                base_url = url.removesuffix("/v1") + path
                async with Client(Endpoint(base_url=base_url), Limits()) as client:
                    await client.exchange("POST", f"{path}/completions", b"{}")
                told = read_json(session)
                told[-1]["endpoint"]["base_url"] = base_url
                session.write_text(json.dumps(told))
                [folder] = capsules(
                    tmp_path / "out",
                    ["test-1"],
                    tmp_path / f"cap sules {number}'$x",
                    environ=ENVIRON,
                )
                env = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "CDPATH": "/", **ENVIRON}
                for shell in filter(shutil.which, ("sh", "bash", "dash")):
                    process = await asyncio.create_subprocess_exec(
                        shell, folder / "curl.sh", env=env, cwd=tmp_path
                    )
                    assert await process.wait() == 0, (shell, path)
                body = (folder / "body.json").read_bytes()
                seen = [
                    (one.http.raw_path, one.raw, one.headers.get("X-Team", ""))
                    for one in server.asked
                ]
                asked, *again = seen
                assert again == [
                    (asked[0], body, 'it\'s "$HOME" `a` !x & team-secret-value; \\')
                ] * len(again)
                assert again
                server.asked.clear()

    asyncio.run(story())
    assert not (tmp_path / "ran").exists()


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    plan = replace(plan_for(tmp_path), no_reference=True)
    run(plan, Server(act=sound, answers=answers_to(plan.tasks[0])), tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be written"):
        capsules(tmp_path / "out", ["test-1"], tmp_path / "file", environ={})


def test_without_sessions_the_plan_tells_whom_was_asked(tmp_path):
    plan = replace(plan_for(tmp_path), no_reference=True)
    server = Server(act=sound, answers=answers_to(plan.tasks[0]))
    run(plan, server, tmp_path / "out")
    base_url = read_json(tmp_path / "out/environment.json")[-1]["endpoint"]["base_url"]
    # The file only informs, as serve-eval says if it is damaged.
    (tmp_path / "out/environment.json").unlink()
    [folder] = capsules(tmp_path / "out", ["test-1"], tmp_path / "capsules", environ={})
    assert (folder / "body.json").read_bytes() in server.received
    assert f"BASE_URL={base_url}\n" in (folder / "curl.sh").read_text()


def test_logs_of_one_name_are_all_kept(tmp_path):
    plan = replace(plan_for(tmp_path), no_reference=True)
    elsewhere = tmp_path / "held/server.log"
    server, info = (
        Server(act=sound, answers=answers_to(plan.tasks[0])),
        {"log_file": str(elsewhere)},
    )
    run(plan, server, tmp_path / "out", info=info)
    elsewhere.parent.mkdir()
    for file, word in ((tmp_path / "out/logs/server.log", "here"), (elsewhere, "there")):
        file.write_text(time.strftime(f"%Y-%m-%d %H:%M:%S {word}\n"))
    [folder] = capsules(tmp_path / "out", ["test-1"], tmp_path / "capsules", environ={})
    assert sorted(file.read_text().split()[-1] for file in (folder / "logs").iterdir()) == [
        "here",
        "there",
    ]


def test_a_sample_of_a_hold_out_set_needs_a_word_more(tmp_path, monkeypatch):
    pytest.importorskip("cryptography.fernet", reason="the extra holdout is not installed")
    monkeypatch.setenv(cases_file.VARIABLE, VAULT_KEY)
    cases = [
        f"    - {{case: a:n{i}, input: {{prompt: 'Secret {i}?'}}, expected: {{answer: vault}}}}\n"
        for i in range(8)
    ]
    (tmp_path / "plain.yaml").write_text(f"vault:\n  cases:\n{''.join(cases)}")
    sealed = tmp_path / "vault.yaml.enc"
    cases_file.encrypt(tmp_path / "plain.yaml", sealed, VAULT_KEY)
    plan = replace(plan_for(tmp_path), no_reference=True)
    plan = replace(plan, tasks=(Spec(name="cases:vault", options={"path": str(sealed)}),))
    answers = {f"Secret {i}?": "vault" for i in range(8)}
    server = Server(act=lambda asked: Said(text="out of order", status=422), answers=answers)
    run(plan, server, tmp_path / "out")
    [finding] = diagnose(tmp_path / "out").runs[0].findings
    assert (finding.rule, finding.count, finding.samples) == ("refused", 8, ())
    sample = json.loads((tmp_path / "out/samples/cases-vault.jsonl").read_text().splitlines()[0])[
        "id"
    ]
    with pytest.raises(PlanError, match="hold-out set"):
        capsules(tmp_path / "out", [sample], tmp_path / "capsules", environ={})
    [folder] = capsules(
        tmp_path / "out", [sample], tmp_path / "capsules", environ={}, allow_holdout=True
    )
    assert (folder / "body.json").read_bytes() in server.received
    monkeypatch.delenv(cases_file.VARIABLE)
    # Without the key, diagnose cannot know which samples are secret.
    [finding] = diagnose(tmp_path / "out").runs[0].findings
    assert finding.samples == ()
