"""Take a reference in one command, and copy the command from every message that lacks one."""

import json
import re
import shlex
from pathlib import Path

import msgspec
import pytest

from serve_eval.cli.app import make_command
from serve_eval.plan.command_line import write_run_command, write_take_command
from serve_eval.plan.plan_file import to_file
from serve_eval.plan.resolve import resolve
from tests.cli.command import serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")

ASKED = "--launcher simulated --model my-org/m -t passkey_short --set launcher.accuracy=0.7"


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_reference_is_registered_and_the_printed_command_uses_it(tmp_path):
    done = serve_eval("references take --runs 2 -o out", *ASKED.split(), exits=0)
    first, *rows = done.stdout.splitlines()
    assert re.fullmatch(
        r" REGISTERED   passkey_short  [\d.]+, the mean of 2 runs of 110 samples", first
    )
    for row in (
        " seeds    temperature 0, so that no seed matters",
        " commit   my-references/passkey_short.yaml and my-references/samples",
        " folder   out holds the runs",
        " warning  the runs were simulated: this reference says nothing about any model",
    ):
        assert row in rows
    for face in ("report.html", "junit.xml", "summary.md"):
        assert "the mean of 2 runs of 110 samples" in (tmp_path / "out" / face).read_text(), face
    use, show = _next_commands(done.stdout)
    assert use == f"serve-eval run {ASKED} --references-dir my-references"
    serve_eval(*shlex.split(use)[1:], "-o", "judged", exits=0, prints="PASS")
    serve_eval(*shlex.split(show)[1:], exits=0, prints="2 runs of 110 samples")
    # Each run has an order of its own, so that the runs do not share what depends on it.
    seeds = {(tmp_path / f"out/run_{k}/order.json").read_text() for k in (1, 2)}
    assert len(seeds) == 2
    missing = serve_eval("judge --rescore out")
    assert "Name one of its runs: out/run_1" in missing.stderr


def test_finished_runs_are_kept_and_an_unfinished_one_is_resumed(tmp_path):
    words = ["references", "take", "--runs", "2", *ASKED.split(), "-o", "out"]
    serve_eval(*words, exits=0)
    first = (tmp_path / "out/run_1/samples/passkey_short.jsonl").read_bytes()
    journal = tmp_path / "out/run_2/samples/passkey_short.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:40]))
    (tmp_path / "out/run_2/report.json").unlink()
    serve_eval(*words, "--reason", "asked again", exits=0)
    assert (tmp_path / "out/run_1/samples/passkey_short.jsonl").read_bytes() == first
    assert journal.read_bytes().splitlines(keepends=True)[:40] == lines[:40]
    serve_eval(
        *words,
        "--set",
        "passkey_short.sentences=5",
        "--reason",
        "another",
        exits=2,
        tells="holds checks of something else",
    )


def test_the_same_command_shows_a_result_again_but_replaces_no_other_entry(tmp_path):
    words = ["references", "take", "--runs", "2", *ASKED.split(), "-o", "out"]
    first = serve_eval(*words)
    file = tmp_path / "my-references/passkey_short.yaml"
    entry = file.read_text()
    again = serve_eval(*words)
    assert (again.returncode, again.stdout) == (0, first.stdout), again.stderr
    assert file.read_text() == entry
    assert len(list((tmp_path / "my-references/samples").iterdir())) == 1
    serve_eval(*words, "--runs", "3", exits=2, tells="give --reason 'why'")
    assert not (tmp_path / "out/run_3").exists()
    file.write_text("my-org/m:\n- accuracy: 80\n")
    serve_eval(*words, exits=2, tells="give --reason 'why'")
    assert file.read_text() == "my-org/m:\n- accuracy: 80\n"


@pytest.mark.parametrize(
    ("more", "message"),
    [("--runs 0", "--runs must be 1 or more"), ("plan.yaml", "a reference needs complete runs")],
)
def test_what_could_not_be_registered_is_refused_before_anything_is_sent(more, message, tmp_path):
    (tmp_path / "plan.yaml").write_text(
        "launcher: simulated\nmodel: m\ntasks: [passkey_short]\nlimit: 5\n"
    )
    words = more.split() if "yaml" in more else [*ASKED.split(), *more.split()]
    serve_eval("references take -o out", *words, exits=2, tells=message)
    assert not (tmp_path / "out").exists()


