"""A table with several sampling seeds of a deployment says of which its figures are."""

import csv
import io
import json
import re
import shutil
from collections import defaultdict
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import fmean, stdev
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.report.results_table.cell import MARKS, ResultCell
from serve_eval.schema import Metric, VerdictOutcome
from serve_eval.series.seeds import match_draws, pool_cells
from serve_eval.stats.intervals import wilson
from tests.cli.command import serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")

HOT = (
    "--set=word_problems.num_samples=40 --set=word_problems.temperature=0.8"
    " --set=launcher.varied=true"
)


def _run(folder, seed, damage):
    done = serve_eval(
        f"run --launcher simulated -m org/m -t word_problems --set=launcher.damage={damage}"
        f" -o {folder} --no-reference {HOT} --set",
        f"protocol.seed={seed!s}",
    )
    assert (folder / "report.json").exists(), done.stderr


def _export(arguments=""):
    done = serve_eval(f"runs export {arguments}", COLUMNS="200", exits=0)
    return done.stdout


def _values(run):
    lines = (run / "scores/word_problems.jsonl").read_text().splitlines()
    return {one["id"]: one["value"] for one in map(json.loads, lines)}


def _average(runs):
    """Return the mean over prompts of the mean over runs, in points."""
    found = defaultdict(list)
    for run in runs:
        for prompt, value in _values(run).items():
            found[prompt].append(value)
    return 100.0 * fmean(map(fmean, found.values()))


@pytest.fixture(scope="module")
def seeds(tmp_path_factory, simulated_here):
    """Return runs with seeds 1 to 3 of the baseline, and 1 and 2 of a damaged deployment."""
    top = tmp_path_factory.mktemp("seeds")
    for name, damage, drawn in (("bf16", 0.0, (1, 2, 3)), ("int3", 0.6, (1, 2))):
        for seed in drawn:
            _run(top / f"{name}-seed{seed}", seed, damage)
    return top


def test_a_difference_is_the_mean_over_the_seeds_of_both_sides(seeds):
    asked = f"{seeds} --differences --baseline bf16"
    each = {
        (name, seed): 100.0 * fmean(_values(seeds / f"{name}-seed{seed}").values())
        for name in ("bf16", "int3")
        for seed in (1, 2)
    }
    [row] = csv.DictReader(io.StringIO(_export(f"{asked} --format csv"), newline=""))
    before, after = (
        _average(seeds / f"{name}-seed{seed}" for seed in (1, 2)) for name in ("bf16", "int3")
    )
    assert float(row["word_problems difference"]) == pytest.approx(after - before)
    assert float(row["word_problems value"]) == pytest.approx(after)
    assert float(row["word_problems reference"]) == pytest.approx(before)
    assert row["word_problems sampling seeds"] == "the sampling seeds 1, 2 that both sides have"
    text = _export(f"{asked} --format table")
    first, last = (f"{each['int3', seed] - each['bf16', seed]:+.1f}" for seed in (1, 2))
    assert (
        "* int3: word_problems: the mean over the sampling seeds 1, 2 that both sides have:"
        f" {first}, {last}, sd " in text
    )
    assert "* :" not in text


def test_a_note_has_no_differences_from_another_reference(tmp_path):
    """The chat runs have a registered reference, and the baseline was asked otherwise."""
    asked = f"--launcher simulated -m org/m -t word_problems {HOT}"
    chat = f"{asked} --set protocol.apply_chat_template=true"
    refs = f"--references-dir {tmp_path}/refs"
    serve_eval(f"references take --runs 2 -o {tmp_path}/taken {chat} {refs}", exits=0)
    _run(tmp_path / "runs/bf16", 1, 0.0)
    _run(tmp_path / "runs/int3", 1, 0.6)
    for seed in "12":
        damaged = f"--set protocol.seed={seed} --set=launcher.damage=0.6"
        done = serve_eval(f"run -o {tmp_path}/runs/chat-seed{seed} {chat} {damaged} {refs}")
        assert (tmp_path / f"runs/chat-seed{seed}/report.json").exists(), done.stderr
    own = _export(f"{tmp_path}/runs --differences --format table")
    assert "the mean over sampling seeds 1, 2: " in own
    text = _export(f"{tmp_path}/runs --differences --baseline bf16 --format table")
    assert "the baseline was asked otherwise" in text
    assert "the mean over sampling seeds" not in text


