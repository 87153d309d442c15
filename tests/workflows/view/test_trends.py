"""Test which files of a folder are served, its trends and its map of verdicts."""

import http.client
import math
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from serve_eval.report.page.content import PictureSection
from serve_eval.schema import VerdictOutcome
from serve_eval.series.chart import draw_values, find_alarm, try_chart
from serve_eval.series.history import sort_runs
from serve_eval.series.read_runs import FinishedRun, read_runs
from serve_eval.workflows.view import document as view
from serve_eval.workflows.view import open_below
from serve_eval.workflows.view.document import make_document
from serve_eval.workflows.view.listing import NIGHTS, Links, draw_map, list_nights, write_letters
from serve_eval.workflows.view.overview import Ending, SeriesEnd
from tests.cli.command import environment, serve_eval
from tests.report.document.made.many_runs import make_found


@pytest.fixture
def folder(tmp_path):
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


def test_a_file_below_is_opened_with_its_type(folder):
    file, kind = open_below(folder, ["run", "report.html"])
    with file:
        assert file.read() == b"page"
    assert kind == "text/html; charset=utf-8"


def test_media_that_a_run_keeps_are_served(folder):
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
def test_nothing_else_is_opened(path, folder):
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(FileNotFoundError):
        open_below(folder, path.split("/"))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