def test_an_entry_is_replaced_only_with_a_reason_which_is_asked_for_first(tmp_path):
    (tmp_path / "my-references").mkdir()
    file = tmp_path / "my-references/passkey_short.yaml"
    file.write_text("my-org/m:\n- accuracy: 80\n")
    serve_eval(
        "references take --runs 1 -o out", *ASKED.split(), exits=2, tells="give --reason 'why'"
    )
    assert not (tmp_path / "out").exists()
    words = ["references", "take", "--runs", "1", *ASKED.split(), "--reason", "a new build"]
    serve_eval(*words, "-o", "out", exits=0)
    assert "reason: a new build" in file.read_text()
    file.write_text("my-org/m: [{accuracy: 80}]\n")  # a form in which nothing can be replaced
    serve_eval(*words, "-o", "other", exits=2, tells="on a separate line")
    assert not (tmp_path / "other").exists()


def test_without_an_endpoint_or_a_launcher_the_command_says_what_to_name():
    serve_eval("references take -t passkey_short", exits=2, tells="name the endpoint")


def _next_commands(text):
    return re.findall(r"^ (?:next)? +(serve-eval .*)", text, re.MULTILINE)


def _commands(text):
    return re.findall(r"serve-eval references take .*?(?= ·|$)", text, re.MULTILINE)


def _suite(tmp_path, more=", allow_missing_reference: true"):
    file = tmp_path / "suite.yaml"
    plan = "{launcher: {name: simulated, accuracy: 0.7}, model: my-org/m, tasks: [passkey_short]"
    file.write_text(f"name: s\nplans:\n  - {plan}{more}, name: a}}\n")
    return file


def test_every_message_about_a_missing_reference_has_the_command_that_takes_it(
    tmp_path,
):
    expected = [
        "serve-eval references take TRUSTED_HOST:8000 --runs 3 --model my-org/m -t passkey_short"
    ]
    refused = serve_eval("run -o refused", *ASKED.split())
    assert (refused.returncode, _commands(refused.stderr)) == (3, expected), refused.stderr
    shown = serve_eval("run --dry-run", *ASKED.split())
    assert (shown.returncode, _commands(shown.stderr)) == (3, expected), shown.stderr
    value = serve_eval("run --set allow_missing_reference=true -o value", *ASKED.split())
    assert (value.returncode, _commands(value.stdout)) == (3, expected), value.stdout
    again = serve_eval("judge value")
    assert (again.returncode, _commands(again.stdout)) == (3, expected), again.stdout
    summary = (tmp_path / "value/summary.md").read_text()
    assert expected[0] in summary
    suite = serve_eval("run -o suite", _suite(tmp_path))
    assert (suite.returncode, _commands(suite.stdout)) == (3, expected), suite.stderr
    faces = (refused.stderr, shown.stderr, value.stdout, again.stdout, summary, suite.stdout)
    assert all("would pass against itself" in face for face in faces)
    planned = serve_eval("run --dry-run", _suite(tmp_path, ""))
    assert (planned.returncode, _commands(planned.stderr)) == (3, expected), planned.stderr


def test_a_command_that_would_replace_an_entry_has_a_reason(tmp_path):
    Path("refs").mkdir()
    Path("refs/passkey_short.yaml").write_text(
        "my-org/m:\n- accuracy: 80\n  protocol: {sentences: 5}\n"
    )
    words = [*ASKED.split(), "--references-dir", "refs", "--set", "allow_missing_reference=true"]
    done = serve_eval("run -o value", *words, exits=3)
    more = f", allow_missing_reference: true, references_dir: {tmp_path / 'refs'}"
    suite = serve_eval("run -o suite", _suite(tmp_path, more), exits=3)
    shown = serve_eval("run --dry-run", *words[:-2])
    for text in (done.stdout, suite.stdout, shown.stderr):
        [command] = _commands(text)
        assert command.endswith("--reason 'another protocol'"), text
    taken = shlex.split(_commands(done.stdout)[0].replace("TRUSTED_HOST:8000", ""))[1:]
    serve_eval(*taken, "--launcher", "simulated", "-o", "taken", exits=0)
    assert "reason: another protocol" in Path("refs/passkey_short.yaml").read_text()


