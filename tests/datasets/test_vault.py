"""Test the vault with real files and a real HTTP server.

The hub is a folder that a function returns.
"""

import http.server
import json
import threading
import zipfile
from dataclasses import replace
from functools import partial

import pytest
from typer.testing import CliRunner

from serve_eval.cli.app import app
from serve_eval.datasets import local, vault
from serve_eval.datasets import source as datasets_source
from serve_eval.datasets.source import KNOWN, HubSource, Source, download
from serve_eval.errors import DatasetError

ROWS = b'{"question": "q", "answer": "#### 1"}\n'
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def site(tmp_path):
    """Serve a folder and yield it with its address."""
    folder = tmp_path / "site"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format, *args):  # noqa: A002
            pass

    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Quiet, directory=str(folder))
    ) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def source(site):
    folder, address = site
    (folder / "test.jsonl").write_bytes(ROWS)
    return Source(
        name="Toy",
        folders=("org/toy", "toy"),
        homepage="https://example.org/toy",
        licence="MIT",
        rows="1 test",
        urls={"test.jsonl": f"{address}/test.jsonl"},
    )


def test_an_unknown_checksum_is_recorded_at_the_first_fetch_and_kept(source, tmp_path):
    root = tmp_path / "root"
    found = vault.fetch("toy", source, root)
    assert [(one.path, one.state) for one in found] == [(root / "toy/test.jsonl", "ok")]
    entry = datasets_source.read(root).files["toy/test.jsonl"]
    assert (entry.sha256, entry.bytes, entry.licence, entry.known) == (
        datasets_source.sha256(ROWS),
        len(ROWS),
        "MIT",
        False,
    )
    assert vault.fetch("toy", source, root) == found
    assert datasets_source.read(root).files["toy/test.jsonl"] == entry


def test_a_source_that_changed_is_an_error_and_nothing_is_replaced(source, site, tmp_path):
    root = tmp_path / "root"
    vault.fetch("toy", source, root)
    (site[0] / "test.jsonl").write_bytes(ROWS * 2)
    with pytest.raises(DatasetError, match="the source has changed"):
        vault.fetch("toy", source, root)
    assert (root / "toy/test.jsonl").read_bytes() == ROWS
    assert vault.fetch("toy", source, tmp_path / "other")[0].sha256 == datasets_source.sha256(
        ROWS * 2
    )


def test_a_known_checksum_is_checked_before_anything_is_written(source, tmp_path):
    good = replace(source, sha256={"test.jsonl": datasets_source.sha256(ROWS)})
    vault.fetch("toy", good, tmp_path / "good")
    assert datasets_source.read(tmp_path / "good").files["toy/test.jsonl"].known
    bad = replace(source, sha256={"test.jsonl": "0" * 64})
    with pytest.raises(DatasetError, match="does not have the known checksum 0000"):
        vault.fetch("toy", bad, tmp_path / "bad")
    assert not (tmp_path / "bad").exists()


def test_a_changed_file_is_an_error_when_it_is_read_also_in_a_root_that_was_moved(source, tmp_path):
    vault.fetch("toy", source, tmp_path / "root")
    moved = (tmp_path / "root").rename(tmp_path / "moved")
    file = moved / "toy/test.jsonl"
    assert local.read_file(file).content == ROWS
    file.write_bytes(ROWS.replace(b"1", b"2"))
    with pytest.raises(
        DatasetError, match=r"test\.jsonl was changed since it was fetched"
    ) as caught:
        local.read_file(file)
    assert "serve-eval data fetch toy" in caught.value.hint


def test_verify_tells_what_is_the_same_what_changed_and_what_is_gone(source, tmp_path):
    root = tmp_path / "root"
    vault.fetch("toy", source, root)

    def states():
        return [one.state for one in vault.verify({"toy": source}, root)]

    assert states() == ["ok"]
    (root / "toy/test.jsonl").write_bytes(b"x")
    assert states() == ["changed"]
    (root / "toy/test.jsonl").unlink()
    assert states() == ["missing"]


def test_a_copy_that_was_put_in_place_by_hand_is_verified_by_its_known_checksum(source, tmp_path):
    known = replace(source, sha256={"test.jsonl": datasets_source.sha256(ROWS)})
    (tmp_path / "org/toy").mkdir(parents=True)
    file = tmp_path / "org/toy/test.jsonl"
    file.write_bytes(ROWS)
    assert [(one.path, one.state) for one in vault.verify({"toy": known}, tmp_path)] == [
        (file, "ok")
    ]
    file.write_bytes(b"x")
    assert [one.state for one in vault.verify({"toy": known}, tmp_path)] == ["changed"]
    assert vault.verify({"toy": source}, tmp_path) == []


def test_real_copies_have_the_checksums_that_are_known(shared):
    found = vault.verify(KNOWN, shared / "data")
    assert {one.data_set for one in found} == {"gsm8k", "humaneval", "aime24", "ifeval", "ifbench"}
    assert {one.state for one in found} == {"ok"}


def _hub(folder, archive=None, patterns=("main/*.parquet",)):
    return Source(
        name="Toy", folders=("toy",), homepage="x", licence="x", rows="x",
        hub=HubSource(repository="org/toy", patterns=patterns, archive=archive),
    )  # fmt: skip


