"""Test that only files below the folder are served, for any path or link."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from serve_eval.workflows.view.server import open_below


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    top = tmp_path / "top"
    (top / "run").mkdir(parents=True)
    (top / "run/report.html").write_text("page")
    (top / "run/samples.jsonl").write_text("no")
    (top / "run/.hidden.html").write_text("no")
    (top / ".secret").mkdir()
    (top / ".secret/a.html").write_text("no")
    (tmp_path / "outside.html").write_text("no")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/a.html").write_text("no")
    (top / "link.html").symlink_to(tmp_path / "outside.html")
    (top / "linked").symlink_to(tmp_path / "elsewhere")
    (top / "folder.html").mkdir()
    os.mkfifo(top / "pipe.html")
    return top


def test_a_file_below_is_opened_with_its_type(folder: Path) -> None:
    file, kind = open_below(folder, ["run", "report.html"])
    with file:
        assert file.read() == b"page"
    assert kind == "text/html; charset=utf-8"


def test_media_that_a_run_keeps_are_served(folder: Path) -> None:
    (folder / "run/media").mkdir()
    for name, found in (("a.png", "image/png"), ("a.wav", "audio/wav"), ("a.mp4", "video/mp4")):
        (folder / "run/media" / name).write_bytes(b"medium")
        file, kind = open_below(folder, ["run", "media", name])
        with file:
            assert (file.read(), kind) == (b"medium", found)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "..",
        "../outside.html",
        "run/../../outside.html",
        "run//report.html",
        "./run/report.html",
        "/etc/passwd",
        "link.html",
        "linked/a.html",
        "folder.html",
        "pipe.html",
        ".secret/a.html",
        "run/.hidden.html",
        "run/samples.jsonl",
        "run/report.html/x.html",
        "run\\report.html",
        "run/report\0.html",
        "none.html",
        "\ud800.html",
    ],
)
def test_nothing_else_is_opened(path: str, folder: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(FileNotFoundError):
        open_below(folder, path.split("/"))
    assert len(list(Path("/proc/self/fd").iterdir())) == before
