"""Test that every benchmark works at its smallest size, the queue by formulas."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.root import ROOT

TINY = {
    "startup.py": ("1",),
    "tasks.py": ("--tiny",),
    "rate_limits.py": ("--tiny",),
    "alarm.py": ("60", "1", "4"),
    "million.py": ("60", "4"),
    "finished_runs.py": ("60",),
    "launch.py": ("1",),
    "embedded.py": ("4", "1"),
    "scale.py": ("--quick",),
}
"""Parts of all benchmarks of the Makefile except the table, with their smallest size."""
SLOW = ("finished_runs.py", "launch.py", "embedded.py")
PEERS = (
    "wrk, client alone",
    "aiohttp, client alone",
    "aiohttp_idiomatic, client alone",
    "openai_aiohttp, client alone",
    "openai_async, client alone",
    "openai_sync, client alone",
    "aiohttp, streamed",
    "openai_aiohttp, streamed",
    "lm-eval local-completions",
    "AsyncOpenAI script",
    "lm_eval:TASK, serve-eval run",
    "lm-eval --model serve-eval",
    "lm-eval's requests, our client alone",
    "lm-eval's requests, its client alone",
)
OURS = ("ours, client alone", "ours, streamed", "serve-eval run")


def _bench(*command):
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    "script", [pytest.param(one, marks=pytest.mark.slow) if one in SLOW else one for one in TINY]
)
def test_every_part_ends_well(script):
    done = _bench(f"bench/{script}", *TINY[script])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_no_part_of_the_makefile_is_forgotten():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(
        re.findall(
            r"\w+\.py", " ".join(re.findall(r"^BENCH = .*|bench/\w+\.py", makefile, re.MULTILINE))
        )
    )
    assert named == {*TINY, "client_table.py", "gate.py", "gate_check.py"}  # test_gate.py


@pytest.fixture(scope="module")
def table():
    """Return the output of the table with each row once."""
    return _bench("bench/client_table.py", "--tiny")


@pytest.mark.slow
def test_the_table_has_every_row_and_ends_well(table):
    assert table.returncode == 0, table.stderr
    rows = table.stdout.partition("answers after")[2].partition("goals, by")[0].splitlines()
    names = {
        re.split(r" {2,}", row)[0] for row in rows if re.search(r" {2,}(\d+ ms|200 chunks)", row)
    }
    assert names == {*PEERS, *OURS}
    assert "MISSED" in table.stdout or "reached" in table.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", [*OURS, *PEERS])
def test_a_row_of_the_table(name, table):
    [row] = [line for line in table.stdout.splitlines() if line.startswith(f"{name} ")]
    if name in PEERS and (absent := re.search(r"not installed: \S+", row)):
        pytest.skip(absent.group())
    found = re.search(r" (\d+)/(\d+)$", row)
    assert found is not None, row
    assert found[1] == found[2] != "0"


FAILING = """
import sys
sys.path.insert(0, "bench")
import client_table
from rows import NotInstalled, NotMeasured, Row
from serving import Mode

ERRORS = {
    "absent": NotInstalled("absent"),
    "refused": NotMeasured("exit code 4"),
    "broken": KeyError("value"),
}

def row(name):
    def run(server):
        raise ERRORS[name]
    return Row(name=name, mode=Mode(), in_flight=1, n=1, run=run)

