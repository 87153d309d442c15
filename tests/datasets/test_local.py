"""Test how data sets are found or generated."""

import itertools
import random
import re
import sys
import tarfile
from pathlib import Path

import pytest

import serve_eval.tasks
from serve_eval.datasets import local
from serve_eval.datasets.generated import MOST, problems, split_of
from serve_eval.datasets.local import find_sources
from serve_eval.datasets.source import KNOWN, HubSource, download
from serve_eval.errors import DatasetError
from serve_eval.evaluation.prepare import check_ids
from serve_eval.protocol.shared import build_task
from serve_eval.schema import DataRoots, Dataset, Sample, Spec
from serve_eval.tasks._gsm8k import SOURCE
from serve_eval.tasks._passkey import FILLER, hide_key
from tests.cli.command import serve_eval as run

DECLARES = """\"\"\"A task of a test.\"\"\"

from serve_eval.datasets.source import Source

SOURCE = Source(
    name="Rivers",
    folders=("made_up_rivers",),
    homepage="https://example.com",
    licence="MIT",
    rows="9 test",
)
"""


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    """Return a folder whose files are tasks for the length of a test."""
    before = set(sys.modules)
    monkeypatch.setattr(serve_eval.tasks, "__path__", [*serve_eval.tasks.__path__, str(tmp_path)])
    yield tmp_path
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def test_the_shared_sets_come_first():
    assert list(find_sources())[: len(KNOWN)] == list(KNOWN)


@pytest.mark.usefixtures("tasks")
def test_a_set_of_a_task_file_is_listed_and_its_folder_is_known(tasks):
    before = find_sources()
    (tasks / "made_up_rivers.py").write_text(DECLARES)
    (tasks / "made_up_lakes.py").write_text('raise SystemError("imported for nothing")\n')
    found = find_sources()
    assert found.keys() - before.keys() == {"made_up_rivers"}
    assert "Put a copy from https://example.com" in local.advice(found["made_up_rivers"])
    listed = " ".join(run("data", "list", "datasets", "-v").stdout.split())
    assert "made_up_rivers: Rivers, 9 test; licence: MIT" in listed
    where = run("data", "path", "made_up_rivers", "--dataset-root", tasks)
    assert (where.returncode, where.stdout) == (2, f"{tasks}/made_up_rivers\n")


def test_a_set_that_is_shared_is_not_declared_again(tasks):
    before = find_sources()
    (tasks / "made_up_rivers.py").write_text(
        'from serve_eval.datasets.source import KNOWN\nSOURCE = KNOWN["mmlu"]\n'
    )
    assert find_sources() == before


def test_a_name_of_a_shared_set_is_refused(tasks):
    (tasks / "slimpajama.py").write_text(DECLARES)
    with pytest.raises(ValueError, match=r"tasks/slimpajama\.py: SOURCE has the name of a set"):
        find_sources()


def test_a_data_set_that_is_nowhere_says_what_to_do_and_then_where_it_was_looked_for(
    tmp_path,
):
    markers = local.split_markers(["test", "train"])
    with pytest.raises(DatasetError) as caught:
        local.find_folder(SOURCE, DataRoots(roots=(tmp_path,)), markers)
    assert str(caught.value) == "the data set GSM8K was not found"
    fetch, hub, by_hand, looked, *places = caught.value.hint.splitlines()
    assert fetch == "Fetch it with serve-eval data fetch gsm8k -o DIR, then add --dataset-root DIR."
    assert "--allow-hub to download openai/gsm8k" in hub
    assert "into <root>/gsm8k and name the root with --dataset-root" in by_hand
    assert len(markers) == 28
    assert looked == "Searched for test.jsonl, test.jsonl.gz, test.json and 25 more in:"
    assert places == [f"  {tmp_path / 'openai/gsm8k'}", f"  {tmp_path / 'gsm8k'}", f"  {tmp_path}"]


def test_a_set_that_is_not_known_is_not_told_to_be_fetched():
    own = local.Source(
        name="mine", folders=("mine",), homepage="https://example.org", licence="", rows=""
    )
    assert local.advice(own).startswith("Put a copy from https://example.org into <root>/mine")


def test_without_any_root_the_message_says_so():
    with pytest.raises(DatasetError) as caught:
        local.find_folder(SOURCE, DataRoots(), ["test.jsonl"])
    assert caught.value.hint.endswith("Did not search for test.jsonl: no dataset root is set")


def test_the_first_root_wins_and_the_suites_layout_is_found(tmp_path):
    for place in ("a/gsm8k", "b/openai/gsm8k"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "test.jsonl").touch()
    roots = DataRoots(roots=(tmp_path / "a", tmp_path / "b"))
    assert local.find_folder(SOURCE, roots, ["test.jsonl"]) == tmp_path / "a/gsm8k"
    assert (
        local.find_folder(SOURCE, DataRoots(roots=(tmp_path / "b",)), ["test.jsonl"])
        == tmp_path / "b/openai/gsm8k"
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", b'{"q": "a"}\n{"q": \n', "x.jsonl:2"),
        ("x.jsonl", b"[1]\n", "x.jsonl:1"),
        ("x.jsonl", b'{"q": 3}\n', "row 1: q is the number 3, not a text"),
        ("x.jsonl", b"", "no rows"),
        ("x.csv", b"q\n\xff\n", "not UTF-8"),
        ("x.csv", b'q\n"a\n', "x.csv"),
        ("x.parquet", b"PAR1", "not a Parquet file"),
        ("x.txt", b"a", "unknown format"),
    ],
)
def test_a_bad_file_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        local.rows(local.read_file(tmp_path / name), ["q"])


