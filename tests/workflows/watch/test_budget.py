"""Test watches through the command line: their plans, budget, hours and exit codes."""

import json
import re
import signal
import subprocess
import sys
from datetime import timedelta
from xml.etree import ElementTree

import pytest
import yaml

from serve_eval.checks.run import choose_checks
from serve_eval.errors import PlanError
from serve_eval.plan import resolve
from serve_eval.stats.betting import floor
from serve_eval.workflows.watch import bets
from serve_eval.workflows.watch.asking import (
    budget,
    checks_of,
    describe_budget,
    least_fall,
    smoke_tokens,
)
from serve_eval.workflows.watch.bets import ACCURACY, FLOOR_ALPHA
from serve_eval.workflows.watch.document import describe_unjudged, say_gap
from serve_eval.workflows.watch.job import PROMPTS, of_plan
from tests.cli.command import environment, serve_eval
from tests.json_files import read_json
from tests.workflows.verify.model_server import ModelServer
from tests.workflows.watch.changing_endpoint import DAY, NIGHT, START, Endpoint, Watch, by_day

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


def test_it_says_beforehand_what_it_costs_and_sends_nothing(tmp_path):
    done = serve_eval(f"watch 127.0.0.1:9 --budget-tokens 16000 --dry-run -o {tmp_path}/o", exits=0)
    assert re.search(
        r"^each round asks \d+ questions .*, with a smoke test, and takes at most 16000 tokens$",
        done.stdout,
        re.MULTILINE,
    )
    assert "per day: 144 rounds, at most 2,304,000 tokens" in done.stdout
    assert "the baseline asks 200 prompts 8 times" in done.stdout
    assert not (tmp_path / "o").exists()
    done = serve_eval("watch 127.0.0.1:9 --budget-tokens 8000 --dry-run")
    assert "a smoke test every 2 rounds" in done.stdout
    done = serve_eval("watch 127.0.0.1:9 --budget-tokens 4000 --every 1h --dry-run")
    assert "no smoke test" in done.stdout
    assert "is left out, since it takes up to 5766 tokens: give --budget-tokens 5766" in done.stdout


