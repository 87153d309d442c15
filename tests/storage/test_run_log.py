"""The log of a run: what it has, and what it never has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from serve_eval.client.connection import SecretMask
from serve_eval.schema import Connection
from serve_eval.storage import sessions
from serve_eval.storage.sessions import RunLog
from tests.cli.command import serve_eval

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z  (.+)")
RUN = ("run", "--launcher", "simulated", "--model", "m", "-t", "passkey_short", "--no-reference")


def _lines(folder: Path) -> list[str]:
    found = [LINE.fullmatch(line) for line in (folder / "run.log").read_text().splitlines()]
    return [match[1] for match in found if match is not None]


@pytest.mark.usefixtures("simulated_here")
def test_a_session_logs_its_start_probes_failures_and_end(tmp_path: Path) -> None:
    out = tmp_path / "out"
    flags = [*RUN, "-o", str(out), "--set", "launcher.accuracy=0.7"]
    refusing = ["--set", "launcher.failure_rate=0.05", "--set", "launcher.failure_kind=500"]
    done = serve_eval(*flags, *refusing, "--limit", "60")
    lines = _lines(out)
    assert len(lines) == len((out / "run.log").read_text().splitlines())
    assert lines[0].startswith("start: serve-eval")
    told = "\n".join(lines)
    for text in (
        "launcher simulated, tasks passkey_short",
        "endpoint http://127.0.0.1:",
        "probe: completions works",
        "passkey_short: 60 planned, 0 of them answered before",
        "NO REFERENCE: passkey_short: value",
        "of 60 scored, failed: ",
        "warning: the endpoint was simulated",
    ):
        assert text in told, (text, told, done.stderr)
    assert re.search(r"passkey_short: \d+ done, failed: \d+ ", told)
    assert lines[-1].startswith("end: exit code 3, ")
    again = serve_eval("judge", out)
    assert (again.returncode, _lines(out)) == (3, lines), "a command that only reads writes no line"
    assert (out / "run.log").stat().st_mode & 0o077 == 0


def test_a_session_that_fails_logs_why(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = serve_eval(
        *("run", "--base-url", "127.0.0.1:9", "-m", "m", "-t", "passkey_short", "--no-reference"),
        *("-o", out, "--set", "passkey_short.num_samples=3"),
    )
    assert done.returncode == 4
    assert _lines(out)[-1].startswith("end: EndpointError: ")


def test_secrets_and_control_characters_are_replaced(tmp_path: Path) -> None:
    mask = SecretMask(Connection(), {"OPENAI_API_KEY": "abcdefgh12345678"})
    RunLog(tmp_path, mask).note("the key abcdefgh12345678 was\nrefused \x1b[31m" + "x" * 9999)
    [line] = _lines(tmp_path)
    assert line.startswith("the key *** was refused ?[31mxxx")
    assert len(line) == sessions.MOST_CHARACTERS


def test_the_log_is_bounded_and_never_stops_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RunLog(tmp_path, str)
    monkeypatch.setattr(sessions, "MOST_BYTES", 5000)
    for number in range(1000):
        log.note(f"line {number}")
    sizes = [(tmp_path / name).stat().st_size for name in ("run.log", "run.log.1")]
    assert max(sizes) <= 5000
    assert _lines(tmp_path)[-1] == "line 999"
    RunLog(tmp_path / "missing", str).note("ignored")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/run.log").symlink_to(tmp_path / "other")
    RunLog(tmp_path / "linked", str).note("ignored")
    assert not (tmp_path / "other").exists()
