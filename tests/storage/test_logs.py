"""Test the log of a run, and the times of lines in logs of servers."""

import json
import os
import re
import time
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.client.connection import SecretMask
from serve_eval.errors import RunFolderError
from serve_eval.masking import Masking
from serve_eval.schema import Connection, ServerInfo
from serve_eval.storage import command_folder, server_logs, sessions
from serve_eval.storage.ownership import add_signature
from serve_eval.storage.run_folder import hold
from serve_eval.storage.server_logs import (
    between,
    errors_near,
    hide_secrets,
    log_files,
    read,
    time_of,
    trace_files,
)
from serve_eval.storage.sessions import RunLog, read_sessions
from tests.cli.command import serve_eval

KINDS = pytest.mark.parametrize("links", [True, False], ids=["link", "file"])


@pytest.fixture
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def _use(name, **more):
    with hold(Path(name), "plan.json", **more):
        pass


@pytest.mark.usefixtures("_here")
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


@pytest.mark.usefixtures("_here")
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


@pytest.mark.usefixtures("_here")
def test_a_folder_of_the_user_stays():
    Path("outputs/latest").mkdir(parents=True)
    _use("outputs/one")
    assert command_folder.find_latest() == Path("outputs/latest")
    assert not Path("outputs/latest").is_symlink()


@pytest.mark.usefixtures("_here")
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


@pytest.mark.usefixtures("_here")
def test_of_a_folder_that_only_holds_runs_the_last_one_is_found():
    for moment, name in enumerate(("nights/b", "nights/a", "nights/c")):
        Path(name).mkdir(parents=True)
        Path(name, "plan.json").write_text("{}")
        os.utime(Path(name, "plan.json"), (moment, [2.0, 9.0, 5.0][moment]))
    Path("nights/notes").mkdir()
    Path("nights/later").symlink_to("a")
    assert command_folder.find_last_below(Path("nights")) == Path("nights/a")
    assert command_folder.find_last_below(Path("nights/a")) is None
    assert command_folder.find_last_below(Path("nights/notes")) is None
    Path("nights/compare.json").write_text("{}")
    assert command_folder.find_last_below(Path("nights")) is None


LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z  (.+)")
RUN = ("run", "--launcher", "simulated", "--model", "m", "-t", "passkey_short", "--no-reference")


def _lines(folder):
    found = [LINE.fullmatch(line) for line in (folder / "run.log").read_text().splitlines()]
    return [match[1] for match in found if match is not None]


@pytest.mark.usefixtures("simulated_here")
def test_a_session_logs_its_start_probes_failures_and_end(tmp_path):
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


def test_a_session_that_fails_logs_why(tmp_path):
    out = tmp_path / "out"
    done = serve_eval(
        *("run", "--base-url", "127.0.0.1:9", "-m", "m", "-t", "passkey_short", "--no-reference"),
        *("-o", out, "--set", "passkey_short.num_samples=3"),
    )
    assert done.returncode == 4
    assert _lines(out)[-1].startswith("end: EndpointError: ")


def test_secrets_and_control_characters_are_replaced(tmp_path):
    mask = SecretMask(Connection(), {"OPENAI_API_KEY": "abcdefgh12345678"})
    RunLog(tmp_path, mask).note("the key abcdefgh12345678 was\nrefused \x1b[31m" + "x" * 9999)
    [line] = _lines(tmp_path)
    assert line.startswith("the key *** was refused ?[31mxxx")
    assert len(line) == sessions.MOST_CHARACTERS


def test_the_log_is_bounded_and_never_stops_a_run(tmp_path, monkeypatch):
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


NOON = datetime(2026, 11, 21, 12, 0, 0).astimezone().timestamp()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("[11/21/2026-12:00:00] [TRT-LLM] [E] Failed", NOON),
        ("[rank0] [11/21/2026-12:00:00] [TRT-LLM] [RANK 0] [I] fine", NOON),
        ("2026-11-21 12:00:00,250 - ERROR - x", NOON + 0.25),
        ("2026-11-21 12:00:00.5 ERROR x", NOON + 0.5),
        ("ERROR 2026-11-21T12:00:00Z x", 1795262400.0),
        ("2026-11-21T14:00:00+02:00 x", 1795262400.0),
        ("2026-11-21T14:00:00.123456789+0200 x", 1795262400.123456),
        ("INFO:     Started server process", None),
        ("Traceback (most recent call last):", None),
        ("[13/41/2026-12:00:00] no such day", None),
        ("2026-11-21 12:00:00-9912 is a number behind a time, and no zone", None),
        ("0001-01-01 00:00:00 is before what a machine can count", None),
        (" " * 80 + "2026-11-21 12:00:00 is no time of a line that far in", None),
        ("", None),
    ],
)
def test_when_a_line_was_written(line, told):
    assert time_of(line) == (None if told is None else pytest.approx(told, abs=1e-5))


@given(st.text(max_size=200))
def test_any_text_has_a_time_or_none(text):
    told = time_of(text)
    assert told is None or told > -1e12


@given(st.integers(0, 2**31))
def test_what_trtllm_writes_is_read_to_the_second(seconds):
    line = time.strftime("[%m/%d/%Y-%H:%M:%S] [TRT-LLM] [E] x", time.localtime(seconds))
    told = time_of(line)
    # An hour that the end of summer time repeats may be either of the two.
    assert abs(told - seconds) in (0, 3600)