def test_the_checksum_of_a_file_is_what_sha256sum_prints():
    source = local.DataFile(Path("a"), b"abc").source
    assert source.sha256 == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_the_hub_is_asked_only_when_allowed(tmp_path):
    with pytest.raises(DatasetError, match="was not found"):
        local.find_folder(SOURCE, DataRoots(roots=(tmp_path,), allow_hub=False), ["test.jsonl"])


def test_an_archive_from_the_hub_is_unpacked_once(tmp_path):
    (tmp_path / "in/data/test").mkdir(parents=True)
    (tmp_path / "in/data/test/anatomy_test.csv").write_text("q,1,2,3,4,A\n")
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    with tarfile.open(snapshot / "data.tar", "w") as archive:
        archive.add(tmp_path / "in/data", "data")
    source = HubSource(repository="x/mmlu", patterns=("data.tar",), archive="data.tar")
    for _ in range(2):
        folder = download(source, lambda _: snapshot)
        assert (folder / "test/anatomy_test.csv").read_text() == "q,1,2,3,4,A\n"


def test_an_archive_that_reaches_outside_is_refused(tmp_path):
    (tmp_path / "evil").write_text("x")
    with tarfile.open(tmp_path / "data.tar", "w") as archive:
        archive.add(tmp_path / "evil", "../outside")
    source = HubSource(repository="x/mmlu", patterns=("data.tar",), archive="data.tar")
    with pytest.raises(DatasetError, match="could not be downloaded"):
        download(source, lambda _: tmp_path)
    assert not (tmp_path.parent / "outside").exists()


def test_two_samples_with_one_id_are_named_with_their_positions():
    task = build_task(Spec(name="passkey_lines"))
    samples = [Sample(id=name, prompt="p", target="t") for name in ("a", "b", "a")]
    with pytest.raises(DatasetError, match=r"samples 1 and 3 have the same id 'a'"):
        check_ids(task, Dataset(samples=samples, files=(), total=3))


def _some(split, count=300, seed=5):
    return list(itertools.islice(problems(split, seed), count))


def _operands(problem):
    """Return the start and the changes, parsed from the solution."""
    lines = problem.solution.splitlines()[:-1]
    start = int(re.findall(r"^\d+", lines[0])[0])
    return (start, *(int(re.findall(r"[+-]\d+", line)[0]) for line in lines))


def test_a_solution_is_a_chain_of_true_equations_that_ends_in_the_answer():
    for problem in _some("train"):
        *lines, last = problem.solution.splitlines()
        assert 1 <= len(lines) <= 4
        total = None
        for line in lines:
            left, sign, right, result = re.fullmatch(r"(\d+)([+-])(\d+)=(\d+)", line).groups()
            assert total is None or int(left) == total
            total = int(left) + int(sign + right)
            assert int(result) == total
            assert 0 < total < MOST
        assert last == f"#### {problem.answer}"
        assert problem.answer == total


def test_the_question_names_every_number_in_order():
    for problem in _some("test"):
        told = [int(number) for number in re.findall(r"\d+", problem.question)]
        assert told == [abs(operand) for operand in _operands(problem)]
        assert problem.question.endswith(" have now?")


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_problem_is_in_the_split_of_its_operands(split):
    assert {split_of(_operands(problem)) for problem in _some(split)} == {split}


def test_no_operands_are_in_both_splits():
    seen = {_operands(problem) for problem in _some("train", 5000)}
    assert not seen & {_operands(problem) for problem in _some("test", 1000)}


def test_a_seed_gives_the_same_problems_and_another_seed_others():
    assert _some("test", 20) == _some("test", 20)
    assert _some("test", 20) != _some("test", 20, seed=6)


@pytest.mark.parametrize("depth", [0.0, 0.3, 1.0])
def test_the_key_stands_after_that_share_of_the_filler(depth):
    found = hide_key(random.Random(3), sentences=20, depth=depth)
    before, _, after = found.prompt.partition(
        f"The pass key is {found.key}. Remember it. {found.key} is the pass key."
    )
    assert before.count(".") == round(20 * depth)
    assert after.count(".") == 20 - round(20 * depth)
    assert after.endswith(" What is the pass key?")
    assert 10000 <= found.key <= 99999


def test_the_rest_is_filler():
    found = hide_key(random.Random(4), sentences=40, depth=1.0)
    assert found.prompt.startswith(FILLER)
    assert sum(found.prompt.count(sentence) for sentence in FILLER) == 40