PLAIN = re.compile(r"[\x20-\x7e\n]*")


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_browser_that_leaves_and_a_night_that_vanishes_are_no_traceback(
    tmp_path, term, simulated_here
):
    asked = "run --launcher simulated -m m -t word_problems"
    for night in ("one", "two"):
        serve_eval(f"{asked} --no-reference --limit 10 -o {tmp_path}/{night}", exits=3)
    view = subprocess.Popen(
        [sys.executable, "-m", "serve_eval", "runs", "view", str(tmp_path)],
        env=environment(TERM=term),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
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


def _get(host, port, path):
    connection = http.client.HTTPConnection(host, port, timeout=60)
    connection.request("GET", path)
    text = connection.getresponse().read().decode()
    connection.close()
    return text


T0 = datetime(2026, 10, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Twenty nights that decline from the eleventh on, from the report of one run."""
    folder = tmp_path_factory.mktemp("trends")
    flags = "--launcher simulated -m org/m --tasks word_problems --limit 20"
    serve_eval(f"run --no-reference -o {folder}/run {flags}")
    [made], _ = read_runs(folder)
    return [
        FinishedRun(
            folder=Path("outputs") / f"night_{i}",
            report=_change(made.report, 80.0 - 4.0 * max(0, i - 10) + math.sin(i), i),
            began=T0 + timedelta(days=i),
            sessions=str(i).encode(),
        )
        for i in range(20)
    ]


def _change(report, value, i):
    task = report.tasks[0]
    outcome = VerdictOutcome.FAIL if i in (3, 19) else VerdictOutcome.PASS
    verdict = replace(
        task.verdict,
        rule="classic",
        outcome=outcome,
        evaluated=value,
        reference=80.0,
        threshold=77.5,
    )
    changed = replace(task, result=replace(task.result, value=value, planned=1319), verdict=verdict)
    return replace(report, tasks=(changed,))


def test_a_decline_alarms_and_the_picture_has_the_reference(runs):
    [series] = sort_runs(runs).series
    charted, warnings = try_chart(series)
    assert charted is not None
    assert "The decline probably began on 2026-10-11" in find_alarm(charted)
    assert not any("decline probably began" in line for line in warnings)
    picture = draw_values(series, charted, series.name)
    for text in ("20 runs", "Reference 80, threshold 77.5", "the first has 80", "alarm"):
        assert text in picture.description
    assert picture.ruler.rows[-1].text.endswith("FAIL ALARM")
    assert "ALARM" not in picture.ruler.rows[0].text
    assert picture.ruler.rows[-1].interval == runs[-1].report.tasks[0].result.interval


def test_a_decline_without_a_failure_is_an_alarm_since_the_night_on_which_it_began(
    runs,
):
    document = make_document(make_found(runs[:19]))  # without the last failure
    assert document.verdict == "ALARM"
    [one] = document.conclusions
    assert "The decline probably began on 2026-10-11" in one.cause
    assert document.overview.rows[0][-1].text == "10-11"
    assert document.commands == ["serve-eval runs trend outputs --task word_problems --model org/m"]
    assert make_document(make_found(runs)).verdict == "FAIL"


def test_only_the_first_series_are_drawn(runs, monkeypatch):
    other = [
        replace(run, report=replace(run.report, plan=replace(run.report.plan, model="org/few")))
        for run in runs[:3]
    ]
    monkeypatch.setattr(view, "MOST_DRAWN", 1)
    sections = make_document(make_found([*other, *runs])).make_page_blocks()
    [drawn] = [one for one in sections if isinstance(one, PictureSection)]
    assert (drawn.title, drawn.closed) == ("Trends of 1 series", True)
    assert "org/m" in drawn.pictures[0].title


T0_NIGHT_MAP = datetime(2026, 1, 31, 23, tzinfo=UTC)


def _series(name, *endings, folder=Path("f")):
    """Return a series with an outcome so many hours after T0."""
    return SeriesEnd(
        name=name,
        endings=[
            Ending(
                outcome=outcome,
                began=T0_NIGHT_MAP + timedelta(hours=hours),
                folder=folder / f"{hours}",
                value="80.0",
                interval="77.5 to 82.4",
                against="90.0",
                drop="10.0 below",
            )
            for hours, outcome in endings
        ],
        last_night=T0_NIGHT_MAP,
    )


def _cells(ends, folder=Path("f")):
    return [row[1:] for row in draw_map(ends, Links(folder=folder, served=False)).rows]


def test_a_cell_is_the_worst_of_its_night_and_says_its_value_and_interval(tmp_path):
    one = _series("s", (0, "PASS"), (2, "PASS"), (3, "FAIL"), (4, "PASS"), folder=tmp_path)
    (tmp_path / "3").mkdir()
    (tmp_path / "3/report.html").touch()
    [[first, second]] = _cells([one], tmp_path)
    assert (first.text, first.state, first.href) == ("✓", "pass", "")
    assert (second.text, second.state, second.href) == ("✗", "fail", "3/report.html")
    assert second.note == (
        "2026-02-01 02:00 FAIL 80.0 (77.5 to 82.4), 10.0 below reference 90.0; the worst of 3 that"
        " night"
    )


@pytest.mark.parametrize(
    ("outcome", "mark", "letter", "state"),
    [
        ("PASS", "✓", "P", "pass"),
        ("FAIL", "✗", "F", "fail"),
        ("ERROR", "!", "E", "fail"),
        ("KILLED", "!", "E", "fail"),
        ("INCONCLUSIVE", "?", "?", "warn"),
        ("INTERRUPTED", "?", "?", "warn"),
        ("UNSUPPORTED", "?", "?", "warn"),
        ("NO REFERENCE", "·", ".", "none"),
        ("INTEGRATION TEST", "·", ".", "none"),
        ("SHARD", "·", ".", "none"),
    ],
)
def test_each_outcome_has_a_mark_and_no_reference_is_quiet(outcome, mark, letter, state):
    one = _series("s", (0, outcome))
    [[cell]] = _cells([one])
    assert (cell.text, cell.state) == (mark, state)
    assert write_letters(one, list_nights([one])) == letter


def test_nights_are_dates_with_a_result_and_only_the_last_ones_are_shown():
    old = _series("old", *((24 * day, "PASS") for day in range(40)))
    new = _series("new", (24 * 45, "FAIL"))
    assert len(list_nights([old, new])) == NIGHTS
    table = draw_map([old, new], Links(folder=Path("f"), served=False))
    assert table.title == "Verdicts of the last 30 nights"
    assert [len(row) for row in table.rows] == [NIGHTS + 1] * 2
    assert [cell.text for cell in table.rows[0][-2:]] == ["✓", ""]
    assert [cell.text for cell in table.rows[1][-2:]] == ["", "✗"]
    # A month is named where it begins; each heading has its whole date.
    named = {column.name: column.note for column in table.columns if "-" in column.name}
    assert named == {"02-11": "2026-02-11", "03-01": "2026-03-01"}
    assert table.columns[-1].note == "2026-03-17"
    assert write_letters(new, list_nights([old, new], 3)) == "--F"