def test_lines_without_a_time_go_with_the_one_before(tmp_path):
    log = tmp_path / "gen_0.log"
    log.write_text(
        "starting\n2026-11-21 11:00:00 ERROR too early\n2026-11-21 12:00:05 fine\n2026-11-21"
        " 12:00:06 ERROR boom\nTraceback (most recent call last):\n  File x\nRuntimeError: CUDA out"
        " of memory\n2026-11-21 13:00:00 ERROR late\n"
    )
    near = errors_near(log, NOON, before_s=60, after_s=60, most=6)
    assert near == [
        "2026-11-21 12:00:06 ERROR boom",
        "Traceback (most recent call last):",
        "RuntimeError: CUDA out of memory",
    ]
    assert len(between(read(log), NOON, NOON + 60)) == 5
    assert errors_near(log, NOON + 600, before_s=60, after_s=60, most=6) == []


def test_of_a_log_without_times_the_last_errors_are_told_as_such(tmp_path):
    log = tmp_path / "server.log"
    log.write_text("INFO:     fine\nValueError: one\nValueError: two\n")
    assert errors_near(log, NOON, before_s=60, after_s=60, most=1) == ["(no time) ValueError: two"]


@pytest.mark.parametrize(
    "text", ["no error here", "Terrors of the deep", "errors: 0", "the OOMPH of it"]
)
def test_what_tells_of_no_error(text, tmp_path):
    (tmp_path / "a.log").write_text(f"{text}\n")
    assert not any(line.error for line in read(tmp_path / "a.log"))


def test_the_logs_of_a_run_are_those_in_its_folder_and_those_that_are_named(tmp_path):
    run, elsewhere = tmp_path / "out/a", tmp_path / "held"
    for folder in (run / "logs", tmp_path / "out/servers/a/logs", elsewhere):
        folder.mkdir(parents=True)
    inside, beside, named = (
        run / "logs/ctx_0.log",
        tmp_path / "out/servers/a/logs/gen_0.log",
        elsewhere / "front.log",
    )
    for file in (inside, beside, named):
        file.write_text("x\n")
    info = {
        "logs": {"front": str(named), "gone": str(elsewhere / "gone.log")},
        "log_file": str(inside),
    }
    session = {"endpoint": {"base_url": "http://h/v1", "info": info}}
    assert log_files(run, _noted(run, add_signature(session, run))) == [inside, beside, named]
    (link := tmp_path / "latest").symlink_to(run)
    assert log_files(link, []) == [link / "logs/ctx_0.log"]
    assert log_files(run, _noted(run, session)) == [
        inside,
        beside,
    ], "who wrote this could name any file"
    assert log_files(run, _noted(run, add_signature(session, elsewhere))) == [inside, beside]
    assert list(read(elsewhere / "gone.log")) == []


def _noted(run, session):
    """Return the only session of a run folder, as it is read there."""
    (run / "environment.json").write_text(json.dumps([session]))
    return read_sessions(run)


def test_no_link_makes_a_log_of_another_file(tmp_path):
    run = tmp_path / "out/a"
    (mine := tmp_path / "mine").mkdir()
    (mine / "own.log").write_text("x\n")
    for folder in (run / "logs", tmp_path / "out/servers/a"):
        folder.mkdir(parents=True)
    (run / "logs/a.log").symlink_to(mine / "own.log")
    (tmp_path / "out/servers/a/logs").symlink_to(mine)
    assert log_files(run, []) == []
    (run / "logs/a.log").unlink()
    (run / "logs").rmdir()
    (run / "logs").symlink_to(mine)
    assert log_files(run, []) == []


def test_secrets_are_starred_out_in_place_while_the_server_writes_on(tmp_path):
    key = "sk-live-Q7pRz2VwX9mT4kLd"
    log, plain, gone = tmp_path / "a.log", tmp_path / "b.log", tmp_path / "c.log"
    plain.write_bytes(b"\xff caf\xe9\n")
    with log.open("ab", buffering=0) as server:
        server.write(
            f"caf\u00e9 {key}\n{{'Authorization': 'Bearer {key}'}} and {key.upper()}\nno line's end"
            f" {key}".encode()
        )
        before = log.stat().st_ino, log.stat().st_size
        hide_secrets([gone, plain, log], Masking([key]))
        server.write(b" and more\n")
    stars = "*" * len(key)
    said = (
        f"caf\u00e9 {stars}\n{{'Authorization': 'Bearer {stars}'}} and {stars}\nno line's end"
        f" {stars} and more\n"
    )
    assert log.read_text() == said
    assert (log.stat().st_ino, log.stat().st_size) == (before[0], before[1] + len(" and more\n"))
    assert plain.read_bytes() == b"\xff caf\xe9\n"


def test_a_log_that_cannot_be_overwritten_is_named(tmp_path, monkeypatch):
    key = "sk-in-a-log-of-root"
    (plain := tmp_path / "plain.log").write_text("nothing\n")
    (log := tmp_path / "a.log").write_text(f"one\n{key}\n{key}\n")
    monkeypatch.setattr(server_logs, "_overwritten", lambda *given: False)
    assert hide_secrets([plain, log], Masking([key])) == [log]


def test_traces_are_starred_of_servers_that_were_launched_alone(tmp_path):
    """Traces of a running orchestrator belong to its owner."""
    (hour := tmp_path / "2026-09-23T14").mkdir()
    (hour / "requests-1.jsonl").write_text("{}\n")
    (hour / "responses-1.jsonl").write_text("{}\n")
    told = {"perf_metrics": {"output_dir": None, "trace_dir": str(tmp_path)}}
    assert trace_files(ServerInfo.read({**told, "log_dir": "logs"})) == [hour / "requests-1.jsonl"]
    odd = [
        told,
        {"log_dir": "logs"},
        {"log_dir": "l", "perf_metrics": {"trace_dir": None}},
    ]
    assert [trace_files(ServerInfo.read(one)) for one in odd] == [[], [], []]
