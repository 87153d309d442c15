"""Test shards: how samples are split, run and merged into one result."""

import json
import shutil
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import PlanError
from serve_eval.evaluation.engine.lane import arrange
from serve_eval.evaluation.launch import _write_answers
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.results.sample_table import Repeated
from serve_eval.launchers._simulated.simulator import SimulatorConfig, create_app
from serve_eval.plan.chosen_samples import ShardPart, list_places, parse_shard, seed_of_group
from serve_eval.plan.plan_file import to_file
from serve_eval.plan.resolve import resolve
from serve_eval.schema import Limits, Plan, Sample, Shard, Spec
from serve_eval.storage.run_folder import hold
from tests.cli.command import serve_eval
from tests.json_files import read_json
from tests.scripted_server import serve_in_thread


def _samples(ids):
    return [Sample(id=one, prompt=one, target="") for one in ids]


@given(st.lists(st.text(), unique=True, min_size=1, max_size=60), st.integers(1, 60), st.randoms())
def test_shards_are_a_partition_by_id_in_parts_of_equal_size(ids, count, rng):
    count = min(count, len(ids))
    samples = _samples(ids)
    parts = [list_places(samples, Shard(k, count)) for k in range(1, count + 1)]
    assert sorted(place for part in parts for place in part) == list(range(len(ids)))
    assert {len(part) for part in parts} <= {len(ids) // count, -(-len(ids) // count)}
    assert all(list(part) == sorted(part) for part in parts)
    shuffled = rng.sample(ids, len(ids))
    again = [list_places(_samples(shuffled), Shard(k, count)) for k in range(1, count + 1)]
    by_id = [{shuffled[place] for place in part} for part in again]
    assert by_id == [{ids[place] for place in part} for part in parts]


def test_a_shard_of_many_samples_does_not_depend_on_their_order():
    """Equal hashes would leave it to the order of the data."""
    ids = [f"test-{i}" for i in range(20_000)]
    first, last = (
        {order[place] for place in list_places(_samples(order), Shard(1, 3))}
        for order in (ids, ids[::-1])
    )
    assert first == last


def test_a_shard_is_not_a_stretch_of_the_data():
    places = list_places(_samples([f"test-{i}" for i in range(1000)]), Shard(1, 4))
    quarters = [
        sum(start <= place < start + 250 for place in places) for start in (0, 250, 500, 750)
    ]
    assert min(quarters) > 35


@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 3), st.integers(0, 5))
def test_shards_start_their_samples_in_the_order_of_the_whole_run(n, count, repeats, seed):
    count = min(count, n)
    samples = _samples([f"s{i}" for i in range(n)])
    whole = Repeated(samples, repeats)
    ids = [whole[i].id for i in arrange(whole, range(len(whole)), "random", str(seed))]
    for k in range(1, count + 1):
        places = list_places(samples, Shard(k, count))
        mine = Repeated([samples[i] for i in places], repeats)
        order = arrange(mine, range(len(mine)), "random", str(seed), ShardPart(places, n))
        own = {sample.id for sample in mine}
        assert [mine[i].id for i in order] == [one for one in ids if one in own]


@pytest.mark.parametrize(
    ("text", "environ", "shard"),
    [
        ("1/1", {}, Shard(1, 1)),
        ("3/16", {}, Shard(3, 16)),
        (" 16/16 ", {}, Shard(16, 16)),
        ("auto/4", {"SLURM_ARRAY_TASK_ID": "1"}, Shard(1, 4)),
        ("auto/4", {"SLURM_ARRAY_TASK_ID": "4", "SLURM_ARRAY_TASK_COUNT": "1"}, Shard(4, 4)),
        ("auto/4", {"JOB_COMPLETION_INDEX": "0"}, Shard(1, 4)),
        ("auto/4", {"JOB_COMPLETION_INDEX": "3"}, Shard(4, 4)),
        ("2/4", {"SLURM_ARRAY_TASK_ID": "1"}, Shard(2, 4)),
    ],
)
def test_a_shard_is_given_or_found(text, environ, shard):
    assert parse_shard(text, environ) == shard


