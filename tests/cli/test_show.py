"""Run `serve-eval show` on run folders of a server whose answers the test writes."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from rich.cells import cell_len

from serve_eval.protocol.shared import build_task
from serve_eval.schema import DataRoots, Spec
from tests.cli.command import serve_eval
from tests.scripted_server import ScriptedServer, answer, fail, models

TASK = "word_problems"
N = 10
EVIL = "\x1b]0;title \x1b[31mred\x1b[0m \u202eline\r \x9b2J"
"""An answer that would change a terminal."""
SAMPLES = build_task(Spec(name=TASK, options={"num_samples": N})).load(DataRoots(), N).samples
FAILED, UNREADABLE, WRONG, CUT_OFF, RETRIED, LONG = (sample.id for sample in SAMPLES[:6])


class Answers:
    """A script that answers most prompts rightly, or all of them; B answers one more wrongly."""

    def __init__(self, *, b=False, whole=False):
        self._b, self._whole, self._refused = b, whole, False

    def __call__(self, request):
        sample = next((one for one in SAMPLES if one.prompt == request.prompt), None)
        if sample is None:
            return answer("ok")
        right = sample.target
        if sample.id == RETRIED and not self._refused:
            self._refused = True
            return fail(503, "busy")
        if self._b and sample.id == RETRIED:
            return answer(f"{right}1")
        if self._whole:
            return answer(right)
        said = {
            UNREADABLE: answer("I do not know."),
            WRONG: answer(f"{EVIL} 1,234 apples\n#### 1,234", usage=(20, 9)),
            CUT_OFF: answer(right, finish="length"),
            LONG: answer("\n".join([*(f"step {i}" for i in range(60)), right])),
        }
        if sample.id == FAILED:
            return fail(400, "no \x1b[1mway")
        return said.get(sample.id, answer(right))


def _run(folder, script, *flags, judged=False):
    with ScriptedServer(script, routes={"/v1/models": models("m")}).serve_in_thread() as url:
        command = ["run", "--base-url", url, "--model", "m", "--tasks", TASK]
        size = ["--set", f"{TASK}.num_samples={N}", "-o", str(folder)]
        alone = [] if judged else ["--no-reference"]
        done = serve_eval(*command, *size, *alone, *flags)
        assert done.returncode == 3 or judged, done.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shown") / "a"
    _run(folder, Answers())
    return folder


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shown") / "b"
    _run(folder, Answers(b=True))
    return folder


def _show(line="", *arguments, code=0, **environ):
    done = serve_eval(f"show {line}", *arguments, **{"COLUMNS": "80", **environ}, exits=code)
    return done.stdout if code == 0 else done.stderr


def _show_screen(*arguments, **environ):
    """Return the text that a terminal shows."""
    drawn = _show("", *arguments, FORCE_COLOR="1", TERM="xterm", **environ)
    return re.sub(r"\x1b\[[0-9;]*m", "", drawn)


def _json(*arguments):
    return json.loads(_show("--json", *arguments))["result"]


def _names(text):
    return re.findall(r"^ [a-z, →]+ +(test-\d+) ", text, re.MULTILINE)


def test_the_list_begins_with_what_needs_attention(run):
    listed = _show(run)
    rest = [sample.id for sample in SAMPLES[4:]]
    assert _names(listed) == [FAILED, UNREADABLE, WRONG, CUT_OFF, *rest]
    assert listed.startswith(f" SAMPLES   {run}  {N} samples: 1 failed, 1 unreadable, 1 wrong, ")
    assert re.search(rf"^ failed +{FAILED} +- +HTTP 400: no", listed, re.MULTILINE)
    assert re.search(rf"^ right, cut off +{CUT_OFF} +\d+ +\d+$", listed, re.MULTILINE)
    assert "more match" not in listed
    few = _show(f"{run} --n 2")
    assert _names(few) == [FAILED, UNREADABLE]
    assert f"{N - 2} more match" in few
    assert f"serve-eval show {run} {FAILED}\n" in few
    assert _names(_show(f"{run} --n 2 --all")) == _names(listed)
    assert _show(f"{run} -q") == listed.splitlines(keepends=True)[0]
    assert "--n 0: expected 1 or more" in _show(f"{run} --n 0", code=2)


def test_the_first_screen_of_a_list_and_of_a_sample_is_short(run, other):
    for asked in ((run,), (run, LONG), (run, WRONG), (run, "--wrong"), (other, "--against", run)):
        shown = _show_screen(*asked)
        assert len(shown.splitlines()) <= 22, shown


def test_the_commands_that_come_next_can_be_run(run, other):
    for asked in ((run,), (run, LONG), (other, "--against", run), (run, "--wrong")):
        commands = json.loads(_show("--json", *asked))["commands"]
        assert len(commands) == 1
        for command in commands:
            serve_eval(*shlex.split(command)[1:], exits=0)


def test_a_sample_is_shown_with_everything_that_is_known(run):
    text = _show(f"{run} {RETRIED}")
    sample = next(one for one in SAMPLES if one.id == RETRIED)
    assert text.startswith(f" RIGHT   {TASK} {RETRIED}  answered ")
    assert " ".join(str(sample.prompt).split()[:8]) in text
    target = sample.target.rpartition("#### ")[2]
    assert f" extract  {target} (line " in text
    assert "\n score    1, " in text
    labels = re.findall(r"^ (\w+) ", text, re.MULTILINE)
    assert labels == [
        *("RIGHT", "prompt", "answer", "expected", "score", "extract", "end", "attempts", "next")
    ]
    text = _show(f"{run} {RETRIED} -v")
    assert re.search(r"attempts 1: HTTP 503 after .* s, sent 20.* UTC\n", text)
    assert re.search(r"\n          2: answered after .* s, sent 20.* UTC\n", text)
    [told] = _json(run, RETRIED)["samples"]
    assert told["prompt"] == sample.prompt
    assert told["response"]["text"] == told["expected"] == sample.target
    assert [one["status"] for one in told["attempts"]] == [503, 200]
    start, end = told["place"]["start"], told["place"]["end"]
    assert told["response"]["text"][start:end] == told["extracted"] == target


def test_the_place_of_what_was_extracted_is_shown(run):
    [told] = _json(run, WRONG)["samples"]
    place = told["place"]
    assert told["response"]["text"][place["start"] :] == told["extracted"] == "1,234"
    assert (place["line"], place["lines"], place["times"]) == (2, 2, 2)
    text = _show(f"{run} {WRONG}")
    assert "line 2 of 2, characters" in text
    assert "the last of 2 places" in text
    assert "finish reason stop; 20 prompt and 9 answer tokens" in text
    assert " extract  nothing" in _show(f"{run} {UNREADABLE}")


def test_nothing_of_an_answer_or_an_error_reaches_the_terminal_as_it_is(run):
    for shown in (
        _show(f"{run} {WRONG}"),
        _show(run),
        _show(f"{run} {FAILED}"),
        _show(f"{run} --all --json"),
    ):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e]", shown)
    assert "\\x1b]0;title \\x1b[31mred\\x1b[0m \\u202eline\\x0d \\x9b2J" in _show(f"{run} {WRONG}")
    assert _json(run, WRONG)["samples"][0]["response"]["text"].startswith(EVIL)


def test_choices_filter_and_combine(run):
    assert _names(_show(f"{run} --wrong --brief")) == [UNREADABLE, WRONG]
    assert _names(_show(f"{run} --failed --brief")) == [FAILED]
    assert _names(_show(f"{run} --wrong --failed --brief")) == [FAILED, UNREADABLE, WRONG]
    assert _names(_show(f"{run} --grep 'I DO NOT' --brief")) == [UNREADABLE]
    name = str(SAMPLES[0].prompt).split()[1]
    asked = {one.id for one in SAMPLES if name.lower() in str(one.prompt).lower()}
    assert set(_names(_show(f"{run} --grep {name} --brief"))) == asked
    both = asked & {UNREADABLE, WRONG}
    assert set(_names(_show(f"{run} --grep {name} --wrong --brief"))) == both
    assert f"none of {N} samples matches" in _show(f"{run} --grep 'no such text'")
    assert f" {TASK} {UNREADABLE}: UNREADABLE\n" in _show(f"{run} --wrong -v")
    assert f" UNREADABLE   {TASK} {UNREADABLE}  answered nothing" in _show(f"{run} --wrong --n 1")


def test_of_a_long_answer_the_last_lines_are_kept_and_words_are_not_cut(run):
    text = _show_screen(run, LONG)
    assert re.search(r"^ answer +\.\.\. ", text, re.MULTILINE)
    assert "-v adds " in text
    assert "step 30" not in text
    assert "#### " in text
    assert "answer   step 0\n" in _show(f"{run} {LONG} -v")
    assert "step 30" in _show(f"{run} {LONG} -v")
    for name in (LONG, RETRIED):
        for line in _show_screen(run, name).splitlines():
            assert cell_len(line) <= 80 or "serve-eval" in line, line
    prompt = str(SAMPLES[4].prompt).split()
    shown = _show_screen(run, RETRIED, "-v", COLUMNS="40").partition(" answer ")[0].split()
    assert shown[-len(prompt) :] == prompt


def test_colour_follows_the_environment(run):
    assert "\x1b[" not in _show(f"{run} {WRONG}")
    assert "\x1b[" in _show(f"{run} {WRONG}", FORCE_COLOR="1", TERM="xterm")
    assert "\x1b[31m" not in _show(f"{run} {WRONG}", FORCE_COLOR="1", NO_COLOR="1", TERM="xterm")


def test_an_unknown_sample_or_task_is_told_with_what_is_close(run):
    told = _show(f"{run} {WRONG}9", code=2)
    assert f"no sample '{WRONG}9' was sent. Did you mean" in told
    assert repr(WRONG) in told
    assert f"Did you mean '{TASK}'?" in _show(f"{run} --task word_problem", code=2)
    assert "no such folder" in _show(f"{run}/nothing", code=2)


def test_two_runs_are_compared_sample_by_sample(run, other):
    text = _show(f"{other} --against {run}")
    assert f"from A to B: 1 scores fell, 0 rose ({N} samples)" in text
    assert text.startswith(f" A RIGHT, B WRONG   {TASK} {RETRIED}\n")
    assert "\n parts at word " in text
    assert "\n then A   (it ends there)\n then B   1\n" in text
    assert [
        line.split()[:2] for line in text.splitlines() if line.startswith((" answer", " score"))
    ] == [*(["answer", "A"], ["answer", "B"], ["score", "A"], ["score", "B"])]
    [pair] = _json(other, "--against", run)["pairs"]
    assert (pair["a"]["value"], pair["b"]["value"]) == (1.0, 0.0)
    brief = _show(f"{other} --against {run} --brief")
    assert re.search(rf"^ right → wrong +{RETRIED} +\d+ +\d+ → \d+$", brief, re.MULTILINE)
    assert _names(_show(f"{other} {WRONG} --against {run} --brief")) == [WRONG]


def test_a_comparison_shows_its_flips(run, other, tmp_path):
    folder = tmp_path / "compared"
    done = serve_eval(f"compare {run} {other} -o {folder}")
    assert done.returncode in (0, 1, 3), done.stderr
    assert f" A RIGHT, B WRONG   {TASK} {RETRIED}\n" in _show(folder)
    named = tmp_path / "several"
    for name in ("one", "two"):
        shutil.copytree(run, named / "arms" / name)
    told = _show(named, code=2)
    assert f"holds 2 runs. Name one of them:\n  {named}/arms/one\n" in told
    assert _names(_show(f"{named}/arms/two")) == _names(_show(run))


def test_flips_need_a_reference_with_scores_per_sample(run):
    told = _show(f"{run} --flips", code=2)
    assert f"has no reference with scores per sample for {TASK}" in told
    assert "serve-eval show RUN --against OTHER" in told


def test_flips_from_the_reference_are_listed_with_its_scores(run, other, tmp_path):
    refs = tmp_path / "references"
    whole = tmp_path / "whole"
    _run(whole, Answers(whole=True))
    serve_eval(f"references register {whole} --references-dir {refs}", exits=0)
    shown = tmp_path / "shown"
    _run(shown, Answers(whole=True, b=True), "--references-dir", str(refs), judged=True)
    told = _show(f"{shown} --flips")
    counted = f"from the reference's first run: 1 scores fell, 0 rose ({N} samples)"
    assert counted in _show(f"{shown} --flips --brief")
    assert told.startswith(f" WRONG   {TASK} {RETRIED}  ")
    assert re.search(r"^ score +0, .*, reference 1$", told, re.MULTILINE)
    assert _json(shown, "--flips")["samples"][0]["reference"] == [1.0]
    assert f"none of {N} samples matches" in _show(f"{shown} --flips --grep 'no such text'")


def test_prompts_are_kept_private_and_once(run):
    file = run / f"prompts/{TASK}.jsonl"
    assert file.stat().st_mode & 0o777 == 0o600
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["id"] for line in lines] == [sample.id for sample in SAMPLES]


def test_of_a_case_the_expected_answer_is_shown_and_not_its_scorer(tmp_path):
    cases = tmp_path / "capitals.yaml"
    cases.write_text(
        "capitals:\n  cases:\n    - {case: france, input: {prompt: 'The capital of France?'},"
        " expected: {answer: Paris}}\n"
    )
    with ScriptedServer(answer("Lyon"), routes={"/v1/models": models("m")}).serve_in_thread() as at:
        asked = f"--cases {cases} --base-url {at} --model m --no-reference"
        serve_eval(f"run -o {tmp_path}/run {asked}", exits=3)
    listed = _show(f"{tmp_path}/run")
    assert re.search(r'^ wrong +france#\w+ +\{"answer":"Paris"\} +lyon$', listed, re.MULTILINE)
    [command] = re.findall(r"serve-eval show .*(?<=/run) '(france#\w+)'$", listed, re.MULTILINE)
    shown = _show(f"{tmp_path}/run", command)
    assert re.search(r'^ expected +\{"answer":"Paris"\}$', shown, re.MULTILINE)
    assert "scorer" not in listed + shown


def test_without_prompts_the_rest_is_shown(tmp_path):
    _run(tmp_path / "out", Answers(), "--set", "no_prompts=true")
    assert (tmp_path / f"out/prompts/{TASK}.jsonl").read_bytes() == b""
    text = _show(f"{tmp_path}/out {RETRIED}")
    assert " prompt   not kept in this run folder" in text
    assert " extract  " in text


def test_a_folder_of_an_older_version_is_resumed_and_shown(run, tmp_path):
    out = tmp_path / "old"
    shutil.copytree(run, out)
    shutil.rmtree(out / "prompts")
    assert " prompt   not kept" in _show(f"{out} {WRONG}")
    assert _names(_show(out)) == _names(_show(run))


def test_shards_merged_and_rescored_runs_keep_their_prompts(tmp_path):
    shards = [tmp_path / "1", tmp_path / "2"]
    for number, folder in enumerate(shards, 1):
        with ScriptedServer(Answers(), routes={"/v1/models": models("m")}).serve_in_thread() as url:
            flags = ["--base-url", url, "--model", "m", "--tasks", TASK, "--no-reference"]
            flags += ["--set", f"{TASK}.num_samples={N}", "--shard", f"{number}/2"]
            serve_eval(f"run -o {folder}", *flags, exits=0)
    merged, rescored = tmp_path / "merged", tmp_path / "rescored"
    serve_eval(f"runs merge -o {merged}", *shards, exits=3)
    serve_eval(f"judge --rescore {merged} -o {rescored}", exits=0)
    for folder in (merged, rescored):
        told = _json(folder, "--all", *(sample.id for sample in SAMPLES))["samples"]
        prompts = {one["id"]: one["prompt"] for one in told}
        assert prompts == {sample.id: sample.prompt for sample in SAMPLES}


def test_a_resumed_run_keeps_its_prompts(run, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(run, out)
    before = (out / f"prompts/{TASK}.jsonl").stat().st_mtime_ns
    with ScriptedServer(Answers(), routes={"/v1/models": models("m")}).serve_in_thread() as url:
        serve_eval(f"run --resume {out} --base-url {url}", exits=3)
    assert (out / f"prompts/{TASK}.jsonl").stat().st_mtime_ns == before


def test_latest_is_the_last_run_of_outputs(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    assert "latest: outputs/ has no run" in _show("latest", code=2)
    _run(Path("outputs/first"), Answers())
    _run(Path("outputs/second"), Answers())
    assert Path("outputs/latest").readlink() == Path("second")
    listed = _show("latest")
    assert f"serve-eval show outputs/second {FAILED}\n" in listed
    assert _show() == listed
    serve_eval("judge outputs/first", exits=3)  # it asks nothing
    assert Path("outputs/latest").readlink() == Path("second")
    for command in ("judge", "diagnose", "judge --rescore"):
        assert serve_eval(f"{command} latest").returncode in (0, 3)
        of_all = serve_eval(f"{command} outputs")
        assert of_all.returncode in (0, 3)
        assert "the latest run: outputs/second" in of_all.stderr
    assert FAILED in _show(FAILED)  # no folder has this name, so it is an id of the latest run
    assert "no such folder" in _show("nowhere/run", code=2)
    shutil.copytree(run, "latest")
    assert f"serve-eval show latest {FAILED}\n" in _show("latest")