def test_a_value_is_the_mean_over_its_seeds(seeds):
    text = _export(f"{seeds} --format table")
    assert re.search(r"^bf16 .* N s3$", text, re.MULTILINE)
    assert re.search(r"^int3 .* N s2$", text, re.MULTILINE)
    assert "s: number of sampling seeds that the figure is the mean over" in text
    assert "with the interval of that mean and the worst verdict" in " ".join(text.split())
    rows = csv.DictReader(io.StringIO(_export(f"{seeds} --format csv"), newline=""))
    for row, name, drawn in zip(rows, ("bf16", "int3"), ("123", "12"), strict=True):
        runs = [seeds / f"{name}-seed{seed}" for seed in drawn]
        values = [_average([run]) for run in runs]
        for head in ("value", "mean over seeds"):
            assert float(row[f"word_problems {head}"]) == pytest.approx(fmean(values))
        assert float(row["word_problems sd over seeds"]) == pytest.approx(stdev(values))
        ends = [100 * end for end in wilson(0.4 * fmean(values), 40, 0.05)]
        found = [float(row[f"word_problems {end}"]) for end in ("low", "high")]
        assert found == pytest.approx(ends), "the interval is that of 40 prompts, not of 120"
        assert row["word_problems scored"] == row["word_problems planned"] == str(40 * len(runs))
        assert row["word_problems run"] == "; ".join(map(str, runs))
        assert row["word_problems other runs"] == "0"
        assert row["word_problems sampling seeds"] == ", ".join(drawn)
        assert f"{name}: word_problems: the mean over sampling seeds {', '.join(drawn)}: sd" in text
    each = _export(f"{seeds} --format table --all")
    assert not re.search(r" N s\d", each)


def test_seeds_with_equal_texts_are_one_draw_until_one_text_differs(seeds, tmp_path):
    """Each run started a simulator anew, which draws alike each time."""
    note = "the answers with sampling seeds {} are the same texts: they are one draw"
    here = tmp_path / "seeds"
    shutil.copytree(seeds, here)
    before = _export(f"{here} --format table")
    assert note.format("1, 2, 3") in before
    assert note.format("1, 2") in before
    file = here / "bf16-seed2/samples/word_problems.jsonl"
    first, *others = file.read_text().splitlines()
    record = json.loads(first)
    record["response"]["text"] = "another text"
    file.write_text("".join(f"{line}\n" for line in (json.dumps(record), *others)))
    after = _export(f"{here} --format table")
    assert note.format("1, 2, 3") not in after
    assert note.format("1, 2") in after


def test_the_figures_of_a_difference_are_those_of_the_runs_in_it(seeds):
    asked = f"{seeds} --differences --baseline int3 --format csv"
    [row] = csv.DictReader(io.StringIO(_export(asked), newline=""))
    runs = [seeds / f"bf16-seed{seed}" for seed in (1, 2)]
    assert row["word_problems run"] == "; ".join(map(str, runs))
    assert row["word_problems reference of"] == "int3"
    assert (row["word_problems scored"], row["word_problems planned"]) == ("80", "80")
    assert float(row["word_problems value"]) == pytest.approx(_average(runs))


def test_a_difference_says_that_seeds_that_differ_as_a_whole_widen_it(seeds, tmp_path):
    """One seed of the damaged deployment lost most of its answers: Cochran's Q is large."""
    here = tmp_path / "seeds"
    shutil.copytree(seeds, here)
    asked = f"{here} --differences --baseline bf16"

    def read():
        [row] = csv.DictReader(io.StringIO(_export(f"{asked} --format csv"), newline=""))
        ends = [float(row[f"word_problems difference {end}"]) for end in ("low", "high")]
        return ends[1] - ends[0], float(row["word_problems error factor"])

    assert read()[1] == 1.0
    assert "differ as a whole" not in _export(f"{asked} --format table")
    file = here / "bf16-seed2/scores/word_problems.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    changed = [{**line, "value": line["value"] if i < 10 else 0.0} for i, line in enumerate(lines)]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in changed))
    assert read()[1] > 2.0
    for name in ("table", "markdown", "latex", "svg"):
        text = re.sub(r"<[^>]*>|[{}\\]", "", _export(f"{asked} --format {name}"))
        assert "int3: word_problems: the runs of bf16 differ as a whole" in " ".join(text.split())
        assert re.search(r"each error of the +difference is multiplied by [2-9]\.", text)