@pytest.mark.parametrize(
    ("text", "environ", "message"),
    [
        ("3", {}, "NUMBER/COUNT"),
        ("auto", {"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_TASK_COUNT": "4"}, "auto/COUNT"),
        ("-1/4", {}, "NUMBER/COUNT"),
        ("0/4", {}, "from 1 to 4, not 0"),
        ("5/4", {}, "from 1 to 4, not 5"),
        ("1/0", {}, "count must be from 1"),
        ("auto/4", {}, "neither SLURM_ARRAY_TASK_ID nor JOB_COMPLETION_INDEX is set"),
        ("auto/4", {"SLURM_ARRAY_TASK_ID": "0"}, "sbatch --array=1-4"),
        ("auto/4", {"SLURM_ARRAY_TASK_ID": "5"}, "must be from 1 to 4"),
        ("auto/4", {"JOB_COMPLETION_INDEX": "4"}, "must be from 0 to 3"),
        ("auto/4", {"JOB_COMPLETION_INDEX": "x"}, "must be from 0 to 3"),
        ("auto/4", {"JOB_COMPLETION_INDEX": "1", "SLURM_ARRAY_TASK_ID": "1"}, "both set"),
    ],
)
def test_what_is_no_shard_is_refused(text, environ, message):
    with pytest.raises(PlanError) as caught:
        parse_shard(text, environ)
    assert message in str(caught.value)


def test_an_array_alone_shards_nothing():
    plan = resolve(
        {"tasks": ["gsm8k"]},
        {},
        {"SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_COUNT": "4", "JOB_COMPLETION_INDEX": "1"},
    ).plan
    assert plan.shard is None


def test_a_saved_plan_keeps_its_number():
    plan = resolve({"tasks": ["gsm8k"], "shard": "auto/4"}, {}, {"SLURM_ARRAY_TASK_ID": "2"}).plan
    assert plan.shard == Shard(2, 4)
    assert resolve(to_file(plan), {}, {"SLURM_ARRAY_TASK_ID": "3"}).plan.shard == Shard(2, 4)


def test_shards_of_one_array_have_one_order():
    plan = Plan(model="m", launcher=Spec(name="external"), tasks=(), shard=Shard(1, 4))
    array = {"SLURM_ARRAY_JOB_ID": "77"}
    seeds = {seed_of_group(replace(plan, shard=Shard(k, 4)), array) for k in range(1, 5)}
    assert len(seeds) == 1
    assert None not in seeds
    assert seed_of_group(plan, {"SLURM_ARRAY_JOB_ID": "78"}) not in seeds
    assert seed_of_group(plan, {**array, "SERVE_EVAL_SHARD_GROUP": "x"}) not in seeds
    assert seed_of_group(plan, {}) is None
    assert seed_of_group(replace(plan, shard=None), array) is None
    given = replace(plan, limits=Limits(order_seed=5))
    assert seed_of_group(given, array) == 5


TIMES = {"started_at", "wall_s", "loads"}
"""Fields of a report that are times, or that describe each session."""


@pytest.fixture(scope="module")
def url(data_root, tmp_path_factory):
    """Serve answers that are right, wrong, empty, cut off or missing, by the prompt alone."""
    answers = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    asked = {"tasks": ["gsm8k", "mmlu"], "dataset_root": str(data_root), "no_reference": True}
    _write_answers(answers, prepare(resolve(asked, {}, {}).plan), lambda task, sample: 0.7)
    config = SimulatorConfig(
        answers=answers, failure_rate=0.04, empty_rate=0.05, truncate_rate=0.05
    )
    with serve_in_thread(create_app(config)) as at:
        yield at


