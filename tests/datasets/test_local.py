from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from serve_eval.datasets import local
from serve_eval.datasets.source import HubSource, download
from serve_eval.errors import DatasetError
from serve_eval.evaluation.prepare import check_ids
from serve_eval.protocol.shared import build_task
from serve_eval.schema import DataRoots, Dataset, Sample, Spec
from serve_eval.tasks._gsm8k import SOURCE


def test_a_data_set_that_is_nowhere_says_what_to_do_and_then_where_it_was_looked_for(
    tmp_path: Path,
) -> None:
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


def test_a_set_that_is_not_known_is_not_told_to_be_fetched() -> None:
    own = local.Source(
        name="mine", folders=("mine",), homepage="https://example.org", licence="", rows=""
    )
    assert local.advice(own).startswith("Put a copy from https://example.org into <root>/mine")


def test_without_any_root_the_message_says_so() -> None:
    with pytest.raises(DatasetError) as caught:
        local.find_folder(SOURCE, DataRoots(), ["test.jsonl"])
    assert caught.value.hint.endswith("Did not search for test.jsonl: no dataset root is set")


def test_the_first_root_wins_and_the_suites_layout_is_found(tmp_path: Path) -> None:
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
def test_a_bad_file_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        local.rows(local.read_file(tmp_path / name), ["q"])


def test_the_checksum_of_a_file_is_what_sha256sum_prints() -> None:
    source = local.DataFile(Path("a"), b"abc").source
    assert source.sha256 == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_the_hub_is_asked_only_when_allowed(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="was not found"):
        local.find_folder(SOURCE, DataRoots(roots=(tmp_path,), allow_hub=False), ["test.jsonl"])


def test_an_archive_from_the_hub_is_unpacked_once(tmp_path: Path) -> None:
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


def test_an_archive_that_reaches_outside_is_refused(tmp_path: Path) -> None:
    (tmp_path / "evil").write_text("x")
    with tarfile.open(tmp_path / "data.tar", "w") as archive:
        archive.add(tmp_path / "evil", "../outside")
    source = HubSource(repository="x/mmlu", patterns=("data.tar",), archive="data.tar")
    with pytest.raises(DatasetError, match="could not be downloaded"):
        download(source, lambda _: tmp_path)
    assert not (tmp_path.parent / "outside").exists()


def test_two_samples_with_one_id_are_named_with_their_positions() -> None:
    task = build_task(Spec(name="passkey_lines"))
    samples = [Sample(id=name, prompt="p", target="t") for name in ("a", "b", "a")]
    with pytest.raises(DatasetError, match=r"samples 1 and 3 have the same id 'a'"):
        check_ids(task, Dataset(samples=samples, files=(), total=3))
