"""Test `--rehearse`: the stand-in in place of trtllm-serve, and that nothing takes it for more."""

import pytest
import yaml

from serve_eval.schema import REHEARSED
from tests.cli.command import serve_eval
from tests.json_files import read_json

SPLIT = {"name": "trtllm_disaggregated", "generation_servers": {"tp": 4}}


@pytest.fixture(autouse=True)
def _own_machine(tmp_path, monkeypatch):
    """Keep locks apart from other tests, on a machine on which no GPU is visible."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def write_plan(folder, launcher, name="plan.yaml"):
    """Write a small plan with this launcher, whose task needs no data."""
    tasks = [{"word_problems": {"num_samples": 8}}]
    plan = {"model": "org/model", "tasks": tasks, "no_reference": True, "launcher": launcher}
    (folder / name).write_text(yaml.safe_dump(plan))
    return folder / name


def test_a_disaggregated_plan_goes_through_and_says_what_it_is(tmp_path):
    plan, out = write_plan(tmp_path, SPLIT), tmp_path / "out"
    junit = tmp_path / "junit.xml"
    ended = serve_eval(
        f"run {plan} --rehearse -o {out} --junit {junit}", GITHUB_ACTIONS="true", exits=0
    )
    assert ended.stdout.splitlines()[0] == REHEARSED
    assert f"::warning title=serve-eval::{REHEARSED}" in ended.stderr
    assert (out / "summary.md").read_text().startswith(f"{REHEARSED}: ")
    assert f'<testsuites name="{REHEARSED}' in junit.read_text()
    assert '<strong class="badge">REHEARSAL</strong>' in (out / "report.html").read_text()
    report = read_json(out / "report.json")
    assert report["rehearsal"] is True
    assert report["endpoint"]["info"]["version"].endswith("+stand-in")
    assert {path.name for path in (out / "logs").glob("*.log")} == {
        "context_0.log", "generation_0.log", "orchestrator.log",
    }  # fmt: skip


def test_a_quiet_rehearsal_prints_its_conclusion_too(tmp_path):
    plan, out = write_plan(tmp_path, {"name": "trtllm"}), tmp_path / "out"
    ended = serve_eval(f"run {plan} --rehearse -o {out} -q")
    notice, conclusion = ended.stdout.splitlines()
    assert notice == REHEARSED
    assert "word_problems" in conclusion


def test_a_rehearsal_that_does_not_begin_is_called_one(tmp_path):
    plan, junit = write_plan(tmp_path, {"name": "trtllm"}), tmp_path / "junit.xml"
    plan.write_text(plan.read_text().replace("word_problems", "word_problms"))
    files = f"--notify-text - --junit {junit}"
    ended = serve_eval(f"run {plan} --rehearse {files}", exits=2)
    assert ended.stdout.startswith("REHEARSAL: without servers; this shows nothing about a model: ")
    assert "ERROR run" in ended.stdout
    assert junit.read_text().count("REHEARSAL: without servers") == 3
    plain = serve_eval(f"run {plan} {files}")
    assert plain.stdout.startswith("ERROR run")


def test_a_rehearsal_needs_no_reference(tmp_path):
    plan, out = write_plan(tmp_path, {"name": "trtllm"}), tmp_path / "out"
    plan.write_text(plan.read_text().replace("no_reference: true\n", ""))
    ended = serve_eval(f"run {plan} --rehearse -o {out}", exits=0)
    told = ended.stdout + ended.stderr + (out / "summary.md").read_text()
    assert "launcher.of" not in told
    assert "--launcher rehearsal" not in told
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump({"plans": [plan.name]}))
    serve_eval(f"run {tmp_path}/suite.yaml --rehearse -o {tmp_path}/suite", exits=0)


@pytest.mark.slow
def test_a_pass_is_withheld_and_nothing_takes_it(tmp_path):
    references = tmp_path / "references"
    references.mkdir()
    entry = "org/model:\n  - accuracy: 60\n"
    (references / "word_problems.yaml").write_text(entry)
    plan, out = write_plan(tmp_path, {"name": "trtllm"}), tmp_path / "out"
    content = yaml.safe_load(plan.read_text())
    del content["no_reference"]
    plan.write_text(yaml.safe_dump({**content, "references_dir": str(references)}))
    ended = serve_eval(f"run {plan} --rehearse -o {out}", exits=0)
    [task] = read_json(out / "report.json")["tasks"]
    assert task["verdict"]["outcome"] == "INCONCLUSIVE"
    assert "PASS" not in ended.stdout
    assert "FAIL" not in ended.stdout
    judged = serve_eval(f"judge {out} --references-dir {references}")
    assert judged.stdout.splitlines()[0] == REHEARSED

    into = f"--references-dir {references}"
    register = serve_eval(f"references register {out} {into} --reason 'a test'")
    assert register.returncode != 0
    assert "is a rehearsal" in register.stderr
    asked = "--launcher rehearsal --model org/model -t word_problems"
    serve_eval(
        f"references take -o {tmp_path}/take {asked} {into}", exits=2, tells="is no reference"
    )
    drift = serve_eval(f"runs trend {tmp_path}")
    assert "the stand-in answered in these rehearsals: 1 runs" in drift.stderr
    serve_eval(f"run {plan} -o {out}", exits=2, tells="holds another run")


@pytest.mark.slow
def test_a_sound_comparison_is_not_passed(tmp_path):
    a = write_plan(tmp_path, {"name": "trtllm"}, "a.yaml")
    b = write_plan(tmp_path, {"name": "trtllm", "tp": 2}, "b.yaml")
    ended = serve_eval(f"compare {a} {b} --rehearse --self 0 -o {tmp_path}/out", exits=0)
    assert ended.stdout.splitlines()[0] == REHEARSED
    assert "PASS" not in ended.stdout
    assert (tmp_path / "out/summary.md").read_text().startswith(f"{REHEARSED}: ")


@pytest.mark.slow
def test_a_run_of_a_rehearsed_server_by_its_address_is_one_too(tmp_path):
    plan = write_plan(tmp_path, {"name": "trtllm"})
    served = serve_eval(f"serve {plan} --rehearse --detach", exits=0)
    told = dict(line.split(":", 1) for line in served.stdout.splitlines())
    url, number = told["base URL"].strip(), told["id"].strip()
    try:
        tasks = "--model org/model -t word_problems --limit 4 --no-reference"
        ended = serve_eval(f"run --base-url {url} -o {tmp_path}/out {tasks}")
    finally:
        serve_eval(f"serve --stop {number}", exits=0)
    assert ended.stdout.splitlines()[0] == REHEARSED


def test_checks_of_rehearsed_servers_by_their_address_are_rehearsals(tmp_path):
    night, told = tmp_path / "night", dict[str, dict[str, str]]()
    for side, tp in (("old", 1), ("new", 2)):
        plan = write_plan(tmp_path, {"name": "trtllm", "tp": tp}, f"{side}.yaml")
        served = serve_eval(f"serve {plan} --rehearse --detach -o {night}/{side}", exits=0)
        lines = [line.split(":", 1) for line in served.stdout.splitlines()]
        told[side] = {name: text.strip() for name, text in lines}
    old, url = (told[side]["base URL"] for side in ("old", "new"))
    try:
        for name, words in {
            "smoke": ("smoke", url),
            "verify": ("verify", old, url, "--floor", "0.1"),
            "tools": ("check", "tools", url, "--model", "org/model", "--limit", "4"),
        }.items():
            line = tmp_path / f"{name}.line"
            serve_eval(*words, "-o", night / name, "--notify-text", line, exits=0, prints=REHEARSED)
            assert line.read_text().startswith(f"{REHEARSED}: "), line.read_text()
            for word in ("PASS", "FAIL", "IDENTICAL"):
                assert not line.read_text().startswith(f"{REHEARSED}: {word}")
            page = (night / name / "report.html").read_text()
            assert '<strong class="badge">REHEARSAL</strong>' in page
            assert f'<testsuites name="{REHEARSED}' in (night / name / "junit.xml").read_text()
        register = serve_eval(f"verify {url} --register {tmp_path}/reference.json")
        assert "the stand-in of a rehearsal is no reference" in register.stderr
    finally:
        serve_eval("serve --stop all", exits=0)
    viewed = serve_eval(f"runs view {night} -o {tmp_path}/all.html")
    assert "passed" not in viewed.stdout, viewed.stdout
    assert "5 rehearsals not counted" in viewed.stdout, viewed.stdout


def test_two_plans_of_one_night_have_gpus_of_their_own(tmp_path):
    night, program = tmp_path / "night", "/nowhere/bin/trtllm-serve"
    old = write_plan(tmp_path, {"name": "trtllm", "gpus": [0, 1], "tp": 2}, "old.yaml")
    new = write_plan(tmp_path, {"name": "trtllm", "gpus": [1], "command": program}, "new.yaml")
    serve_eval(f"serve {old} --rehearse --detach -o {night}/old", exits=0)
    try:
        again = serve_eval(f"serve {new} --rehearse --detach -o {night}/new")
        said = f"the servers in {night}/old, which are up, have the same GPUs: 1"
        assert (again.returncode, said in again.stderr) == (2, True), again.stderr
        serve_eval(
            f"serve {new} --rehearse --detach -o {tmp_path}/other/new",
            exits=0,
            tells=f"rehearsal: the program {program} does not exist here",
        )
    finally:
        serve_eval("serve --stop all", exits=0)


def test_a_mistake_in_a_plan_is_told_by_serve_and_claims_no_gpu(tmp_path):
    night = tmp_path / "night"
    wrong = {"name": "trtllm", "gpus": [1], "extra_args": ["--max_seqlen", "2048"]}
    plan = write_plan(tmp_path, wrong, "wrong.yaml")
    try:
        for folder in ("one", "two"):  # the second finds the first in the list, but not up
            serve_eval(
                f"serve {plan} --rehearse --detach -o {night}/{folder}",
                exits=2,
                tells="no option --max_seqlen",
            )
    finally:
        serve_eval("serve --stop all", exits=0)


@pytest.mark.parametrize(
    ("launcher", "code", "said"),
    [
        ({"name": "trtllm", "gpus": [0], "tp": 2}, 2, "2 GPUs are needed"),
        ({"name": "trtllm", "extra_args": ["--nosuch"]}, 2, "no option --nosuch"),
        ({"name": "trtllm", "config": {"nosuch": 1}}, 2, "launcher.config: unknown key nosuch"),
        (
            {"name": "trtllm", "config": {"kv_cache_config": {"dtyp": "fp8"}}},
            2,
            "launcher.config: unknown key kv_cache_config.dtyp",
        ),
        (
            {**SPLIT, "generation_servers": {"tp": 4, "config": {"max_batchsize": 8}}},
            2,
            "launcher.generation_servers.config: unknown key max_batchsize",
        ),
        (
            {"name": "trtllm", "config": {"max_batch_size": "many"}},
            2,
            "launcher.config: max_batch_size: Input should be a valid integer",
        ),
        ({"name": "trtllm", "config": "/nowhere.yaml"}, 2, "/nowhere.yaml cannot be read"),
        ({**SPLIT, "context_servers": {"router": "nosuch"}}, 2, "unknown type 'nosuch'"),
        ({"name": "container", "trtllm": {}}, 2, "launcher.image: required"),
        ({"name": "slurm", "gpus_per_node": 4, "trtllm": {"tp": -1}}, 2, "must be 1 or more"),
        ({"name": "vllm"}, 2, "the launcher vllm cannot be rehearsed"),
        ({"name": "external"}, 2, "the plan starts no server"),
        ({"name": "rehearsal", "of": "vllm"}, 2, "vllm cannot be rehearsed"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_plan_is_found(launcher, code, said, tmp_path):
    serve_eval(
        f"run --rehearse -o {tmp_path}/out", write_plan(tmp_path, launcher), exits=code, tells=said
    )


@pytest.mark.parametrize(
    "launcher",
    [
        {"name": "container", "image": "registry/image:1", "trtllm": {"tp": 8}},
        {"name": "slurm", "gpus_per_node": 4, "trtllm_disaggregated": {"discovery": True}},
        {"name": "trtllm", "gpus": "auto", "extra_args": ["--enable_attention_dp"]},
        {**SPLIT, "discovery": "etcd://nowhere:2379"},
    ],
    ids=["container", "slurm", "main", "etcd"],
)
@pytest.mark.slow
def test_what_this_machine_lacks_is_no_mistake(launcher, tmp_path):
    ended = serve_eval(f"run --rehearse -o {tmp_path}/out", write_plan(tmp_path, launcher), exits=0)
    assert ended.stdout.splitlines()[0] == REHEARSED


@pytest.mark.slow
def test_a_suite_a_verification_and_a_load_say_what_they_are(tmp_path):
    a = write_plan(tmp_path, {"name": "trtllm"}, "a.yaml")
    b = write_plan(tmp_path, {"name": "trtllm", "tp": 2}, "b.yaml")
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump({"plans": [a.name, b.name]}))
    for command in (
        ("run", tmp_path / "suite.yaml"),
        ("verify", a, b, "--floor", "0.1"),
        ("check", "load", a, "--concurrency", "1,4"),
    ):
        out = tmp_path / f"out-{command[0]}"
        ended = serve_eval(*command, "--rehearse", "-o", out, exits=0)
        assert ended.stdout.splitlines()[0] == REHEARSED
        assert not {"PASS", "FAIL", "IDENTICAL"} & set(ended.stdout.split())
        assert '<strong class="badge">REHEARSAL</strong>' in (out / "report.html").read_text()
        assert (out / "summary.md").read_text().startswith(f"{REHEARSED}: ")


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_suite_of_a_stand_in_by_its_address_says_so(urls, home, tmp_path):
    plan = {"model": "org/model", "base_url": urls[0], "no_reference": True, "limit": 8}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump({**plan, "tasks": ["word_problems"]}))
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump({"plans": ["plan.yaml"]}))
    ended = serve_eval(f"run {tmp_path}/suite.yaml -o {tmp_path}/out", **home)
    assert (ended.returncode, ended.stdout.splitlines()[0]) == (0, REHEARSED), ended.stderr


@pytest.mark.slow
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


@pytest.mark.slow
def test_known_failures_of_a_stand_in_count_for_no_server(urls, home, tmp_path):
    known = tmp_path / "known.json"
    serve_eval(f"smoke {urls[0]} --write-known {known}", *MODEL, **home, exits=0)
    assert read_json(known)["server"] == "the stand-in for trtllm-serve"
    again = serve_eval(f"smoke {urls[0]} --known {known}", *MODEL, **home)
    assert "nothing in it" not in again.stdout
    known.write_text(known.read_text().replace("the stand-in for trtllm", "trtllm"))
    other = serve_eval(f"smoke {urls[0]} --known {known}", *MODEL, **home)
    assert "nothing in it" in other.stdout


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_starter_plan_of_a_stand_in_says_so(urls, home, tmp_path):
    made = serve_eval(f"setup init {urls[0]} -o {tmp_path}/plan.yaml", **home, exits=0)
    assert made.stdout.startswith(REHEARSED)
    assert f"# {REHEARSED}" in (tmp_path / "plan.yaml").read_text()


@pytest.mark.slow
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


@pytest.mark.slow
def test_workers_that_are_stand_ins_are_accused_of_nothing(urls, home, tmp_path):
    run = tmp_path / "run"
    asked = ("run", "--base-url", urls[0], *FEW, "--no-reference", "-o", run)
    serve_eval(*asked, **home, exits=0)
    workers = (word for url in urls for word in ("--worker", f"generation={url}"))
    ended = serve_eval(f"check workers {run} --samples 10", *workers, **home)
    assert (ended.returncode, ended.stdout.splitlines()[0]) == (0, REHEARSED), ended.stderr
