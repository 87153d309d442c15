"""Test that no output of any command contains a secret that an endpoint echoed, in any encoding."""

import pytest

from tests.secrets.search import ENOUGH, Search, glance, search

OUTPUTS = {
    *("stdout", "stderr", "names of files", "list of processes"),
    *(
        "report.html",
        "report.json",
        "plan.json",
        "environment.json",
        "samples/*.jsonl",
        "scores/*.jsonl",
    ),
    *(
        "smoke.xml",
        "compare.json",
        "comparison.json",
        "invariants.json",
        "attribution.json",
        "suite_report.json",
    ),
    *(
        "holder.log",
        "curl.sh",
        "actual.json",
        "expected.json",
        "versions.json",
        "README.md",
        "state.json",
        "alarm",
        "simulated.log",
    ),
}
CODES = {
    "run": 3,
    "run, a server ends": 4,
    "suite, a server ends": 4,
    "capsule run": 0,
    "compare": 0,
    "smoke": 1,
    "watch": 1,
    "attribute": 0,
    "references register": 0,
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return search(tmp_path_factory.mktemp("search"))


def test_no_output_of_the_commands_of_every_day_has_a_secret(tmp_path):
    found = glance(tmp_path).found
    assert len(found) > 20
    assert {place: longest for place, longest in found.items() if longest >= ENOUGH} == {}


@pytest.mark.slow
def test_no_output_has_a_secret_or_half_of_one(found):
    assert {place: longest for place, longest in found.found.items() if longest >= ENOUGH} == {}


@pytest.mark.slow
def test_the_search_saw_every_kind_of_output_of_commands_that_came_to_their_end(
    found,
):
    assert {output for _, output in found.found} >= OUTPUTS
    assert {name: found.codes[name] for name in CODES} == CODES
    assert 2 not in found.codes.values()


def test_the_log_of_a_run_that_was_killed_is_told_without_its_key(tmp_path):
    from tests.cli.command import serve_eval
    from tests.secrets.echoing import KEY

    run = (
        "run",
        "--launcher",
        "simulated",
        "-m",
        "m",
        "--tasks",
        "word_problems",
        "--limit",
        "3",
        "--no-reference",
    )
    found = Search(tmp_path)
    (tmp_path / "home").mkdir()
    found.command("run", *run, "-o", tmp_path / "out")
    (tmp_path / "out/report.json").unlink()
    (tmp_path / "out/logs/trtllm.log").write_text(
        f"ERROR: RuntimeError: {{'Authorization': 'Bearer {KEY}'}}\n"
    )
    told = serve_eval("diagnose", tmp_path / "out", OPENAI_API_KEY=KEY).stdout
    assert "RuntimeError: {'Authorization': 'Bearer ***'}" in told


def test_the_search_finds_what_is_there(tmp_path):
    from tests.secrets.echoing import KEY, WRITINGS, left

    for how, written in WRITINGS.items():
        assert left(f"a {written(KEY)} b", KEY) >= ENOUGH, how
    found = Search(tmp_path)
    (tmp_path / "log").write_text(f"{{'key': '{KEY.upper()[1:]}'}}")
    found.say("a command", 0, "", "")
    assert found.found["a command", "log"] == len(KEY) - 1