def test_the_hub_s_files_are_copied_and_their_commit_is_recorded(tmp_path):
    snapshot = tmp_path / f"snapshots/{COMMIT}"
    (snapshot / "main").mkdir(parents=True)
    (tmp_path / "blob").write_bytes(b"PAR1")
    (snapshot / "main/test-0.parquet").symlink_to(tmp_path / "blob")
    (snapshot / "README.md").write_text("not asked for")
    root = tmp_path / "root"
    vault.fetch("toy", _hub(snapshot), root, from_hub=lambda _: snapshot)
    assert sorted(f.name for f in root.rglob("*") if f.is_file()) == [
        "serve-eval-datasets.json",
        "test-0.parquet",
    ]
    assert not (root / "toy/main/test-0.parquet").is_symlink()
    assert datasets_source.read(root).files["toy/main/test-0.parquet"].revision == COMMIT
    with pytest.raises(DatasetError, match="has none of"):
        vault.fetch("toy", _hub(snapshot, patterns=("a/*",)), root, from_hub=lambda _: snapshot)


def test_a_zip_of_the_hub_is_unpacked_inside_its_folder(tmp_path):
    with zipfile.ZipFile(tmp_path / "squality.zip", "w") as archive:
        archive.writestr("squality/validation.jsonl", "{}\n")
        archive.writestr("../outside", "x")
    source = _hub(tmp_path, "squality.zip", ("squality.zip",))
    from_hub = lambda hub: download(hub, lambda _: tmp_path)  # noqa: E731
    vault.fetch("toy", source, tmp_path / "root", from_hub=from_hub)
    assert (tmp_path / "root/toy/squality/validation.jsonl").read_text() == "{}\n"
    assert not (tmp_path.parent / "outside").exists()


def test_of_an_archive_only_the_wanted_members_are_kept(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in ("dev/a.csv", "auxiliary/b.csv"):
            archive.writestr(name, "x")
    source = _hub(tmp_path, "a.zip", ("a.zip",))
    assert source.hub is not None
    source = replace(source, hub=replace(source.hub, members=("dev/*.csv",)))
    found = vault.fetch(
        "toy", source, tmp_path / "root", from_hub=lambda hub: download(hub, lambda _: tmp_path)
    )
    assert [one.path for one in found] == [tmp_path / "root/toy/dev/a.csv"]


def test_nothing_is_asked_of_the_network_when_the_hub_is_offline(source, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DatasetError, match="HF_HUB_OFFLINE is set"):
        vault.fetch("toy", source, tmp_path / "root")


def test_an_address_that_has_nothing_is_an_error(source, tmp_path):
    gone = replace(source, urls={"test.jsonl": source.urls["test.jsonl"] + "x"})
    with pytest.raises(DatasetError, match="could not be downloaded: HTTPStatusError"):
        vault.fetch("toy", gone, tmp_path / "root")
    with pytest.raises(DatasetError, match="cannot be fetched"):
        vault.fetch("toy", replace(source, urls={}), tmp_path / "root")


def test_a_broken_manifest_is_named(tmp_path):
    (tmp_path / datasets_source.NAME).write_text("{")
    with pytest.raises(DatasetError, match=datasets_source.NAME):
        vault.verify(KNOWN, tmp_path)


def test_the_command_lists_fetches_verifies_and_says_where(source, tmp_path, monkeypatch):
    monkeypatch.setitem(KNOWN, "toy", source)
    root, run = tmp_path / "root", CliRunner()
    listed = run.invoke(app, ["data", "list", "datasets", "-v"]).output
    assert all(f"{name}: " in listed for name in KNOWN)
    assert "gated" in listed
    done = run.invoke(app, ["data", "fetch", "toy", "-o", str(root)])
    assert f"--dataset-root {root}" in done.output
    assert (
        json.loads((root / datasets_source.NAME).read_bytes())["files"]["toy/test.jsonl"][
            "data_set"
        ]
        == "toy"
    )
    monkeypatch.setenv("SERVE_EVAL_DATASET_ROOT", str(root))
    assert run.invoke(app, ["data", "path"]).output == f"{root}\n"
    assert run.invoke(app, ["data", "path", "toy"]).output == f"{root / 'toy'}\n"
    sound = " ".join(run.invoke(app, ["data", "check"]).output.split())
    assert sound == f"1 files in {root}, 0 changed {root}/toy/test.jsonl: ok, of toy"
    (root / "toy/test.jsonl").write_bytes(b"x")
    failed = run.invoke(app, ["data", "check", "toy"])
    assert f"1 files in {root}, 1 changed" in failed.output
    assert isinstance(failed.exception, DatasetError)
    assert failed.exception.exit_code == 2
    assert "unknown data set 'toi'" in str(run.invoke(app, ["data", "path", "toi"]).exception)


def test_the_path_of_a_set_is_printed_and_said_to_be_missing_where_it_is(tmp_path):
    run = CliRunner()

    def path(*arguments):
        done = run.invoke(
            app, ["data", "path", *arguments, "--dataset-root", str(tmp_path / "my root")]
        )
        return done.exit_code, done.stdout, done.stderr

    def missing(name):
        return (
            f"the folder does not exist yet. To create it: serve-eval data fetch {name} -o"
            f" '{tmp_path}/my root'\n"
        )

    assert path() == (2, f"{tmp_path}/my root\n", missing("NAME"))
    assert path("gsm8k") == (2, f"{tmp_path}/my root/gsm8k\n", missing("gsm8k"))
    (tmp_path / "my root/openai/gsm8k").mkdir(parents=True)  # a copy under the hub's name
    assert path() == (0, f"{tmp_path}/my root\n", "")
    assert path("gsm8k") == (0, f"{tmp_path}/my root/openai/gsm8k\n", "")
    (tmp_path / "my root/gpqa").touch()
    assert path("gpqa")[0] == 2