def test_rounds_alarm_and_restart(tmp_path):
    endpoint = Endpoint()
    with endpoint.server.serve_in_thread() as url:
        command = ("watch", url, *SMALL, "-o", tmp_path / "o")
        done = serve_eval(*command, "--rounds", "5", "--metrics-port", "0", exits=0)
        assert (
            len(re.findall(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  round \d", done.stdout, re.MULTILINE))
            == 5
        )
        assert re.search(r"^metrics: http://127.0.0.1:\d+/metrics$", done.stderr, re.MULTILINE)
        endpoint.wrong = 2
        hook = url.removesuffix("/v1") + "/hook"
        done = serve_eval(
            *command,
            "--rounds",
            "20",
            OPENAI_API_KEY="sesame-12345",
            SERVE_EVAL_WEBHOOK=hook,
            exits=1,
            prints="ALARM accuracy: accuracy is below ",
        )
        assert "\n ALARM   accuracy\n why      accuracy is below " in done.stdout
        assert [alarm["kind"] for alarm in endpoint.alarms] == ["accuracy"]
        assert "ALARM" in (tmp_path / "o/report.html").read_text()
        [tests] = ElementTree.parse(tmp_path / "o/junit.xml").getroot()
        assert int(tests.attrib["failures"]) >= 1
        assert "ALARM" in (tmp_path / "o/summary.md").read_text()
        junit = tmp_path / "watch.xml"
        done = serve_eval(*command, "--rounds", "1", "--json", "--junit", junit, exits=1)
        told = json.loads(done.stdout)
        assert (told["outcome"], told["exit_code"]) == ("ALARM", 1)
        assert told["result"]["alarms"][0]["kind"] == "accuracy"
        assert "is still active" in done.stderr
        assert "failure" in junit.read_text()
        done = serve_eval(*command, "--rounds", "1", "-q")
        assert (done.returncode, done.stdout) == (1, " ALARM   accuracy\n")
        serve_eval(*command, "--rounds", "1", exits=1, prints="--forget-alarms")
        files = "".join(file.read_text() for file in (tmp_path / "o").iterdir())
        assert "sesame" not in files
        assert read_json(tmp_path / "o/state.json")["alarms"][0]["kind"] == "accuracy"


def test_the_means_of_rounds_can_be_bet_on(tmp_path):
    endpoint = Endpoint()
    with endpoint.server.serve_in_thread() as url:
        command = ("watch", url, *SMALL, "--set", "watch.round_means=true", "-o", tmp_path / "o")
        serve_eval(*command, "--rounds", "6", exits=0)
        endpoint.wrong = 1
        serve_eval(*command, "--rounds", "30", exits=1, prints="ALARM accuracy")
        rules = read_json(tmp_path / "o/state.json")["bound"]["rules"]
        assert rules["round_means"] is True


def test_own_cases_are_watched(tmp_path):
    file = tmp_path / "cases.yaml"
    cases = [
        f"  - {{case: s{n}, input: {{prompt: 'What is {n} + {n}?'}}, expected: '{2 * n}'}}"
        for n in range(20, 45)
    ]
    file.write_text("\n".join(["sums:", "  scorer: exact", "  cases:", *cases]) + "\n")
    with Endpoint().server.serve_in_thread() as url:
        more = f"--cases {file} --budget-tokens 12000 --rounds 8 -o {tmp_path}/o"
        serve_eval(f"watch {url} {more}", *SMALL, exits=0, prints="baseline complete: 100.0%")


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
def test_what_cannot_be_is_said_before_anything_is_sent(flags, said):
    serve_eval("watch 127.0.0.1:9 --dry-run", *flags, exits=2, tells=said)


def test_nobody_listening_at_the_start_is_an_error(tmp_path):
    serve_eval(f"watch 127.0.0.1:9 -o {tmp_path}/o", *SMALL, exits=4, tells="error: ")


def test_a_signal_ends_it_cleanly(tmp_path):
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
            assert "round 1;" in process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            _, told = process.communicate(timeout=30)
    assert process.returncode == 0, told
    assert "The same command resumes the watch in" in told
    assert read_json(tmp_path / "o/state.json")["rounds"] == 1


def test_probes_of_a_reference_cost_tokens_and_need_no_baseline(tmp_path):
    """The cost is printed before anything is sent, and wrong options are refused."""
    model = ModelServer(name="m", fingerprint="f")
    file = tmp_path / "reference.json"
    with model.server.serve_in_thread() as url:
        done = serve_eval(
            f"verify {url} --model m --register {file} --floor 0.08 --probes 40 -o {tmp_path}/v",
            exits=0,
        )
    command = f"watch 127.0.0.1:9 --verify-reference {file} --dry-run"
    done = serve_eval(command, exits=0)
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
    few = serve_eval(f"{command} --set watch.probes_per_round=4").stdout
    assert "each round asks 4 probes" in few
    assert "once in 10 rounds" in few
    assert "probes" not in serve_eval("watch 127.0.0.1:9 --dry-run").stdout
    for more, told in (
        (("--budget-tokens", "6000"), " and the probes, which take up to"),
        (("--set", "watch.probes_per_round=0"), "watch.probes_per_round must be 1 or more"),
    ):
        done = serve_eval(command, *more, exits=2, tells=told)
    done = serve_eval(
        "watch 127.0.0.1:9 --set watch.probes_per_round=4 --dry-run",
        exits=2,
        tells="needs --verify-reference",
    )
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
        done = serve_eval(
            f"watch {url} --rounds 3 -o {tmp_path}/o",
            *more,
            exits=1,
            prints="ALARM numerics: the endpoint is another model, precision or cache",
            tells="They need no baseline",
        )
    assert len(re.findall(r"^\d{4}-.*  round \d", done.stdout, re.MULTILINE)) == 1


JUDGED = {
    "judge": {
        "judges": [{"name": "j", "base_url": "http://127.0.0.1:9/v1", "model": "j"}],
        "metrics": ["correctness"],
    }
}


def _plan(**settings):
    return resolve.resolve({}, {"model": "m", **settings}, {}).plan


def _cases(folder, scorer):
    cases = [{"case": "a", "input": {"prompt": "Hello?"}, "expected": "Hi"}]
    (folder / "cases.yaml").write_text(yaml.safe_dump({"c": {"scorer": scorer, "cases": cases}}))
    return str(folder / "cases.yaml")


@pytest.mark.parametrize(
    ("tasks", "why"),
    [
        (["word_problems", "passkey_short"], "a watch takes one task, not 2"),
        (["word_problems_perplexity"], r"scores .* have no lower or no upper limit"),
    ],
)
def test_what_cannot_be_watched_says_why(tasks, why):
    with pytest.raises(PlanError, match=why):
        of_plan(_plan(tasks=tasks))


def test_answers_that_need_a_judge_cannot_be_watched_and_others_can(tmp_path):
    assert len(of_plan(_plan(cases=[_cases(tmp_path, "exact")])).samples) == 1
    with pytest.raises(PlanError, match="its answers are executed or need a judge"):
        of_plan(_plan(cases=[_cases(tmp_path, JUDGED)]))


@pytest.mark.parametrize(("limit", "count"), [(None, PROMPTS), (7, 7)])
def test_a_pool_has_the_limit_of_its_plan(limit, count):
    more = {} if limit is None else {"limit": limit}
    pool = of_plan(_plan(tasks=["word_problems"], **more))
    assert len(pool.samples) == len(pool.prompt_tokens()) == count


def _budget(tokens, smoke=4000):
    return budget(tokens, smoke=smoke, prompt_tokens=[30, 72], answer_tokens=128)


@pytest.mark.parametrize(
    ("tokens", "every", "with_smoke", "without"),
    [(16_000, 1, 60, 80), (8000, 1, 20, 40), (6000, 2, 10, 30), (3000, 0, 15, 15)],
)
def test_questions_get_what_the_smoke_test_leaves(tokens, every, with_smoke, without):
    one = _budget(tokens)
    assert (one.smoke_every, one.questions(smoke=True), one.questions(smoke=False)) == (
        every,
        with_smoke,
        without,
    )


def test_too_few_tokens_are_refused_with_how_many_it_takes():
    with pytest.raises(PlanError) as caught:
        _budget(1999)
    assert "Give at least 2000" in caught.value.hint


def _describe(tokens, **more):
    usual = {"every_s": 600.0, "prompts": 200, "passes": 8, "tolerance": 0.01}
    return list(describe_budget(_budget(tokens), **{**usual, **more}))


def test_what_it_costs_is_told():
    assert _describe(6000) == [
        (
            "each round asks 10 or 30 questions (at most 200 tokens each), with a smoke"
            " test every 2 rounds, and takes at most 6000 tokens"
        ),
        "per day: 144 rounds, at most 864,000 tokens",
        (
            "the baseline asks 200 prompts 8 times: about 81 rounds, 13.5 hours, at most"
            " 484,000 tokens. Until it is complete, no alarm about accuracy or usable"
            " answers is possible"
        ),
        (
            "--set watch.passes=4 gives a shorter baseline with the same error rate: about 41"
            " rounds, 6.8 hours, at most 244,000 tokens. At best, it notices falls of more "
            "than 2.4% of the answers; the longer one notices falls of more than 1.6%"
        ),
    ]
    assert "about 81 rounds, 13.5 minutes, " in _describe(6000, every_s=10.0)[2]
    assert "about 81 rounds, 49 seconds, " in _describe(6000, every_s=0.6)[2]


@pytest.mark.parametrize("more", [{"passes": 4}, {"passes": 8, "learnt": False}])
def test_a_baseline_that_is_short_or_not_learnt_names_no_shorter_one(more):
    assert _describe(6000, **more)[-1].startswith("the baseline asks ")


def test_no_round_asks_a_prompt_twice():
    first, _, last, _ = _describe(16_000, prompts=20)
    assert first.startswith("each round asks 20 questions")
    assert "about 9 rounds" in last


@pytest.mark.parametrize(("prompts", "passes"), [(200, 8), (200, 4), (100, 4)])
def test_the_least_fall_is_that_of_prompts_that_answer_as_before(prompts, passes):
    """Nine of ten are always right, so that the distance of the floor is the least possible."""
    scores = [[1.0] * (prompts * 9 // 10) + [0.0] * (prompts // 10)] * passes
    gap = 0.9 - floor(scores, FLOOR_ALPHA[ACCURACY])
    told = least_fall(prompts, passes, 0.01)
    assert told == pytest.approx(0.01 + gap, abs=0.002)


def test_a_watch_sends_no_bursts():
    names = {check.name for check in checks_of(choose_checks("quick"))}
    assert {"chat", "stream_chat", "openai_chat"} <= names
    assert not names & {"concurrency", "questions", "cancel"}
    assert smoke_tokens(checks_of(choose_checks("quick"))) < 8000


def test_a_baseline_of_one_night_accuses_the_day_and_says_that_it_may_not():
    watch = Watch(NIGHT, 1)
    assert watch.learn(by_day(0.1)) == 24  # four hours
    said = say_gap(watch.state, watch.rules)
    assert said == (
        "the baseline has no answer from 06:00 to 24:00 UTC: a fall at these hours may be the usual"
        " course of a day, and is no proof of a fault (--set watch.baseline_hours=24 covers a day)"
    )
    (alarm,) = watch.play(by_day(0.5), 144)
    assert alarm.kind == ACCURACY
    assert "; the baseline has no answer from 09:00 to 12:00 UTC, so this may be" in alarm.told


def test_a_fault_at_an_hour_that_the_baseline_knows_is_an_alarm_without_doubt():
    watch = Watch(NIGHT, 2, START + timedelta(hours=20))
    watch.learn(by_day(0.0))
    watch.at = START + timedelta(days=1, hours=21)
    (alarm,) = watch.play(lambda at: 0.33, 12)
    assert alarm.kind == ACCURACY
    assert "usual course" not in alarm.told


def test_a_baseline_goes_on_until_it_covers_the_hours_in_whole_passes():
    watch = Watch(DAY, 3)
    watch.play(by_day(0.1), 100)
    assert watch.state.accuracy is None
    assert describe_unjudged(watch.state, watch.rules) == (
        "Accuracy was not judged: the baseline does not cover 24 hours yet. Resume with the same"
        " command."
    )
    assert watch.learn(by_day(0.1)) >= 145
    assert len({len(scores) for scores in watch.state.answers}) == 1
    assert say_gap(watch.state, watch.rules) is None


@pytest.mark.parametrize("seed", range(8))
def test_a_daily_loss_that_the_baseline_covers_is_no_alarm(seed):
    watch = Watch(DAY, seed)
    watch.learn(by_day(0.1))
    assert not watch.play(by_day(0.1), 7 * 144)


def test_and_a_loss_beyond_it_is_one():
    watch = Watch(DAY, 1)
    watch.learn(by_day(0.1))
    found = watch.play(lambda at: 0.55, 2 * 144)
    assert [alarm.kind for alarm in found] == [ACCURACY]


def test_the_floor_is_that_of_the_worst_block():
    # 800 answers in the worst block, all of them wrong in one answer of ten.
    answers = [[1.0] * 10 for _ in range(400)]
    blocks = [[0, 1, 2, 3, 4, 5, 6, 7, 0, 3] for _ in range(400)]
    for i in range(0, 400, 10):
        answers[i][3] = answers[i][9] = 0.0
    floor = bets.find_worst_floor(answers, blocks, bets.FLOOR_ALPHA[ACCURACY])
    assert 0.80 < floor < 0.90
    alike = [[1.0] * 10 for _ in range(400)]
    assert bets.find_worst_floor(alike, blocks, bets.FLOOR_ALPHA[ACCURACY]) > 0.97


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        ([0, 1, 7], "00:00 to 06:00 and 21:00 to 24:00 UTC"),
        ([3], "09:00 to 12:00 UTC"),
        (list(range(8)), "00:00 to 24:00 UTC"),
        ([0, 2, 4], "00:00 to 03:00, 06:00 to 09:00 and 12:00 to 15:00 UTC"),
    ],
)
def test_blocks_are_named_by_their_hours(blocks, words):
    assert bets.describe_blocks(blocks) == words


def test_times_of_other_zones_are_in_utc():
    assert bets.find_block("2026-01-01T01:00:00+02:00") == 7
