"""`serve-eval watch`: its cost, rounds, alarms, exit codes and end."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.command import environment, serve_eval
from tests.workflows.verify.model_server import ModelServer
from tests.workflows.watch.changing_endpoint import Endpoint

SMALL = (
    "--every",
    "0",
    "--limit",
    "40",
    "--set",
    "watch.passes=2",
    "--budget-tokens",
    "6000",
    "--set",
    "watch.smoke=false",
)


def test_it_says_beforehand_what_it_costs_and_sends_nothing(tmp_path: Path) -> None:
    done = serve_eval(
        "watch", "127.0.0.1:9", "--budget-tokens", "16000", "--dry-run", "-o", tmp_path / "o"
    )
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"^each round asks \d+ questions .*, with a smoke test, and takes at most 16000 tokens$",
        done.stdout,
        re.MULTILINE,
    )
    assert "per day: 144 rounds, at most 2,304,000 tokens" in done.stdout
    assert "the baseline asks 200 prompts 8 times" in done.stdout
    assert not (tmp_path / "o").exists()
    done = serve_eval("watch", "127.0.0.1:9", "--budget-tokens", "8000", "--dry-run")
    assert "a smoke test every 2 rounds" in done.stdout
    done = serve_eval(
        "watch", "127.0.0.1:9", "--budget-tokens", "4000", "--every", "1h", "--dry-run"
    )
    assert "no smoke test" in done.stdout
    assert "is left out, since it takes up to 5766 tokens: give --budget-tokens 5766" in done.stdout


def test_rounds_alarm_and_restart(tmp_path: Path) -> None:
    endpoint = Endpoint()
    with endpoint.server.serve_in_thread() as url:
        command = ("watch", url, *SMALL, "-o", tmp_path / "o")
        done = serve_eval(*command, "--rounds", "5", "--metrics-port", "0")
        assert done.returncode == 0, done.stderr
        assert (
            len(re.findall(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  round \d", done.stdout, re.MULTILINE))
            == 5
        )
        assert re.search(r"^metrics: http://127.0.0.1:\d+/metrics$", done.stderr, re.MULTILINE)
        endpoint.wrong = 2
        hook = url.removesuffix("/v1") + "/hook"
        done = serve_eval(
            *command, "--rounds", "20", OPENAI_API_KEY="sesame-12345", SERVE_EVAL_WEBHOOK=hook
        )
        assert done.returncode == 1, done.stdout
        assert "ALARM accuracy: accuracy is below " in done.stdout
        assert "\n ALARM   accuracy\n why      accuracy is below " in done.stdout
        assert [alarm["kind"] for alarm in endpoint.alarms] == ["accuracy"]
        assert "ALARM" in (tmp_path / "o/report.html").read_text()
        [tests] = ElementTree.parse(tmp_path / "o/junit.xml").getroot()
        assert int(tests.attrib["failures"]) >= 1
        assert "ALARM" in (tmp_path / "o/summary.md").read_text()
        junit = tmp_path / "watch.xml"
        done = serve_eval(*command, "--rounds", "1", "--json", "--junit", junit)
        assert done.returncode == 1
        told = json.loads(done.stdout)
        assert (told["outcome"], told["exit_code"]) == ("ALARM", 1)
        assert told["result"]["alarms"][0]["kind"] == "accuracy"
        assert "is still active" in done.stderr
        assert "failure" in junit.read_text()
        done = serve_eval(*command, "--rounds", "1", "-q")
        assert (done.returncode, done.stdout) == (1, " ALARM   accuracy\n")
        done = serve_eval(*command, "--rounds", "1")
        assert done.returncode == 1
        assert "--forget-alarms" in done.stdout
        files = "".join(file.read_text() for file in (tmp_path / "o").iterdir())
        assert "sesame" not in files
        assert (
            json.loads((tmp_path / "o/state.json").read_text())["alarms"][0]["kind"] == "accuracy"
        )


def test_the_means_of_rounds_can_be_bet_on(tmp_path: Path) -> None:
    endpoint = Endpoint()
    with endpoint.server.serve_in_thread() as url:
        command = ("watch", url, *SMALL, "--set", "watch.round_means=true", "-o", tmp_path / "o")
        done = serve_eval(*command, "--rounds", "6")
        assert done.returncode == 0, done.stderr
        endpoint.wrong = 1
        done = serve_eval(*command, "--rounds", "30")
        assert done.returncode == 1, done.stdout
        assert "ALARM accuracy" in done.stdout
        rules = json.loads((tmp_path / "o/state.json").read_text())["bound"]["rules"]
        assert rules["round_means"] is True


def test_own_cases_are_watched(tmp_path: Path) -> None:
    file = tmp_path / "cases.yaml"
    cases = [
        f"  - {{case: s{n}, input: {{prompt: 'What is {n} + {n}?'}}, expected: '{2 * n}'}}"
        for n in range(20, 45)
    ]
    file.write_text("\n".join(["sums:", "  scorer: exact", "  cases:", *cases]) + "\n")
    with Endpoint().server.serve_in_thread() as url:
        more = ("--cases", file, "--budget-tokens", "12000", "--rounds", "8", "-o", tmp_path / "o")
        done = serve_eval("watch", url, *SMALL, *more)
    assert done.returncode == 0, done.stderr
    assert "baseline complete: 100.0%" in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--every", "soon"], "--every: must be a time"),
        (["--every", "10"], "--every: must be a time"),
        (["--set", "watch.passes=1"], "watch.passes must be 2 or more"),
        (["--set", "watch.passes=0"], "watch.passes must be 2 or more"),
        (["--set", "watch.timeout=.nan"], "watch.timeout must be above 0"),
        (["--tolerance", "0"], "--tolerance must be above 0"),
        (["--reference-value", "101"], "--reference-value must be from 0 to 100"),
        (["--on-alarm", "cry"], "--on-alarm: must be exit or go-on"),
        (["--limit", "5"], "--limit must be 20 or more"),
        (["--budget-tokens", "500"], "500 tokens are enough for 2 questions"),
        (["--webhook", "ftp://x"], "--webhook: expected http"),
        (["--webhook", "https://x/${NOWHERE}"], "the environment has no NOWHERE"),
        (["--webhook", ""], "--webhook: expected http"),
        (["--on-alarm-command", " "], "the command is empty"),
        (["--set", "gsm8k.max_tokens=9"], "--set: the generated sums and copies have no options"),
        (["--on-alarm-command", "'"], "--on-alarm-command: No closing quotation"),
        (["--tasks", "word_problems_perplexity"], "cannot be watched"),
        (["--rounds", "0"], "--rounds must be above 0"),
        (["--api-key", "x"], "a key on the command line"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_sent(flags: list[str], said: str) -> None:
    done = serve_eval("watch", "127.0.0.1:9", *flags, "--dry-run")
    assert done.returncode == 2
    assert said in done.stderr


def test_nobody_listening_at_the_start_is_an_error(tmp_path: Path) -> None:
    done = serve_eval("watch", "127.0.0.1:9", *SMALL, "-o", tmp_path / "o")
    assert done.returncode == 4
    assert "error: " in done.stderr


def test_a_signal_ends_it_cleanly(tmp_path: Path) -> None:
    with Endpoint().server.serve_in_thread() as url:
        command = [
            sys.executable,
            "-m",
            "serve_eval",
            "watch",
            url,
            *SMALL,
            "--every",
            "1h",
            "-o",
            str(tmp_path / "o"),
        ]
        with subprocess.Popen(
            command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert "round 1;" in process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            _, told = process.communicate(timeout=30)
    assert process.returncode == 0, told
    assert "The same command resumes the watch in" in told
    assert json.loads((tmp_path / "o/state.json").read_text())["rounds"] == 1


def test_probes_of_a_reference_cost_tokens_and_need_no_baseline(tmp_path: Path) -> None:
    """The cost is printed before anything is sent, and wrong options are refused."""
    model = ModelServer(name="m", fingerprint="f")
    file = tmp_path / "reference.json"
    with model.server.serve_in_thread() as url:
        done = serve_eval(
            *("verify", url, "--model", "m", "--register", file, "--floor", "0.08"),
            *("--probes", "40", "-o", tmp_path / "v"),
        )
        assert done.returncode == 0, done.stderr
    command = ("watch", "127.0.0.1:9", "--verify-reference", file, "--dry-run")
    done = serve_eval(*command)
    assert done.returncode == 0, done.stderr
    cost = re.search(
        r"^each round asks 20 probes with at most ([\d,]+) of these tokens, ([\d,]+) per day;"
        r" all 40 are asked once in 2 rounds\. They need no baseline: an alarm that the model is"
        r" another one is possible from the first round on$",
        done.stdout,
        re.MULTILINE,
    )
    assert cost is not None, done.stdout
    tokens, day = (int(number.replace(",", "")) for number in cost.groups())
    assert day == 144 * tokens
    assert 20 * 130 < tokens < 20 * 500
    assert "at most 16000 tokens" in done.stdout
    few = serve_eval(*command, "--set", "watch.probes_per_round=4").stdout
    assert "each round asks 4 probes" in few
    assert "once in 10 rounds" in few
    assert "probes" not in serve_eval("watch", "127.0.0.1:9", "--dry-run").stdout
    for more, told in (
        (("--budget-tokens", "6000"), " and the probes, which take up to"),
        (("--set", "watch.probes_per_round=0"), "watch.probes_per_round must be 1 or more"),
    ):
        done = serve_eval(*command, *more)
        assert (done.returncode, told in done.stderr) == (2, True), done.stderr
    done = serve_eval("watch", "127.0.0.1:9", "--set", "watch.probes_per_round=4", "--dry-run")
    assert (done.returncode, "needs --verify-reference" in done.stderr) == (2, True)
    endpoint = Endpoint(model=ModelServer(name="m", numerics=0.4))
    with endpoint.server.serve_in_thread() as url:
        more = (
            "--every",
            "0",
            "--limit",
            "40",
            "--set",
            "watch.smoke=false",
            "--verify-reference",
            file,
        )
        done = serve_eval("watch", url, *more, "--rounds", "3", "-o", tmp_path / "o")
    assert done.returncode == 1
    assert "ALARM numerics: the endpoint is another model, precision or cache" in done.stdout
    assert "They need no baseline" in done.stderr
    assert len(re.findall(r"^\d{4}-.*  round \d", done.stdout, re.MULTILINE)) == 1
