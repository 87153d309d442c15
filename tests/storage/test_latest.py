import os
from pathlib import Path

import pytest

from serve_eval.errors import RunFolderError
from serve_eval.storage import command_folder
from serve_eval.storage.run_folder import hold

KINDS = pytest.mark.parametrize("links", [True, False], ids=["link", "file"])


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def _use(name, **more):
    with hold(Path(name), "plan.json", **more):
        pass


@KINDS
def test_it_points_to_the_folder_that_was_written_last(links, monkeypatch):
    if not links:
        monkeypatch.setattr(os, "symlink", _refuse)
    for name in ("outputs/one", "outputs/two", "outputs/suite/runs/three"):
        _use(name)
        assert command_folder.find_latest() == Path("outputs", name.split("/")[1])
    assert command_folder.find_latest().is_dir()
    assert Path("outputs/latest").is_symlink() is links
    assert sorted(one.name for one in Path("outputs").iterdir()) == [
        *("latest", "one", "suite", "two")
    ]


def _refuse(*arguments, **options):
    raise OSError("no links here")


def test_a_folder_elsewhere_or_only_read_changes_nothing():
    _use("outputs/one")
    _use("outputs/two")
    _use("elsewhere")
    _use("outputs/one", writes=False)
    assert command_folder.find_latest() == Path("outputs/two")
    _use("outputs/new", writes=False)
    assert command_folder.find_latest() == Path("outputs/new")
    _use("outputs/latest")
    assert command_folder.find_latest() == Path("outputs/new")


def test_a_folder_of_the_user_stays():
    Path("outputs/latest").mkdir(parents=True)
    _use("outputs/one")
    assert command_folder.find_latest() == Path("outputs/latest")
    assert not Path("outputs/latest").is_symlink()


def test_what_is_gone_is_told():
    with pytest.raises(RunFolderError, match="has no run"):
        command_folder.find_latest()
    _use("outputs/one")
    (Path("outputs/one") / "lock").unlink()
    Path("outputs/one").rmdir()
    with pytest.raises(RunFolderError, match="has no run"):
        command_folder.find_latest()
    Path("outputs/latest").unlink()
    Path("outputs/latest").write_text("one")
    with pytest.raises(RunFolderError, match="names outputs/one, which is not there"):
        command_folder.find_latest()


def test_of_a_folder_that_only_holds_runs_the_last_one_is_found():
    for time, name in enumerate(("nights/b", "nights/a", "nights/c")):
        Path(name).mkdir(parents=True)
        Path(name, "plan.json").write_text("{}")
        os.utime(Path(name, "plan.json"), (time, [2.0, 9.0, 5.0][time]))
    Path("nights/notes").mkdir()
    Path("nights/later").symlink_to("a")
    assert command_folder.find_last_below(Path("nights")) == Path("nights/a")
    assert command_folder.find_last_below(Path("nights/a")) is None
    assert command_folder.find_last_below(Path("nights/notes")) is None
    Path("nights/compare.json").write_text("{}")
    assert command_folder.find_last_below(Path("nights")) is None
