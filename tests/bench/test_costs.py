"""Test the gate of costs and the tables of costs by scale."""

import json
import re
import subprocess
import sys

import pytest

from tests.root import ROOT

FIGURES = {"yardstick_s": 0.5, "bare_ms": 0.2, "value": 1.0}
"""By the loop, the value is 2; by the bare client, it is 5."""


@pytest.fixture
def gate(monkeypatch):
    """Return the module of the table."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import gate_table

    return gate_table


def row(gate, **more):
    given = {"name": "a row", "unit": "s", "value": lambda figures: figures["value"], **more}
    return gate.RowOfGate(subjects=("help",), **given)


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ((2.0, 5.0), "as usual"),
        ((1.61, 4.01), "as usual"),
        ((1.59, 3.99), "MORE"),
        ((2.0, 3.0), "as usual"),  # on this machine, the bare client alone is fast
        ((1.0, 5.0), "as usual"),
        ((2.8, 7.0), "less"),
        ((2.8, 5.0), "as usual"),
    ],
)
def test_a_row_fails_by_more_than_a_quarter_by_both_yardsticks(gate, ratios, verdict):
    judged = gate.judge(row(gate), FIGURES, gate.Entry(1.0, ratios))
    assert (judged.verdict, judged.failed) == (verdict, verdict == "MORE")


@pytest.mark.parametrize(("slack", "verdict"), [(0.79, "MORE"), (0.81, "as usual")])
def test_a_figure_close_to_nothing_may_grow_by_its_slack(gate, slack, verdict):
    judged = gate.judge(row(gate, slack=slack), FIGURES, gate.Entry(0.2, (0.4, 1.0)))
    assert judged.verdict == verdict


@pytest.mark.parametrize(("count", "verdict"), [(1, "as usual"), (0, "MORE"), (2, "less")])
def test_one_count_more_is_too_much(gate, count, verdict):
    counted = row(gate, units=None, exact=True)
    assert gate.judge(counted, FIGURES, gate.Entry(count, (count,))).verdict == verdict


def test_a_row_that_the_table_lacks_fails(gate):
    judged = gate.judge(row(gate), FIGURES, None)
    assert judged.failed
    assert judged.verdict == "NOT IN THE TABLE"


def test_a_written_table_is_read_back_and_has_the_checksum(gate, tmp_path):
    written = tmp_path / "gate.yaml"
    gate.save([row(gate)], FIGURES, "because", written)
    table = gate.load(written)
    assert (table.reason, table.yardstick) == ("because", gate.checksum())
    assert table.rows == {"a row": gate.Entry(1.0, (2.0, 5.0))}


def git(folder, *arguments):
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", folder, *who, *arguments], check=True, capture_output=True)


@pytest.fixture
def checkout(gate, tmp_path, monkeypatch):
    """Return a repository with the files of the yardstick, a module, and a table."""
    for name in gate.YARDSTICK:
        file = tmp_path / f"bench/{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    (tmp_path / "serve_eval").mkdir()
    (tmp_path / "serve_eval/module.py").write_text("")
    monkeypatch.setattr(gate, "ROOT", tmp_path)
    monkeypatch.setattr(gate, "TABLE", tmp_path / "bench/gate.yaml")
    gate.save([row(gate)], FIGURES, "first", gate.TABLE)
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    return tmp_path


def commit(folder):
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "a change")


def problems(gate, base):
    return list(gate.misuses(base))


def test_a_changed_yardstick_needs_a_new_table(gate, checkout):
    assert problems(gate, None) == []
    (checkout / "bench/yardstick.py").write_text("faster = True")
    assert "the yardstick has changed" in problems(gate, None)[0]
    gate.save([row(gate)], FIGURES, "second", gate.TABLE)
    assert problems(gate, None) == []


@pytest.mark.parametrize("committed", [True, False])
def test_no_change_touches_the_yardstick_and_the_product(gate, checkout, committed):
    for name in ("bench/yardstick.py", "serve_eval/module.py"):
        (checkout / name).write_text("changed = True")
    gate.save([row(gate)], FIGURES, "second", gate.TABLE)
    if committed:
        commit(checkout)
    [told] = problems(gate, "HEAD^" if committed else "HEAD")
    assert "touches the yardstick (bench/yardstick.py) and the product" in told


def test_two_changes_may_touch_one_each(gate, checkout):
    (checkout / "bench/yardstick.py").write_text("changed = True")
    gate.save([row(gate)], FIGURES, "second", gate.TABLE)
    commit(checkout)
    (checkout / "serve_eval/module.py").write_text("changed = True")
    commit(checkout)
    assert problems(gate, "HEAD~2") == []


def test_a_changed_table_needs_a_new_reason(gate, checkout):
    gate.save([row(gate)], {**FIGURES, "value": 2.0}, "first", gate.TABLE)
    [told] = problems(gate, "HEAD")
    assert "gives no new reason" in told
    gate.save([row(gate)], {**FIGURES, "value": 2.0}, "A score is judged twice.", gate.TABLE)
    assert problems(gate, "HEAD") == []


def test_the_committed_table_is_that_of_the_committed_yardstick(gate):
    assert list(gate.misuses(None)) == []


@pytest.mark.slow  # two whole runs
def test_the_counts_are_those_of_the_table():
    command = [sys.executable, "bench/gate.py", "--only", "counted small,counted large"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "readings of scores in a run" in done.stdout


KINDS = ("short", "medium", "long", "long, streamed", "log-probs")
WIDEST = 100


def _python(*command):
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def costs(tmp_path_factory):
    """Return measurements in which each answer takes 0.1 ms, a token of a stream 0.01 ms."""
    path = tmp_path_factory.mktemp("scale") / "costs.json"
    kinds = []
    for name in KINDS:
        cpu_s = 0.02 if name == "long, streamed" else 1e-4
        rounds = {"cpu_s": [cpu_s], "user_s": [cpu_s], "system_s": [0.0], "wall_s": [cpu_s]}
        event_s = 1e-5 if name == "long, streamed" else 1e-4
        one = {"name": name, "rounds": rounds, "bytes": [4800.0, 900.0, 1200.0]}
        backlog_s = 0.005 if name == "long, streamed" else 0.0
        kinds.append({**one, "busy": [event_s], "idle": [event_s], "backlog_s": backlog_s})
    told = {"kinds": kinds, "levels": [[16, 1e-4, 70.0]], "growth_bytes": 64.0}
    path.write_text(json.dumps({**told, "around_s": 1.5}))
    return path


@pytest.fixture(scope="module")
def printed(costs):
    given = ("--costs", str(costs), "--tries", "0", "--most-samples", "20000")
    return _python("bench/scale.py", *given, "--answers-per-gpu", "medium=50")


def _rows(printed, title):
    """Return the rows of the first table whose title begins so, by their first cell."""
    body = re.split(rf"^{re.escape(title)}.*\n\n", printed, maxsplit=1, flags=re.MULTILINE)[1]
    body = body.split("\n\n")[0].split("\n```")[0]
    rows = {}
    for line in body.splitlines():
        cells = re.split(r" {2,}", line.strip())
        if not line.startswith(" ") and len(cells) > 1:
            rows[cells[0]] = cells[1:]
    return rows


def test_every_table_fits_and_has_a_row_per_kind(printed):
    assert max(map(len, printed.splitlines())) <= WIDEST
    assert tuple(_rows(printed, "One process")) == KINDS
    assert tuple(_rows(printed, "Assumed rates")) == KINDS
    fleets = {f"{gpus} GPUs: {kind}" for gpus in ("100", "1,000") for kind in KINDS}
    for title in ("Llama 3.3 70B: one", "GPT-OSS 20B: one", "Llama 3.3 70B: seconds"):
        rows = _rows(printed, title)
        assert set(rows) == fleets
        assert len({len(row) for row in rows.values()}) == 1


def test_a_given_rate_replaces_the_assumed_one(printed):
    rate, in_flight, busy, p50, p99, *_, shards = _rows(printed, "Llama 3.3 70B: one")[
        "100 GPUs: medium"
    ]
    assert (rate, busy, shards) == ("5,000", "50", "1")
    assert in_flight == f"{5000 * (0.2 + 150 * 0.03):,.0f}"
    # M/D/1 at half load: the mean wait is half a service, and most answers find nobody.
    assert 0.1 <= float(p50) < 0.15 < float(p99) < 0.6


def test_an_overloaded_process_says_so(printed):
    row = _rows(printed, "Llama 3.3 70B: one")["1,000 GPUs: medium"]
    assert row[2:] == ["500", "grows", "grows", "grows", "grows", "8"]


def test_the_slower_side_sets_the_length(printed):
    row = [
        float(cell.replace(",", ""))
        for cell in _rows(printed, "Llama 3.3 70B: seconds")["1,000 GPUs: medium"]
    ]
    endpoint, one, four = row[4:7]
    latency_s, start_s = 0.2 + 150 * 0.03, 1.5
    assert endpoint == pytest.approx(latency_s + 20_000 / 50_000, abs=0.01)
    assert one == pytest.approx(latency_s + start_s + 20_000 * 1e-4, rel=0.02)
    assert four == pytest.approx(latency_s + start_s + 20_000 * 1e-4 / 4, rel=0.02)


def test_late_tokens_of_a_stream_come_at_once(printed):
    row = _rows(printed, "Llama 3.3 70B: seconds")["1,000 GPUs: long, streamed"]
    assert float(row[5]) == pytest.approx(0.2 + 2000 * 0.03 + 1.5 + 20_000 * 0.005, rel=0.02)


def test_nothing_printed_names_a_place(printed):
    assert not re.search(r"\s/\w+/|" + re.escape(str(ROOT)), printed)


def test_an_unknown_kind_is_refused(costs):
    done = subprocess.run(
        [sys.executable, "bench/scale.py", "--costs", str(costs), "--answers-per-gpu", "tiny=1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "tiny: not one of short" in done.stderr


EACH_KIND = """
import sys
sys.path.insert(0, "bench")
import dataclasses
from kinds import KINDS, measure
from serving import Mode
for kind in KINDS:
    if kind.streamed:
        kind = dataclasses.replace(kind, tokens=100)
    flow = measure(kind, in_flight=8, n=40)
    print(kind.name, flow.cpu_s > 0, len(flow.times_s), round(flow.received_bytes), sep="|")