@pytest.fixture(scope="module")
def plan(url, data_root, tmp_path_factory):
    """Return the flags of a run of two tasks against references of our own."""
    refs = tmp_path_factory.mktemp("refs")
    for task in ("gsm8k", "mmlu"):
        (refs / f"{task}.yaml").write_text("simulated:\n  - accuracy: 62.0\n    source: ours\n")
    flags = ["run", "--base-url", url, "--model", "simulated", "--tasks", "gsm8k,mmlu"]
    return [
        *flags,
        *("--dataset-root", str(data_root), "--references-dir", str(refs)),
        *(
            "--limit",
            "150",
            "--set",
            "limits.order_seed=7",
            "--concurrency",
            "8",
            "--set",
            "limits.max_attempts=1",
        ),
    ]


@pytest.fixture
def shards(plan, tmp_path):
    """Return a function that runs shards, here or with other flags, and returns their folders."""

    def run(count, *more, only=()):
        folders = []
        for k in only or range(1, count + 1):
            folder = tmp_path / "_".join(["shard", str(k), *(m.strip("-") for m in more[:2])])
            done = serve_eval(*plan, "--shard", f"{k}/{count}", "-o", folder, *more)
            assert done.returncode == 0, done.stderr  # a shard is not judged
            folders.append(folder)
        return folders

    return run


def _report(folder):
    return read_json(folder / "report.json")


def _without_times(report):
    """Return the report as it is written, without times."""
    kept = {name: value for name, value in report.items() if name not in TIMES}
    for task in kept["tasks"]:
        task["traffic"] = {k: v for k, v in task["traffic"].items() if not k.endswith("_s")}
    kept["sampling_defaults"].pop("wall_s")
    for name in ("served_s", "probe_tokens"):  # each shard is probed
        kept["cost"].pop(name)
    return json.dumps(kept, indent=2).encode()


def _scores(folder, task):
    return (folder / f"scores/{task}.jsonl").read_bytes().splitlines()


def _answered(folder, task):
    """Return the ids of the answered samples in the order of the journal."""
    lines = (folder / f"samples/{task}.jsonl").read_text().splitlines()
    return [record["id"] for record in map(json.loads, lines) if "response" in record]


@pytest.mark.parametrize("more", [(), ("--repeats", "2")], ids=["once", "twice"])
def test_merged_shards_are_one_run_but_for_times(plan, shards, tmp_path, more):
    one, whole = tmp_path / "one", tmp_path / "whole"
    alone = serve_eval(*plan, "-o", one, *more)
    folders = shards(4, *more)
    merged = serve_eval(f"runs merge -o {whole}", *reversed(folders))
    assert (alone.returncode, merged.returncode) == (3, 3), merged.stderr  # 4 % are missing
    assert _without_times(_report(whole)) == _without_times(_report(one))
    assert [task["result"]["failed"] for task in _report(whole)["tasks"]] > [0, 0]
    for task in ("gsm8k", "mmlu"):
        assert sorted(_scores(whole, task)) == sorted(_scores(one, task))
    again = tmp_path / "again"
    serve_eval(f"runs merge -o {again}", *folders, exits=3)
    for file in ("scores/gsm8k.jsonl", "samples/mmlu.jsonl", "order.json", "plan.json"):
        if file != "plan.json":  # signed for its folder
            assert (again / file).read_bytes() == (whole / file).read_bytes()


def test_one_request_at_a_time_gives_the_same_files(plan, shards, tmp_path):
    one, whole = tmp_path / "one", tmp_path / "whole"
    serve_eval(*plan, "--concurrency", "1", "-o", one)
    serve_eval(f"runs merge -o {whole}", *shards(3, "--concurrency", "1"))
    for task in ("gsm8k", "mmlu"):
        assert _scores(whole, task) == _scores(one, task)
        assert _answered(whole, task) == _answered(one, task)


def test_a_merged_run_is_a_run(shards, plan, tmp_path):
    whole, refs = tmp_path / "whole", tmp_path / "own"
    serve_eval(f"runs merge -o {whole}", *shards(2))
    before = _report(whole)["tasks"][0]["verdict"]
    judged = serve_eval(f"judge {whole} --json")
    assert json.loads(judged.stdout)["result"]["tasks"][0]["verdict"] == before
    assert serve_eval(f"compare {whole} {whole} -o {tmp_path}/c").returncode in (0, 2, 3)
    resumed = serve_eval(f"run --resume {whole}")
    assert resumed.returncode == 3, resumed.stderr  # asks the failed samples once more
    assert len(_report(whole)["loads"]) == 3
    assert "was not saved there by you" not in resumed.stderr
    serve_eval(
        f"references register {tmp_path}/shard_1 --references-dir {refs}",
        exits=2,
        tells="is shard 1/2 of a run",
    )


