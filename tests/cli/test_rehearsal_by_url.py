"""Test that each command that takes a URL recognises the stand-in of a rehearsal there.

A row per command: a stand-in is started once with `serve --rehearse`, and each command is given
its address only. Nothing that it says may be taken for a finding about a model.
"""

import pytest
import yaml

from serve_eval.schema import REHEARSED
from tests.cli.command import serve_eval
from tests.json_files import read_json

pytestmark = pytest.mark.slow

MODEL = ("--model", "org/model")
FEW = (*MODEL, "-t", "word_problems", "--limit", "20")
JUDGED = {"PASS", "FAIL", "IDENTICAL", "ANOTHER", "BROKEN", "NO ALARM", "no leak found"}
"""Words that say something about a model. Checks of requests keep theirs."""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Return variables that keep locks and states apart, on a machine without a visible GPU."""
    folder = tmp_path_factory.mktemp("home")
    places = {name: str(folder) for name in ("TMPDIR", "XDG_CACHE_HOME", "XDG_STATE_HOME")}
    return {**places, "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(scope="module")
def urls(tmp_path_factory, home):
    """Yield the addresses of two stand-ins."""
    night, found, ids = tmp_path_factory.mktemp("night"), [], []
    try:
        for name, tp in (("old", 1), ("new", 2)):
            launcher = {"name": "trtllm", "tp": tp}
            plan = {"model": "org/model", "launcher": launcher, "tasks": ["word_problems"]}
            (night / f"{name}.yaml").write_text(yaml.safe_dump(plan))
            words = f"serve {night}/{name}.yaml --rehearse --detach -o {night}/{name}"
            served = serve_eval(words, **home, exits=0)
            told = dict(line.split(":", 1) for line in served.stdout.splitlines())
            found.append(told["base URL"].strip())
            ids.append(told["id"].strip())
        yield found
    finally:
        for one in ids:
            serve_eval(f"serve --stop {one}", **home, exits=0)


ROWS = {
    "run": (("run", "--base-url", "A", *FEW, "--no-reference"), "report.json"),
    "compare": (("compare", "A", "B", *FEW, "--self", "0"), "comparison.json"),
    "load": (("check", "load", "A", *FEW, "--concurrency", "1,4"), "load.json"),
    "invariants": (
        ("check", "invariants", "A", *FEW, "--set", "invariants.chunk_tokens=0"),
        "invariants.json",
    ),
    "canaries": (
        ("check", "invariants", "A", *MODEL, "--canaries", "--limit", "20"),
        "canaries.json",
    ),
    "tools": (("check", "tools", "A", *MODEL, "--limit", "4"), "tools.json"),
    "smoke": (("smoke", "A", *MODEL), "smoke.json"),
    "verify": (("verify", "A", "B", *MODEL, "--floor", "0.1"), "verification.json"),
    "watch": (("watch", "A", "--every", "0", "--rounds", "2"), "state.json"),
}
"""The words of each command, with A and B in place of addresses, and its file."""


@pytest.mark.parametrize("name", ROWS)
def test_a_command_with_the_address_of_a_stand_in_says_so(name, urls, home, tmp_path):
    words, file = ROWS[name]
    at = {"A": urls[0], "B": urls[1]}
    ended = serve_eval(
        *(at.get(word, word) for word in words),
        "-o",
        tmp_path / "out",
        **home,
        exits=0,
        prints=REHEARSED,
    )
    told = (
        set() if name in ("smoke", "watch") else {word for word in JUDGED if word in ended.stdout}
    )
    assert not told, ended.stdout
    assert read_json(tmp_path / "out" / file)["rehearsal"] is True
    page = tmp_path / "out" / "report.html"
    if page.exists():
        assert '<strong class="badge">REHEARSAL</strong>' in page.read_text()


def test_a_suite_of_a_stand_in_by_its_address_says_so(urls, home, tmp_path):
    plan = {"model": "org/model", "base_url": urls[0], "no_reference": True, "limit": 8}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump({**plan, "tasks": ["word_problems"]}))
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump({"plans": ["plan.yaml"]}))
    ended = serve_eval(f"run {tmp_path}/suite.yaml -o {tmp_path}/out", **home)
    assert (ended.returncode, ended.stdout.splitlines()[0]) == (0, REHEARSED), ended.stderr


def test_no_reference_is_taken_from_the_address_of_a_stand_in(urls, home, tmp_path):
    out = tmp_path / "take"
    words = (*MODEL, "-t", "word_problems", "--references-dir", tmp_path / "references")
    serve_eval(
        f"references take {urls[0]} -o {out}", *words, **home, exits=2, tells="is no reference"
    )
    assert not list(out.glob("run_*/*.jsonl")), "it asked before it refused"
    serve_eval(
        f"verify {urls[0]} --register {tmp_path}/one.json",
        *MODEL,
        **home,
        exits=2,
        tells="is no reference",
    )
    assert not (tmp_path / "one.json").exists()


def test_known_failures_of_a_stand_in_count_for_no_server(urls, home, tmp_path):
    known = tmp_path / "known.json"
    serve_eval(f"smoke {urls[0]} --write-known {known}", *MODEL, **home, exits=0)
    assert read_json(known)["server"] == "the stand-in for trtllm-serve"
    again = serve_eval(f"smoke {urls[0]} --known {known}", *MODEL, **home)
    assert "nothing in it" not in again.stdout
    known.write_text(known.read_text().replace("the stand-in for trtllm", "trtllm"))
    other = serve_eval(f"smoke {urls[0]} --known {known}", *MODEL, **home)
    assert "nothing in it" in other.stdout


def test_an_alarm_of_a_rehearsed_watch_says_so_and_ends_with_0(urls, home, tmp_path):
    told = tmp_path / "alarm.json"
    command = f"tee {told}"
    ended = serve_eval(
        f"watch {urls[0]} -t word_problems --every 0 --rounds 40 --reference-value 99.9"
        " --tolerance 0.1 --set watch.passes=2 --set watch.seed=1 --set watch.smoke=false"
        f" -o {tmp_path}/out",
        *MODEL,
        "--on-alarm-command",
        command,
        **home,
    )
    assert "ALARM accuracy" in ended.stdout, ended.stdout + ended.stderr
    assert ended.returncode == 0, ended.stderr
    alarm = read_json(told)
    assert alarm["rehearsal"] is True
    assert alarm["text"].startswith(f"{REHEARSED}: ALARM ")
    again = serve_eval(f"watch {urls[0]} -o {tmp_path}/out", *MODEL, **home)
    assert again.returncode == 2  # Another watch: the marks of the first one stay in its files.


def test_a_starter_plan_of_a_stand_in_says_so(urls, home, tmp_path):
    made = serve_eval(f"setup init {urls[0]} -o {tmp_path}/plan.yaml", **home, exits=0)
    assert made.stdout.startswith(REHEARSED)
    assert f"# {REHEARSED}" in (tmp_path / "plan.yaml").read_text()


def test_what_reads_the_run_of_a_stand_in_says_so(urls, home, tmp_path):
    run = tmp_path / "run"
    asked = ("run", "--base-url", urls[0], *FEW, "--no-reference", "-o", run)
    serve_eval(*asked, **home, exits=0)
    for command in (
        ("diagnose",),
        ("show",),
        ("runs", "export"),
        ("judge",),
        ("judge", "--rescore"),
    ):
        read = serve_eval(*command, run, **home)
        assert read.stderr.splitlines()[0] == REHEARSED, (command, read.stderr)
    (run / "report.json").write_text("no JSON")
    assert REHEARSED not in serve_eval(f"show {run}", **home).stderr


def test_workers_that_are_stand_ins_are_accused_of_nothing(urls, home, tmp_path):
    run = tmp_path / "run"
    asked = ("run", "--base-url", urls[0], *FEW, "--no-reference", "-o", run)
    serve_eval(*asked, **home, exits=0)
    workers = (word for url in urls for word in ("--worker", f"generation={url}"))
    ended = serve_eval(f"check workers {run} --samples 10", *workers, **home)
    assert (ended.returncode, ended.stdout.splitlines()[0]) == (0, REHEARSED), ended.stderr
