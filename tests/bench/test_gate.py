"""Test what makes the gate of costs fail, with made-up figures; only counts are measured."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FIGURES = {"yardstick_s": 0.5, "bare_ms": 0.2, "value": 1.0}
"""By the loop, the value is 2; by the bare client, it is 5."""


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module of the table."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import gate_table

    return gate_table


def row(gate: Any, **more: Any) -> Any:
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
def test_a_row_fails_by_more_than_a_quarter_by_both_yardsticks(
    gate: Any, ratios: tuple[float, ...], verdict: str
) -> None:
    judged = gate.judge(row(gate), FIGURES, gate.Entry(1.0, ratios))
    assert (judged.verdict, judged.failed) == (verdict, verdict == "MORE")


@pytest.mark.parametrize(("slack", "verdict"), [(0.79, "MORE"), (0.81, "as usual")])
def test_a_figure_close_to_nothing_may_grow_by_its_slack(
    gate: Any, slack: float, verdict: str
) -> None:
    judged = gate.judge(row(gate, slack=slack), FIGURES, gate.Entry(0.2, (0.4, 1.0)))
    assert judged.verdict == verdict


@pytest.mark.parametrize(("count", "verdict"), [(1, "as usual"), (0, "MORE"), (2, "less")])
def test_one_count_more_is_too_much(gate: Any, count: int, verdict: str) -> None:
    counted = row(gate, units=None, exact=True)
    assert gate.judge(counted, FIGURES, gate.Entry(count, (count,))).verdict == verdict


def test_a_row_that_the_table_lacks_fails(gate: Any) -> None:
    judged = gate.judge(row(gate), FIGURES, None)
    assert judged.failed
    assert judged.verdict == "NOT IN THE TABLE"


def test_a_written_table_is_read_back_and_has_the_checksum(gate: Any, tmp_path: Path) -> None:
    written = tmp_path / "gate.yaml"
    gate.save([row(gate)], FIGURES, "because", written)
    table = gate.load(written)
    assert (table.reason, table.yardstick) == ("because", gate.checksum())
    assert table.rows == {"a row": gate.Entry(1.0, (2.0, 5.0))}


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", folder, *who, *arguments], check=True, capture_output=True)


@pytest.fixture
def checkout(gate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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


def commit(folder: Path) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "a change")


def problems(gate: Any, base: str | None) -> list[str]:
    return list(gate.misuses(base))


def test_a_changed_yardstick_needs_a_new_table(gate: Any, checkout: Path) -> None:
    assert problems(gate, None) == []
    (checkout / "bench/yardstick.py").write_text("faster = True")
    assert "the yardstick has changed" in problems(gate, None)[0]
    gate.save([row(gate)], FIGURES, "second", gate.TABLE)
    assert problems(gate, None) == []


@pytest.mark.parametrize("committed", [True, False])
def test_no_change_touches_the_yardstick_and_the_product(
    gate: Any, checkout: Path, committed: bool
) -> None:
    for name in ("bench/yardstick.py", "serve_eval/module.py"):
        (checkout / name).write_text("changed = True")
    gate.save([row(gate)], FIGURES, "second", gate.TABLE)
    if committed:
        commit(checkout)
    [told] = problems(gate, "HEAD^" if committed else "HEAD")
    assert "touches the yardstick (bench/yardstick.py) and the product" in told


def test_two_changes_may_touch_one_each(gate: Any, checkout: Path) -> None:
    (checkout / "bench/yardstick.py").write_text("changed = True")
    gate.save([row(gate)], FIGURES, "second", gate.TABLE)
    commit(checkout)
    (checkout / "serve_eval/module.py").write_text("changed = True")
    commit(checkout)
    assert problems(gate, "HEAD~2") == []


def test_a_changed_table_needs_a_new_reason(gate: Any, checkout: Path) -> None:
    gate.save([row(gate)], {**FIGURES, "value": 2.0}, "first", gate.TABLE)
    [told] = problems(gate, "HEAD")
    assert "gives no new reason" in told
    gate.save([row(gate)], {**FIGURES, "value": 2.0}, "A score is judged twice.", gate.TABLE)
    assert problems(gate, "HEAD") == []


def test_the_committed_table_is_that_of_the_committed_yardstick(gate: Any) -> None:
    assert list(gate.misuses(None)) == []


@pytest.mark.slow  # two whole runs
def test_the_counts_are_those_of_the_table() -> None:
    command = [sys.executable, "bench/gate.py", "--only", "counted small,counted large"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "readings of scores in a run" in done.stdout