@pytest.mark.parametrize("rule", ["paired", "{anchors: {}}"])
def test_a_rule_that_needs_more_of_a_reference_names_no_endpoint_under_test(rule, tmp_path):
    (tmp_path / "refs").mkdir()
    Path("refs/passkey_short.yaml").write_text("my-org/m: [{accuracy: 80}]\n")
    if rule != "paired":
        words = ["--runs", "1", *ASKED.split(), "--references-dir", "refs", "--reason", "x"]
        Path("refs/passkey_short.yaml").write_text("my-org/m:\n- accuracy: 80\n")
        serve_eval("references take -o out", *words, exits=0)
    Path("plan.yaml").write_text(
        f"launcher: {{name: simulated, damage: 0.5}}\nmodel: my-org/m\ntasks: [passkey_short]\n"
        f"references_dir: refs\nverdict: {rule}\n"
    )
    done = serve_eval("run plan.yaml -o judged")
    [command] = _commands(done.stderr)
    assert command.startswith("serve-eval references take TRUSTED_HOST:8000 --runs "), command
    assert "damage" not in command
    assert "launcher" not in command


def test_a_copied_command_asks_for_the_address_that_it_lacks():
    serve_eval(
        "references take TRUSTED_HOST:8000 -t passkey_short",
        exits=2,
        tells="that you know to be sound",
    )


def test_keys_of_the_endpoint_under_test_are_not_sent_to_another():
    connection = {"headers": {"X-Team": "a"}, "api_key_env": "MINE", "route": "responses"}
    content = {"model": "m", "tasks": ["passkey_short"], "base_url": "under-test:1"}
    plan = resolve({**content, "connection": connection}, {}, {"MINE": "key"}).plan
    told = write_take_command(plan, ["passkey_short"])
    assert told == (
        "serve-eval references take TRUSTED_HOST:8000 --runs 3 --model m -t passkey_short"
        " --set connection.route=responses"
    )


def test_a_command_is_not_broken_on_a_terminal():
    done = serve_eval("run -o r", *ASKED.split(), terminal=True, COLUMNS="60")
    [command] = _commands(done.stderr)
    assert len(command) > 60
    assert command.endswith("-t passkey_short")


@pytest.mark.parametrize(
    "content",
    [
        {"base_url": "host:8000"},
        {"base_url": "https://host/gateway/v2", "model": "my org/m"},
        {"accuracy_spec": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}},
        {"connection": {"headers": {"X-Team": "a b"}, "proxy": "http://p:1"}},
        {"launcher": {"name": "trtllm", "model": "/m", "tp": 2, "extra_args": ["--a b", "1"]}},
        {"tasks": [{"passkey_short": {"system_prompt": "Be brief: 'x'.", "sentences": 3}}]},
        {"allow_hub": True, "limits": {"concurrency": 8}, "base_url": "http://[::1]:9/v1"},
        {"server_defaults": "keep", "base_url": "host:8000"},
        {"reference_model": "r", "dataset_root": "/data sets", "base_url": "https://h/v1"},
    ],
)
def test_the_command_asks_what_the_plan_asks(content):
    plan = resolve({"model": "m", "tasks": ["passkey_short"], **content}, {}, {}).plan
    Path("refs").mkdir()
    words = shlex.split(write_run_command(plan, str(Path("refs").absolute())))[1:]
    shown = serve_eval(*words, "--dry-run", "--json")
    told = json.loads(shown.stdout)["plan"]
    assert told.pop("references_dir") == str(Path("refs").absolute())
    assert told == json.loads(msgspec.json.encode(to_file(plan)))
    taken = shlex.split(write_take_command(plan, ["passkey_short"]))[1:]
    assert taken[2:5] == ["TRUSTED_HOST:8000", "--runs", "3"]
    by_set = {"--set", "allow_hub=true", "accuracy_spec.quant_algo=FP8"}
    assert {*taken[5:]} <= {*words, *by_set, "accuracy_spec.kv_cache_quant_algo=FP8"}
    make_command("references", "take").make_context("take", taken[2:]).close()


@pytest.mark.parametrize("folder", ["new", "deep/er/new"])
def test_the_folder_of_the_references_is_made(tmp_path, folder):
    words = ["references", "take", "--runs", "1", *ASKED.split(), "-o", "out"]
    serve_eval(*words, "--references-dir", folder, exits=0)
    assert (tmp_path / folder / "passkey_short.yaml").exists()
    serve_eval(f"run --references-dir {folder} -o judged", *ASKED.split(), exits=0, prints="PASS")
    (tmp_path / folder).rename(tmp_path / "moved")
    serve_eval("references register out/run_1 --references-dir other/one", exits=0)
    assert (tmp_path / "other/one/passkey_short.yaml").exists()


