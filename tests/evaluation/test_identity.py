"""A deployment passes by identity only if all that a run would use is the reference's."""

import hashlib
import json
import random
import re
import shutil

import pytest

from serve_eval.storage.report_file import read_report
from tests.cli.command import serve_eval
from tests.evaluation.thinking_server import ThinkingServer

TASK = (
    "-t word_problems --model m --set word_problems.num_samples=40"
    " --set word_problems.apply_chat_template=true"
)
CONCURRENCY = 12


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    """Take a reference with probes at a sound deployment, and return its folder."""
    folder = tmp_path_factory.mktemp("references")
    take(ThinkingServer(), folder)
    return folder / "refs"


def take(deployed, folder, more="", exits=0):
    """Take a reference of 30 probes at a deployment."""
    with deployed.server.serve_in_thread() as url:
        return serve_eval(
            f"references take {url} {TASK} --runs 1 --probes 30 {more}",
            *("--references-dir", str(folder / "refs"), "-o", str(folder / "taken")),
            exits=exits,
        )


def run(deployed, references, folder, more="--accept-identical", exits=None):
    """Run the task of the reference against a deployment, and return what was printed."""
    with deployed.server.serve_in_thread() as url:
        return ask(url, references, folder, more, exits)


def ask(url, references, folder, more="--accept-identical", exits=None):
    """Run the task of the reference at an address."""
    return serve_eval(
        f"run --base-url {url} {TASK} --concurrency {CONCURRENCY} {more}",
        *("--references-dir", str(references), "-o", str(folder / "run")),
        exits=exits,
    )


def read(folder):
    """Return the only task of the report."""
    [task] = read_report(folder / "run").tasks
    return task


def test_a_sound_deployment_passes_by_identity_and_is_asked_only_probes(references, tmp_path):
    sound = ThinkingServer()
    done = run(sound, references, tmp_path, exits=0)
    assert done.stdout.startswith(" PASS by identity   word_problems")
    assert "no value" in done.stdout
    task = read(tmp_path)
    found = task.verdict.identity
    assert (task.verdict.outcome, task.result.value, task.result.scored) == (
        "PASS by identity",
        None,
        0,
    )
    assert (found.accepted, found.probes, found.whole) == (True, 30, 3)
    assert found.unseen == pytest.approx(1 - 0.05 ** (1 / 30))
    assert found.in_flight == CONCURRENCY
    assert len(sound.probes) == 30
    assert sound.server.max_in_flight <= 16
    # The probes are the run's own requests, but for the length, the temperature and the list.
    asked = {json.dumps(body["messages"]) for body in sound.probes}
    usual = ThinkingServer()
    run(usual, references, tmp_path / "usual", more="")
    assert not usual.probes
    assert asked <= {json.dumps(body["messages"]) for body in usual.server.bodies}


ATTACKS = {
    "another template": (ThinkingServer(template="<s>[INST] "), "another chat template"),
    "template of the same length": (ThinkingServer(template=" "), "further away"),
    "no parser": (ThinkingServer(parser=None), "another parser"),
    "parser of the end": (ThinkingServer(parser="late"), "a whole answer has another text"),
    "one bad worker of four": (ThinkingServer(workers=4, wrong=1), "further away"),
    "defaults": (ThinkingServer(adds={"repetition_penalty": 1.2}), "repetition_penalty"),
    "ignored penalties": (ThinkingServer(ignores=("presence_penalty",)), "presence_penalty"),
    "ignored temperature": (ThinkingServer(ignores=("temperature",)), "temperature"),
    "another model": (ThinkingServer(wrong=1), "another model"),
    "other numerics": (ThinkingServer(numerics=1e-4), "another model, precision"),
    "noise": (ThinkingServer(noise=1e-3), "further away"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_other_deployment_passes_by_identity(attack, references, tmp_path):
    deployed, why = ATTACKS[attack]
    done = run(deployed, references, tmp_path)
    task = read(tmp_path)
    assert task.verdict.outcome != "PASS by identity"
    assert not task.verdict.identity.accepted
    assert why in task.verdict.identity.why
    assert why in done.stderr
    assert task.result.scored == 40


def test_a_server_that_answers_probes_from_a_cache_does_not_pass(tmp_path):
    stored = {}
    take(ThinkingServer(stored=stored), tmp_path)
    assert len(stored) >= 30
    behind = ThinkingServer(stored=stored, wrong=1)
    run(behind, tmp_path / "refs", tmp_path)
    task = read(tmp_path)
    assert "were asked for" in task.verdict.identity.why
    assert task.result.scored == 40


def test_probes_of_another_version_or_file_are_not_compared(references, tmp_path):
    copied = tmp_path / "refs"
    shutil.copytree(references, copied)
    [file] = (copied / "probes").iterdir()
    changed = file.read_text().replace('"version":1', '"version":2', 1)
    file.write_text(changed)
    run(ThinkingServer(), copied, tmp_path)
    assert "is not the file that was registered" in read(tmp_path).verdict.identity.why
    _sign(copied, file)
    run(ThinkingServer(), copied, tmp_path / "b")
    assert "probes of version 2" in read(tmp_path / "b").verdict.identity.why
    file.unlink()
    run(ThinkingServer(), copied, tmp_path / "c")
    assert "cannot be read" in read(tmp_path / "c").verdict.identity.why


def _sign(references, file):

    entry = references / "word_problems.yaml"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    entry.write_text(re.sub(r"probes_sha256: \w+", f"probes_sha256: {digest}", entry.read_text()))


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (
            "--set limits.stream=true",
            "answered as whole bodies, and this run asks for event streams",
        ),
        ("--limit 20", "another protocol: samples"),
        ("--set expect.kv_transfer=true", "the plan expects kv_transfer"),
        ("--no-reference", "--no-reference was given"),
    ],
)
def test_a_run_that_asks_otherwise_is_asked(more, why, references, tmp_path):
    deployed = ThinkingServer()
    run(deployed, references, tmp_path, f"--accept-identical {more}")
    found = read(tmp_path).verdict.identity
    assert not found.accepted
    assert why in found.why
    assert not deployed.probes