class _Answers(BaseHTTPRequestHandler):
    """The replies of an endpoint that answers 1 to each prompt."""

    def do_GET(self):
        self._reply({"object": "list", "data": [{"id": "org/m", "object": "model"}]})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        choice = {"index": 0, "text": " 1", "finish_reason": "stop"}
        usage = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
        self._reply({"id": "1", "model": "org/m", "choices": [choice], "usage": usage})

    def _reply(self, content):
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Print nothing."""


@contextmanager
def _serving():
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_seed_without_a_value_stands_in_the_row_of_its_deployment(tmp_path):
    """The server has ended before the suite grows by a seed."""
    suite = (
        "defaults: {{model: org/m, no_reference: true,"
        " tasks: [{{word_problems: {{num_samples: 30, temperature: 0.8}}}}]}}\n"
        "matrix:\n"
        "  kind:\n"
        "    - {{label: good, launcher: {{name: simulated, varied: true}}}}\n"
        "    - {{label: bad, base_url: '{address}'}}\n"
        "  sampling_seed: {seeds}\n"
    )
    file = tmp_path / "s.yaml"
    with _serving() as address:
        file.write_text(suite.format(address=address, seeds=[1]))
        serve_eval(f"run {file} -o {tmp_path}/out", exits=3)
    file.write_text(suite.format(address=address, seeds=[1, 2]))
    serve_eval(f"run {file} -o {tmp_path}/out", exits=4)
    text = _export(f"{tmp_path}/out --format csv")
    rows = {row["run"]: row for row in csv.DictReader(io.StringIO(text, newline=""))}
    assert rows.keys() == {"good", "bad"}
    bad = rows["bad"]
    assert bad["word_problems verdict"] == "ERROR"
    assert bad["word_problems verdicts of seeds"] == "1 NO REFERENCE; 2 ERROR"
    assert bad["word_problems sampling seeds"] == "1"
    assert Path(bad["word_problems run"]) in (tmp_path / "out/runs").glob("bad*")
    assert (bad["word_problems scored"], bad["word_problems sd over seeds"]) == ("30", "")
    for name in ("table", "markdown", "latex", "svg"):
        text = re.sub(r"[{}\\]", "", _export(f"{tmp_path}/out --format {name}"))
        assert re.search(r"\bE s1\b", text), name
        assert "bad: word_problems: verdicts of the seeds 1, 2: N E" in text
        assert "sampling seed 2 has no value: ERROR" in text


VERDICTS = st.sampled_from(list(VerdictOutcome))


@st.composite
def _drawn(draw):
    """Return cells of runs with other seeds, some without a value."""
    found = []
    for seed in draw(st.lists(st.integers(0, 20), min_size=2, max_size=5, unique=True)):
        scored = draw(st.integers(0, 20))
        value = draw(st.floats(0, 100)) if scored else None
        p = draw(st.floats(0.001, 0.999)) if scored else None
        found.append(
            ResultCell(
                value=value,
                interval=None if value is None else (0.0, 100.0),
                outcome=draw(VERDICTS),
                scored=scored,
                planned=20,
                run=f"runs/{seed}",
                seed=str(seed),
                difference=None if value is None else value - 50.0,
                p=p,
                p_rule=p,
                rule=draw(st.sampled_from(["paired", "classic"])),
                finding=draw(st.sampled_from(["FAIL", "PASS", "INCONCLUSIVE", ""])),
            )
        )
    return found


@given(_drawn(), st.randoms(use_true_random=False), st.booleans())
def test_nothing_depends_on_the_order_of_the_seeds(cells, random, mean):
    shuffled = random.sample(cells, len(cells))
    one, other = (pool_cells(x, Metric(), prompts=20, mean=mean) for x in (cells, shuffled))
    assert one == other
    known = [cell.value for cell in cells if cell.value is not None]
    if known:
        assert one.value == pytest.approx(fmean(known))
        assert one.interval[0] - 1e-6 <= fmean(known) <= one.interval[1] + 1e-6


@pytest.mark.parametrize(
    ("outcomes", "worst", "note"),
    [
        ("PFF", "F", "verdicts of the seeds 1, 2, 3: P F F"),
        ("FFP", "F", "verdicts of the seeds 1, 2, 3: F F P"),
        ("PIP", "I", "verdicts of the seeds 1, 2, 3: P I P"),
        ("PwP", "Fw", "verdicts of the seeds 1, 2, 3: P Fw P"),
        ("wIP", "I", "verdicts of the seeds 1, 2, 3: Fw I P"),
        ("EFP", "F", "verdicts of the seeds 1, 2, 3: E F P"),
        ("EIP", "E", "verdicts of the seeds 1, 2, 3: E I P"),
        ("PPP", "P", ""),
    ],
)
def test_the_mark_is_the_worst_verdict_of_the_seeds(outcomes, worst, note):
    letters = {mark: outcome for outcome, mark in MARKS.items()}
    cells = [
        ResultCell(
            value=60.0 + i, interval=None, scored=20, planned=20, seed=str(i), run=f"r{i}",
            outcome=letters.get(letter, VerdictOutcome.FAIL), waived=letter == "w",
        )
        for i, letter in enumerate(outcomes, 1)
    ]  # fmt: skip
    cell = pool_cells(cells, Metric(), prompts=20, mean=True)
    assert cell.marks[0] == worst
    told = list(cell.explain(Metric(), plain=True))
    assert told == ["the mean over sampling seeds 1, 2, 3: sd 1.0", *([note] if note else [])]


def test_of_several_runs_of_a_seed_the_latest_counts():
    cells = [
        ResultCell(
            value=value, interval=None, scored=9, planned=9, seed=seed, run=f"r{value}",
            outcome=VerdictOutcome.PASS,
        )
        for seed, value in (("1", 10.0), ("2", 20.0), ("1", 40.0))
    ]  # fmt: skip
    cell = pool_cells(cells, Metric(), prompts=9, mean=True)
    assert (cell.value, cell.others, cell.run) == (30.0, 1, "r40.0; r20.0")
    assert "the latest run of each seed; earlier runs: 1" in list(
        cell.explain(Metric(), plain=True)
    )
    alone = pool_cells(cells[::2], Metric(), prompts=9, mean=True)
    assert (alone.value, alone.others, alone.marks) == (40.0, 1, ["P"])


def test_an_interval_of_an_unbounded_value_is_the_mean_of_the_intervals():
    cells = [
        ResultCell(
            value=value, interval=(value - 1, value + 2), scored=9, planned=9, seed=seed,
            outcome=VerdictOutcome.PASS,
        )
        for seed, value in (("1", 10.0), ("2", 20.0))
    ]  # fmt: skip
    metric = Metric(name="perplexity", scale=1.0, lo=0.0, hi=None, higher_is_better=False)
    assert pool_cells(cells, metric, prompts=9, mean=True).interval == (14.0, 17.0)


def _make(runs, *, partial=""):
    """Return a cell of runs by seed, of which `partial` was stopped early."""
    cells = [
        ResultCell(
            value=1.0, interval=None, outcome=VerdictOutcome.PASS, scored=9, planned=9,
            seed=seed, run=run, whole=run != partial,
        )
        for seed, run in runs.items()
    ]  # fmt: skip
    return pool_cells(cells, Metric(), prompts=9, mean=True)


@pytest.mark.parametrize(
    ("had", "cell", "before", "after", "said"),
    [
        ({"": "a"}, {"": "b"}, "a", "b", ""),
        ({"1": "a"}, {"2": "b"}, "a", "b", ""),
        ({"1": "a", "2": "b"}, {"2": "c"}, "b", "c", "the sampling seed 2 that both sides have"),
        (
            {"1": "a", "2": "b"},
            {"2": "c", "1": "d", "5": "e"},
            "ab",
            "dc",
            "the sampling seeds 1, 2 that both sides have",
        ),
        (
            {"1": "a", "2": "b"},
            {"3": "c", "": "d"},
            "ab",
            "dc",
            "sampling seeds none, 3, and of the baseline 1, 2",
        ),
    ],
)
def test_only_seeds_of_both_sides_are_paired_if_there_are_any(had, cell, before, after, said):
    found = match_draws(_make(had), _make(cell))
    assert "".join(one.run for one in found.before) == before
    assert "".join(one.run for one in found.after) == after
    assert found.seeds == said


def test_a_run_that_stopped_early_is_not_paired():
    had = _make({"1": "a", "2": "b"}, partial="a")
    found = match_draws(had, _make({"1": "c", "2": "d"}))
    assert [one.run for one in (*found.before, *found.after)] == ["b", "d"]