def test_the_folder_that_a_plan_file_names_is_made(tmp_path):
    (tmp_path / "plan.yaml").write_text(
        "launcher: {name: simulated}\ntasks: [passkey_short]\nreferences_dir: deep/new\n"
    )
    serve_eval("references take plan.yaml --runs 1 -o out", exits=0)
    assert (tmp_path / "deep/new/passkey_short.yaml").exists()
    serve_eval(
        "run plan.yaml --references-dir nowhere -o judged", exits=2, tells="nowhere is not a folder"
    )


@pytest.mark.parametrize("folder", ["file", "file/new", "link", None])
def test_a_file_in_the_place_of_the_folder_is_refused_before_anything_is_asked(tmp_path, folder):
    for name in ("file", "my-references"):
        (tmp_path / name).write_text("kept")
    (tmp_path / "link").symlink_to("nowhere")
    where = [] if folder is None else ["--references-dir", folder]
    done = serve_eval(
        "references take --runs 1 -o out",
        *ASKED.split(),
        *where,
        exits=2,
        tells=f"{folder or 'my-references'}",
    )
    assert "folder" in done.stderr
    assert not (tmp_path / "out/run_1").exists()
    assert (tmp_path / "file").read_text() == "kept"


def test_an_import_says_that_a_file_is_in_its_place(tmp_path):
    (tmp_path / "file").write_text("kept")
    (tmp_path / "from").mkdir()
    (tmp_path / "from/mmlu.yaml").write_text("m:\n  - accuracy: 50\n")
    serve_eval(
        "references import from -o file/deep",
        exits=2,
        tells="references belong in a folder, and file is a file",
    )
    serve_eval("references import from -o some/where", exits=0)
    assert (tmp_path / "some/where/mmlu.yaml").exists()


def test_a_plan_that_was_given_is_named_in_the_command():
    plan = """
    model: my-org/m
    tasks: [passkey_short]
    launcher: {name: simulated, accuracy: 0.7}
    """
    Path("my plan.yaml").write_text(plan)
    done = serve_eval("references take --runs 2 -o out 'my plan.yaml'", exits=0)
    use = _next_commands(done.stdout)[0]
    assert use == "serve-eval run 'my plan.yaml' --references-dir my-references"
    serve_eval(*shlex.split(use)[1:], "-o", "judged", exits=0)


def test_a_task_that_the_endpoint_cannot_do_ends_after_one_run(tmp_path):
    asked = "--launcher simulated --model my-org/m -t tool_calls --set launcher.no_tools=true"
    words = ["references", "take", "--runs", "2", *asked.split(), "-o", "out"]
    for _ in range(2):  # The same command asks the endpoint again.
        done = serve_eval(
            *words, exits=4, tells="tool_calls is UNSUPPORTED: the endpoint lacks tool calls"
        )
        assert "Leave tool_calls out" in done.stderr
        assert "resume" not in done.stderr
        assert not (tmp_path / "out/run_2").exists()
    mended = [word.replace("no_tools=true", "no_tools=false") for word in words]
    serve_eval(*mended, "-o", "other", exits=0)
    registered = serve_eval("references register out/run_1 --references-dir refs")
    assert "UNSUPPORTED" in registered.stderr


def test_runs_that_are_registered_have_the_commands_that_use_them(tmp_path):
    serve_eval("run -o 'a b' --no-reference", *ASKED.split(), exits=3)
    told = json.loads(
        serve_eval("references register --json 'a b' --references-dir 'my refs'").stdout
    )
    [one] = told["result"]["registered"]
    assert (one["task"], one["model"], len(one["values"])) == ("passkey_short", "my-org/m", 1)
    assert (tmp_path / one["file"]).exists()
    assert (tmp_path / one["scores"]).exists()
    use, show = (shlex.split(command)[1:] for command in told["commands"])
    serve_eval(*use, "-o", "judged", exits=0)
    serve_eval(*show, exits=0)
    words = "references register judged --references-dir 'my refs'"
    again = serve_eval(f"{words} --reason 'a new build'")
    assert " replaced an older entry, which is kept in the new one: a new build" in again.stdout