def test_a_shard_is_not_judged(shards, tmp_path):
    [folder] = shards(4, "--early-stop", only=[2])
    report = _report(folder)
    assert report["plan"]["shard"] == {"number": 2, "count": 4}
    for task in report["tasks"]:
        assert task["verdict"]["outcome"] == "SHARD"
        assert "no early stop: a shard cannot know" in " ".join(task["verdict"]["warnings"])
        assert task["result"]["planned"] in (37, 38)
        assert task["fingerprint"]["shard"] == "2/4"
        assert task["fingerprint"]["samples_of_all_shards"].startswith("150 ")
    assert "serve-eval runs merge judges all shards together" in str(report)


def test_a_merged_run_says_that_it_did_not_stop_early(shards, tmp_path):
    serve_eval(f"runs merge -o {tmp_path}/whole", *shards(2, "--early-stop"))
    report = _report(tmp_path / "whole")
    assert "no early stop: shards ask all of their samples" in report["warnings"]
    assert report["plan"]["early_stop"] is None
    assert all(task["verdict"]["early"] is None for task in report["tasks"])


def _refused(folders, tmp_path):
    """Return the message of a merge that is refused, which writes nothing."""
    done = serve_eval(f"runs merge -o {tmp_path}/refused", *folders, exits=2)
    assert not (tmp_path / "refused").exists()
    return done.stderr


def test_what_is_missing_or_doubled_is_refused(shards, tmp_path):
    a, b, c = shards(3)
    assert "shard 2 of 3 is missing" in _refused([a, c], tmp_path)
    assert "shard 2/3 is given twice" in _refused([a, b, c, b], tmp_path)
    [fewer] = shards(2, "--set", "limits.retry_budget=9", only=[1])
    assert "are of different counts" in _refused([a, b, c, fewer], tmp_path)
    journal = b / "samples/gsm8k.jsonl"
    whole = journal.read_bytes()
    lines = [line for line in whole.splitlines(keepends=True) if b'"response":{' in line]
    journal.write_bytes(whole.replace(lines[0], b"").replace(lines[1], b"") + lines[1][:-3])
    said = _refused([a, b, c], tmp_path)
    assert "gsm8k: 2 of 50 samples are missing" in said
    assert f"serve-eval run --resume {b}" in said
    foreign = (a / "samples/gsm8k.jsonl").read_bytes().splitlines(keepends=True)[0]
    journal.write_bytes(whole + foreign)
    said = _refused([a, b, c], tmp_path)
    assert (
        f"1 samples belong to other shards, such as {json.loads(foreign)['id']} to shard 1/3"
        in said
    )
    journal.write_bytes(whole + foreign.replace(json.loads(foreign)["id"].encode(), b"no-such"))
    assert "1 samples are not in the data, such as no-such" in _refused([a, b, c], tmp_path)
    journal.write_bytes(whole)
    serve_eval(f"runs merge {a} {b} {c} -o {tmp_path}/whole", exits=3)


def test_a_run_that_is_no_shard_is_refused(plan, shards, tmp_path):
    serve_eval(*plan, "-o", tmp_path / "one")
    assert "is not a shard" in _refused([tmp_path / "one"], tmp_path)
    assert "is a folder of runs, not a run" in _refused([tmp_path], tmp_path)


@pytest.mark.parametrize(
    ("flag", "value", "named"),
    [
        ("--limit", "140", "plan.limit: 150 and 140"),
        ("--temperature", "0.5", "gsm8k.temperature"),
        ("--repeats", "2", "plan.repeats: 1 and 2"),
        ("--set", "seed=4", "the samples of gsm8k: "),
    ],
)
def test_shards_of_other_runs_are_refused_with_what_differs(shards, tmp_path, flag, value, named):
    [a] = shards(2, "--no-reference", only=[1])
    [b] = shards(2, flag, value, "--no-reference", only=[2])
    said = _refused([a, b], tmp_path)
    assert "are parts of different runs" in said
    assert named in said


