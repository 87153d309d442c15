"""Test that only files below a folder are served, without tracebacks when it is gone."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from serve_eval.workflows.view.server import open_below
from tests.cli.command import environment, serve_eval


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


PLAIN = re.compile(r"[\x20-\x7e\n]*")


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_browser_that_leaves_and_a_night_that_vanishes_are_no_traceback(
    tmp_path: Path, term: str, simulated_here: None
) -> None:
    asked = ("run", "--launcher", "simulated", "-m", "m", "-t", "word_problems")
    for night in ("one", "two"):
        done = serve_eval(*asked, "--no-reference", "--limit", "10", "-o", tmp_path / night)
        assert done.returncode == 3, done.stderr
    view = subprocess.Popen(
        [sys.executable, "-m", "serve_eval", "runs", "view", str(tmp_path)],
        env=environment(TERM=term),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert view.stdout is not None
        told = [view.stdout.readline()]
        while told[-1] and not told[-1].startswith("http://"):
            told.append(view.stdout.readline())
        assert PLAIN.fullmatch("".join(told)), told
        found = re.fullmatch(r"http://([\d.]+):(\d+)(/.*/)\n", told[-1])
        assert found is not None, told
        host, port, path = found[1], int(found[2]), found[3]
        for _ in range(3):
            with socket.create_connection((host, port)) as browser:
                browser.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
                browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        shutil.rmtree(tmp_path / "two")
        assert "1 run" in _get(host, port, path)
        shutil.rmtree(tmp_path)
        assert "no such folder" in _get(host, port, path)
    finally:
        view.send_signal(signal.SIGINT)
        _, stderr = view.communicate(timeout=60)
    assert view.returncode == 0
    assert "Traceback" not in stderr
    assert "Exception" not in stderr


def _get(host: str, port: int, path: str) -> str:
    connection = http.client.HTTPConnection(host, port, timeout=60)
    connection.request("GET", path)
    text = connection.getresponse().read().decode()
    connection.close()
    return text