def test_a_reference_without_probes_says_how_to_take_them(references, tmp_path):
    copied = tmp_path / "refs"
    shutil.copytree(references, copied)
    entry = copied / "word_problems.yaml"
    lines = [line for line in entry.read_text().splitlines() if "probes" not in line]
    entry.write_text("\n".join(lines))
    done = run(ThinkingServer(), copied, tmp_path)
    assert "serve-eval references take" in done.stderr
    assert "--probes 60" in read(tmp_path).verdict.identity.why


def test_a_finished_run_stays_as_it_is_and_is_asked_if_identity_is_not_accepted(
    references, tmp_path
):
    deployed = ThinkingServer()
    with deployed.server.serve_in_thread() as url:
        ask(url, references, tmp_path, exits=0)
        before = len(deployed.server.asked)
        ask(url, references, tmp_path, exits=0)
        assert len(deployed.server.asked) == before
        assert read(tmp_path).verdict.identity.accepted
        ask(url, references, tmp_path, "--no-accept-identical")
        assert len(deployed.probes) == 30
        assert (read(tmp_path).result.scored, read(tmp_path).verdict.identity) == (40, None)
        ask(url, references, tmp_path)
        assert read(tmp_path).result.scored == 40
    # Another address is another deployment, whose probes are asked.
    run(ThinkingServer(), references, tmp_path / "b", exits=0)
    run(ThinkingServer(wrong=1), references, tmp_path / "b")
    assert not read(tmp_path / "b").verdict.identity.accepted


def test_a_resumed_session_trusts_no_sampling_defaults_of_an_earlier_one(references, tmp_path):
    deployed = ThinkingServer()
    with deployed.server.serve_in_thread() as url:
        ask(url, references, tmp_path, exits=0)
        (tmp_path / "run" / "identity.json").unlink()  # as after a kill within the probes
        deployed.adds = {"repetition_penalty": 1.2}
        ask(url, references, tmp_path)
    found = read(tmp_path).verdict.identity
    assert (found.accepted, "repetition_penalty" in found.why) == (False, True)


def test_a_run_that_began_to_ask_is_not_passed_by_identity(references, tmp_path):
    with ThinkingServer().server.serve_in_thread() as url:
        ask(url, references, tmp_path, "")
        journal = tmp_path / "run/samples/word_problems.jsonl"
        journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:5]))
        ask(url, references, tmp_path)
    assert read(tmp_path).verdict.identity.why == "an earlier session began to ask the task"
    assert read(tmp_path).result.scored == 40


