"""A table with several sampling seeds of a deployment says of which its figures are."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean, stdev

import pytest

from serve_eval.report.results_table.cell import Draw, ResultCell
from serve_eval.schema import VerdictOutcome
from serve_eval.series.draws import match_draws
from tests.cli.command import serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")

HOT = (
    "--set=word_problems.num_samples=40",
    "--set=word_problems.temperature=0.8",
    "--set=launcher.varied=true",
)


def _run(folder: Path, seed: int, damage: float) -> None:
    done = serve_eval(
        "run", "--launcher", "simulated", "-m", "org/m", "-t", "word_problems", "--no-reference",
        *HOT, "--sampling-seed", str(seed), f"--set=launcher.damage={damage}", "-o", folder,
    )  # fmt: skip
    assert (folder / "report.json").exists(), done.stderr


def _export(*arguments: str | Path) -> str:
    done = serve_eval("export", *arguments, COLUMNS="200")
    assert done.returncode == 0, done.stderr
    return done.stdout


def _values(run: Path) -> dict[str, float]:
    lines = (run / "scores/word_problems.jsonl").read_text().splitlines()
    return {one["id"]: one["value"] for one in map(json.loads, lines)}


def _average(runs: Iterable[Path]) -> float:
    """Return the mean over prompts of the mean over runs, in points."""
    found: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        for prompt, value in _values(run).items():
            found[prompt].append(value)
    return 100.0 * fmean(map(fmean, found.values()))


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory, simulated_here: None) -> Path:
    """Return runs with seeds 1 to 3 of the baseline, and 1 and 2 of a damaged deployment."""
    top = tmp_path_factory.mktemp("seeds")
    for name, damage, drawn in (("bf16", 0.0, (1, 2, 3)), ("int3", 0.6, (1, 2))):
        for seed in drawn:
            _run(top / f"{name}-seed{seed}", seed, damage)
    return top


def test_a_difference_is_the_mean_over_the_seeds_of_both_sides(seeds: Path) -> None:
    asked = (seeds, "--differences", "--baseline", "bf16")
    each = {
        (name, seed): 100.0 * fmean(_values(seeds / f"{name}-seed{seed}").values())
        for name in ("bf16", "int3")
        for seed in (1, 2)
    }
    [row] = csv.DictReader(io.StringIO(_export(*asked, "--format", "csv"), newline=""))
    before, after = (
        _average(seeds / f"{name}-seed{seed}" for seed in (1, 2)) for name in ("bf16", "int3")
    )
    assert float(row["word_problems difference"]) == pytest.approx(after - before)
    assert float(row["word_problems value"]) == pytest.approx(after)
    assert float(row["word_problems reference"]) == pytest.approx(before)
    assert row["word_problems sampling seeds"] == "the sampling seeds 1, 2 that both sides have"
    text = _export(*asked, "--format", "table")
    first, last = (f"{each['int3', seed] - each['bf16', seed]:+.1f}" for seed in (1, 2))
    assert (
        "* int3: word_problems: the mean over the sampling seeds 1, 2 that both sides have:"
        f" {first}, {last}, sd " in text
    )
    assert "* :" not in text


def test_a_note_has_no_differences_from_another_reference(tmp_path: Path) -> None:
    """The chat runs have a registered reference, and the baseline was asked otherwise."""
    asked = ("--launcher", "simulated", "-m", "org/m", "-t", "word_problems", *HOT)
    chat = (*asked, "--apply-chat-template")
    refs = ("--references-dir", str(tmp_path / "refs"))
    taken = serve_eval("references", "take", *chat, "--runs", "2", *refs, "-o", tmp_path / "taken")
    assert taken.returncode == 0, taken.stderr
    _run(tmp_path / "runs/bf16", 1, 0.0)
    _run(tmp_path / "runs/int3", 1, 0.6)
    for seed in "12":
        damaged = ("--sampling-seed", seed, "--set=launcher.damage=0.6")
        done = serve_eval("run", *chat, *damaged, *refs, "-o", tmp_path / f"runs/chat-seed{seed}")
        assert (tmp_path / f"runs/chat-seed{seed}/report.json").exists(), done.stderr
    own = _export(tmp_path / "runs", "--differences", "--format", "table")
    assert "of the 2 differences" in own
    text = _export(tmp_path / "runs", "--differences", "--baseline", "bf16", "--format", "table")
    assert "the baseline was asked otherwise" in text
    assert "of the 2 differences" not in text


def test_a_value_says_of_which_seed_it_is(seeds: Path) -> None:
    text = _export(seeds, "--format", "table")
    assert re.search(r"^bf16 .* N s3$", text, re.MULTILINE)
    assert re.search(r"^int3 .* N s2$", text, re.MULTILINE)
    assert "s: sampling seed of the figure, which is that of the latest of several runs" in text
    rows = csv.DictReader(io.StringIO(_export(seeds, "--format", "csv"), newline=""))
    for row, name, drawn in zip(rows, ("bf16", "int3"), ("123", "12"), strict=True):
        values = [_average([seeds / f"{name}-seed{seed}"]) for seed in drawn]
        assert float(row["word_problems mean over seeds"]) == pytest.approx(fmean(values))
        assert float(row["word_problems sd over seeds"]) == pytest.approx(stdev(values))
    each = _export(seeds, "--format", "table", "--all")
    assert not re.search(r" N s\d", each)


def _make(runs: dict[str, str], *, partial: str = "") -> ResultCell:
    """Return a cell of runs by seed, of which `partial` was stopped early."""
    draws = tuple(
        Draw(seed=seed, value=1.0, run=run, whole=run != partial) for seed, run in runs.items()
    )
    return ResultCell(
        value=1.0, interval=None, outcome=VerdictOutcome.PASS, scored=9, planned=9,
        draws=draws, run=draws[-1].run, others=len(draws) - 1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("had", "cell", "before", "after", "said"),
    [
        ({"": "a"}, {"": "b"}, "a", "b", ""),
        ({"1": "a"}, {"2": "b"}, "a", "b", ""),
        ({"1": "a", "2": "b"}, {"2": "c"}, "b", "c", "the sampling seed 2 that both sides have"),
        (
            {"1": "a", "2": "b"},
            {"2": "c", "1": "d", "5": "e"},
            "ba",
            "cd",
            "the sampling seeds 2, 1 that both sides have",
        ),
        (
            {"1": "a", "2": "b"},
            {"3": "c", "": "d"},
            "ab",
            "cd",
            "sampling seeds 3, none, and of the baseline 1, 2",
        ),
    ],
)
def test_only_seeds_of_both_sides_are_paired_if_there_are_any(
    had: dict[str, str], cell: dict[str, str], before: str, after: str, said: str
) -> None:
    found = match_draws(_make(had), _make(cell))
    assert "".join(one.run for one in found.before) == before
    assert "".join(one.run for one in found.after) == after
    assert found.seeds == said


def test_a_run_that_stopped_early_is_not_paired() -> None:
    had = _make({"1": "a", "2": "b"}, partial="a")
    found = match_draws(had, _make({"1": "c", "2": "d"}))
    assert [one.run for one in (*found.before, *found.after)] == ["b", "d"]