def test_shards_of_other_data_are_refused_with_the_data_named(plan, shards, data_root, tmp_path):
    other = tmp_path / "data"
    shutil.copytree(data_root, other)
    file = other / "gsm8k/test.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[3]["question"] += " Think twice."
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    changed = ["--dataset-root", str(other), "--limit", "1319", "--allow-mismatch", "dataset"]
    same = [*changed[:1], str(data_root), *changed[2:]]
    [a] = shards(2, *same, only=[1])
    [b] = shards(2, *changed, only=[2])
    said = _refused([a, b], tmp_path)
    assert "the samples of gsm8k: " in said
    assert "the samples of mmlu" not in said
    [c] = shards(2, *same, only=[2])
    serve_eval(
        f"runs merge {a} {c} -o {tmp_path}/refused --dataset-root {other}",
        exits=2,
        tells="gsm8k: the shards and the data here differ: samples: ",
    )
    assert not (tmp_path / "refused").exists()


def test_shards_with_other_orders_have_no_alarm_together(plan, shards, tmp_path):
    folders = [*shards(2, only=[1]), *shards(2, "--set", "limits.order_seed=8", only=[2])]
    serve_eval(f"runs merge -o {tmp_path}/whole", *folders)
    report = _report(tmp_path / "whole")
    assert any("asked in different random orders" in line for line in report["warnings"])
    assert read_json(tmp_path / "whole/order.json") == {
        "order_seed": 7,
        "shards_without_common_order": 2,
    }


def test_fewer_samples_than_shards_are_refused(plan, tmp_path):
    serve_eval(
        *plan,
        "--limit",
        "3",
        "--shard",
        "1/4",
        "-o",
        tmp_path / "out",
        exits=2,
        tells="gsm8k has 3 samples, fewer than the 4 shards",
    )
    assert not (tmp_path / "out").exists()


def test_a_shard_that_still_runs_is_refused(shards, tmp_path):
    a, b = shards(2)
    with hold(b, "plan.json"):
        assert f"{b} is in use by another run" in _refused([a, b], tmp_path)
    serve_eval(f"runs merge {a} {b} -o {tmp_path}/whole", exits=3)


def test_servers_of_two_versions_are_named(shards, tmp_path):
    a, b = shards(2)
    sessions = b / "environment.json"
    sessions.write_text(sessions.read_text().replace('"version": "simulator"', '"version": "9.9"'))
    serve_eval(f"runs merge {a} {b} -o {tmp_path}/whole")
    [line] = [line for line in _report(tmp_path / "whole")["warnings"] if "versions" in line]
    assert line == "servers of several versions answered the shards: 9.9, simulator"


def test_a_task_that_no_endpoint_can_do_is_unsupported_in_the_whole(plan, tmp_path):
    chat = [*plan, "--set", "protocol.apply_chat_template=true", "--no-reference"]
    parts, whole = [tmp_path / "1", tmp_path / "2"], tmp_path / "whole"
    with serve_in_thread(create_app(SimulatorConfig(no_chat=True, any_model=True))) as url:
        at = [url if word == plan[2] else word for word in chat]
        for k in (1, 2):
            serve_eval(*at, "--shard", f"{k}/2", "-o", parts[k - 1], exits=3)
    serve_eval(f"runs merge -o {whole}", *parts, exits=3)
    outcomes = [task["verdict"]["outcome"] for task in _report(whole)["tasks"]]
    assert outcomes == ["UNSUPPORTED", "UNSUPPORTED"]
    able = tmp_path / "able"
    serve_eval(*chat, "--shard", "2/2", "-o", able, exits=0)
    said = _refused([parts[0], able], tmp_path)
    assert "75 of 75 samples are missing (its endpoint lacks chat, the others' do not)" in said