stamped = Mode(tokens=150, spread=True, step_ms=20, latency_ms=30, stamped=True)
flow = measure(KINDS[1], in_flight=8, n=40, mode=stamped)
print(0 < flow.delays_s.min() < flow.delays_s.max() < 10)
"""


@pytest.mark.slow
def test_every_kind_is_answered_and_measured():
    *kinds, stamped = _python("-c", EACH_KIND).splitlines()
    told = [line.split("|") for line in kinds]
    assert tuple(name for name, *_ in told) == KINDS
    assert {(positive, count) for _, positive, count, _ in told} == {("True", "32")}
    received = {name: int(number) for name, *_, number in told}
    assert received["short"] < received["medium"] < received["long"] < received["log-probs"]
    assert stamped == "True"


TABLES = ("One process", "Medium answers", "Assumed rates", "Delay of medium answers by load")


def test_the_page_has_the_tables_of_the_script(printed):
    page = (ROOT / "docs/measured/scale.md").read_text()
    for title in (*TABLES, "Llama 3.3 70B: one", "GPT-OSS 20B: seconds"):
        line = next(line for line in printed.splitlines() if line.startswith(title))
        assert line in page
        assert list(_rows(page, title)) == list(_rows(printed, title)) or title == TABLES[1]
    told = _rows(page, "Assumed rates")
    for kind, row in _rows(printed, "Assumed rates").items():
        assert told[kind][2:4] == row[2:4] or kind == "medium"  # a given rate