def test_no_other_command_takes_a_pass_by_identity_for_a_value(references, tmp_path):
    done = run(
        ThinkingServer(),
        references,
        tmp_path,
        f"--accept-identical --junit {tmp_path / 'junit.xml'}",
    )
    folder = tmp_path / "run"
    for line in (
        f"judge {folder}",
        f"judge {folder} --rescore",
        f"references register {folder} --references-dir {tmp_path / 'other'}",
        f"compare {folder} {folder} -o {tmp_path / 'compared'}",
    ):
        serve_eval(line, exits=2, tells="passed by identity, and nothing was asked")
    junit = (tmp_path / "junit.xml").read_text()
    assert 'value="PASS by identity"' in junit
    assert 'name="value"' not in junit
    row = serve_eval(f"runs table {folder}", exits=0).stdout.splitlines()[1]
    assert "PASS by identity,accuracy,,,," in row
    assert "no value" in serve_eval(f"runs trend {tmp_path}").stderr + done.stdout


def test_a_stream_is_recognized_as_a_stream(tmp_path):
    streamed = "--set limits.stream=true"
    take(ThinkingServer(), tmp_path, streamed)
    run(ThinkingServer(), tmp_path / "refs", tmp_path, f"--accept-identical {streamed}", exits=0)
    assert read(tmp_path).verdict.outcome == "PASS by identity"
    run(
        ThinkingServer(parser=None),
        tmp_path / "refs",
        tmp_path / "b",
        f"--accept-identical {streamed}",
    )
    assert "another parser" in read(tmp_path / "b").verdict.identity.why


def test_a_server_that_differs_from_itself_a_little_is_recognized(tmp_path):
    take(ThinkingServer(noise=0.01), tmp_path)
    run(ThinkingServer(noise=0.01, rng=random.Random(1)), tmp_path / "refs", tmp_path)
    found = read(tmp_path).verdict.identity
    assert found.accepted, found.why
    run(ThinkingServer(noise=0.01, numerics=0.1), tmp_path / "refs", tmp_path / "b")
    assert not read(tmp_path / "b").verdict.identity.accepted


UNFIT = {"noise": ThinkingServer(noise=0.5), "worker": ThinkingServer(workers=4, wrong=1)}


@pytest.mark.parametrize("unfit", UNFIT)
def test_probes_that_could_prove_nothing_are_not_registered(unfit, tmp_path):
    done = take(UNFIT[unfit], tmp_path, exits=None)
    assert done.returncode != 0
    assert "probes cannot show that a deployment is the same one" in done.stderr
    assert not list((tmp_path / "refs").glob("*.yaml"))


CONVERSATIONS = """
talk:
  cases:
    - case: two
      input: {turns: [{say: Hello, expect: hi}, {say: Bye, expect: bye}]}
"""


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (f"{TASK} --set connection.route=responses", "the Responses route gives no"),
        (f"{TASK} --set connection.route=responses_by_id", "the Responses route gives no"),
        ("--model m --cases TALK", "conversations, whose later turns depend"),
    ],
)
def test_probes_that_no_server_could_answer_are_refused_before_the_runs(asked, why, tmp_path):
    cases = tmp_path / "talk.yaml"
    cases.write_text(CONVERSATIONS)
    deployed = ThinkingServer()
    with deployed.server.serve_in_thread() as url:
        told = serve_eval(
            f"references take {url} {asked.replace('TALK', str(cases))} --runs 1 --probes 30",
            *("--references-dir", str(tmp_path / "refs"), "-o", str(tmp_path / "taken")),
        )
    assert why in told.stderr
    assert "Leave out --probes" in told.stderr
    assert not deployed.server.asked


def test_probes_are_added_to_a_reference_that_has_none(tmp_path):
    with ThinkingServer().server.serve_in_thread() as url:
        words = f"references take {url} {TASK} --runs 1"
        to = "--references-dir", str(tmp_path / "refs"), "-o", str(tmp_path / "taken")
        serve_eval(words, *to, exits=0)
        entry = tmp_path / "refs/word_problems.yaml"
        assert "probes" not in entry.read_text()
        serve_eval(f"{words} --probes 30", *to, exits=0)
        assert "probes_sha256" in entry.read_text()
        assert "replaced" not in entry.read_text()
    run(ThinkingServer(), tmp_path / "refs", tmp_path, exits=0)
    assert read(tmp_path).verdict.identity.accepted


def test_a_dry_run_says_what_would_be_asked_first(references, tmp_path):
    told = run(ThinkingServer(), references, tmp_path, "--accept-identical --dry-run").stdout
    assert "accept identical: 30 probes and 3 whole answers first, about" in told
    assert not (tmp_path / "run").exists()


def test_a_rule_keeps_its_options_beside_the_key(references, tmp_path):
    key = "--set verdict.accept_identical=true"
    run(ThinkingServer(), references, tmp_path, key, exits=0)
    task = read(tmp_path)
    assert task.verdict.outcome == "PASS by identity"
    assert not task.verdict.rule_named