wanted = sys.argv[1:]
client_table.ROW_MAKERS = (lambda size, scratch: [row(name) for name in wanted],)
sys.argv[1:] = ["--tiny"]
client_table.main()
"""


@pytest.mark.parametrize(
    ("rows", "code", "said"),
    [
        ("absent", 0, ""),
        ("absent refused", 1, "not measured: refused: exit code 4\n"),
        ("broken", 1, "not measured: broken: KeyError('value')\n"),
    ],
)
def test_a_row_that_ends_in_an_error_fails_the_benchmark(rows, code, said):
    done = _bench("-c", FAILING, *rows.split())
    assert done.returncode == code, done.stderr
    assert done.stderr.endswith(said)
    assert "not measured: absent" not in done.stderr


BENCH = Path(__file__).resolve().parents[2] / "bench"
COUNT = 400_000


def _module(name):
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


queueing = _module("queueing")


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.mark.parametrize("load", [0.2, 0.5, 0.8])
def test_exponential_services_have_the_delays_of_mm1(load, rng):
    arrivals = queueing.draw_poisson(load, COUNT, rng)
    services = rng.exponential(1.0, COUNT)
    delays = queueing.find_ends(arrivals, services) - arrivals
    assert delays.mean() == pytest.approx(1 / (1 - load), rel=0.05)
    for share in (0.5, 0.99):
        formula = queueing.exponential_delay(load, 1.0, share)
        assert queueing.percentile(delays, 100 * share) == pytest.approx(formula, rel=0.07)


@pytest.mark.parametrize("load", [0.2, 0.5, 0.8])
def test_constant_services_have_the_wait_of_md1(load, rng):
    arrivals = queueing.draw_poisson(load, COUNT, rng)
    services = np.ones(COUNT)
    waits = queueing.find_ends(arrivals, services) - arrivals - services
    assert queueing.mean_wait(load, 1.0, 1.0) == pytest.approx(load / (2 * (1 - load)))
    assert waits.mean() == pytest.approx(queueing.mean_wait(load, 1.0, 1.0), rel=0.04)


def test_both_ways_to_compute_delays_agree(rng):
    arrivals, services = queueing.draw_poisson(0.7, 5000, rng), rng.exponential(1.0, 5000)
    delays = queueing.find_delays(arrivals, services, services)
    assert delays == pytest.approx(queueing.find_ends(arrivals, services) - arrivals)


def test_a_process_that_must_wake_up_has_the_wait_of_welch(rng):
    arrivals = queueing.draw_poisson(0.5, COUNT, rng)
    busy, idle = rng.exponential(1.0, COUNT), np.full(COUNT, 3.0)
    delays = queueing.find_delays(arrivals, busy, idle)
    began_idle = np.isclose(delays, 3.0)
    waits = np.where(began_idle, 0.0, delays - busy)
    formula = queueing.mean_wait_after_idle(0.5, (1.0, 2.0), (3.0, 9.0))
    assert waits.mean() == pytest.approx(formula, rel=0.04)
    same = queueing.mean_wait_after_idle(0.5, (1.0, 2.0), (1.0, 2.0))
    assert same == pytest.approx(queueing.mean_wait(0.5, 1.0, 2.0))


def test_bursts_of_many_servers_have_the_wait_of_batches(rng):
    rate, servers, step_s, service = 0.6, 500, 5000.0, 1.0
    arrivals = queueing.draw_bursts(rate, COUNT, rng, servers=servers, step_s=step_s)
    assert len(arrivals) == pytest.approx(COUNT, rel=0.02)
    services = np.full(len(arrivals), service)
    waits = queueing.find_ends(arrivals, services) - arrivals - services
    formula = queueing.mean_wait_of_batches(rate, 1.0, 1.0, rate * step_s / servers)
    # Steps come at regular intervals, not as a Poisson process, so that they wait a little less.
    assert 0.6 * formula < waits.mean() < 1.1 * formula


def test_one_server_sends_all_answers_of_a_step_at_once(rng):
    arrivals = queueing.draw_bursts(10.0, 1000, rng, servers=1, step_s=2.0)
    assert len(np.unique(arrivals)) == 50
    assert np.diff(np.unique(arrivals)) == pytest.approx(2.0)


@pytest.mark.parametrize(("rate", "length"), [(1000.0, 10.0), (50.0, 20.0)])
def test_the_slower_of_endpoint_and_client_sets_the_length(rate, length, rng):
    arrivals = np.arange(1, 1001) / rate
    assert queueing.find_length(arrivals, np.array([0.01]), 1, rng) == pytest.approx(
        length, rel=0.01
    )


def test_shards_divide_the_answers(rng):
    arrivals = queueing.draw_poisson(1.0, 1000, rng)
    parts = queueing.split(arrivals, 16, rng)
    assert len(parts) == 16
    assert np.sort(np.concatenate(parts)) == pytest.approx(arrivals)


@pytest.mark.parametrize(("rate", "needed"), [(10.0, 1), (700.0, 1), (701.0, 2), (7000.0, 10)])
def test_shards_needed(rate, needed):
    assert queueing.shards_needed(rate, 0.001, 0.7) == needed
