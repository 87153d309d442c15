"""Test that `view` prints plain lines and no traceback when a browser or a folder is gone."""

from __future__ import annotations

import http.client
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import environment, serve_eval

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
