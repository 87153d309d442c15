"""Test that every slow test runs in some part of the rotation, and no part takes too long."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.slow_parts import BUDGET_S, EXCLUDED, LONGEST_S, ROOT, SECONDS, UNKNOWN_S, parts

KNOWN: dict[str, float] = json.loads(SECONDS.read_text(encoding="utf-8"))
NAMES = st.text("abc", min_size=1, max_size=3)


@given(st.lists(NAMES, unique=True), st.dictionaries(NAMES, st.floats(0.0, 2 * BUDGET_S)))
def test_every_test_is_in_one_part_and_no_part_is_too_long(
    ids: list[str], seconds: dict[str, float]
) -> None:
    made = parts(ids, seconds)
    assert [one for part in made for one in part] == ids
    for part in made:
        takes = [seconds.get(one, UNKNOWN_S) for one in part]
        assert len(part) <= 1 or sum(takes) <= BUDGET_S + 1e-9


def test_a_part_holds_as_much_as_fits() -> None:
    assert parts(list("abcde"), {"a": 40.0, "b": 20.0, "c": 1.0, "d": 200.0}) == [
        ["a", "b"],
        ["c"],
        ["d"],
        ["e"],
    ]
    assert parts([*EXCLUDED, "a"], {}) == [["a"]]


def test_known_tests_are_there_and_fit_into_a_part_or_are_excluded() -> None:
    for one in {*KNOWN, *EXCLUDED}:
        file, _, name = one.partition("::")
        assert re.search(
            rf"^def {name.partition('[')[0]}\(", (ROOT / file).read_text(encoding="utf-8"), re.M
        ), one
    assert {one for one, takes in KNOWN.items() if takes > LONGEST_S} == set(EXCLUDED)
    assert all(reason for reason in EXCLUDED.values())


STEPS = [
    ".venv/.dev",
    "bench-gate",
    "debian",
    "docs",
    "lint",
    "test",
    "test-page",
    "test-peer",
    "test-sandbox",
    "test-slow-chosen",
    "test-wheel",
]


def ci_by_made_up_steps(folder: Path, *, failing: str) -> subprocess.CompletedProcess[str]:
    """Run CI with a `make` and a `python3` of our own, which print what they should do."""
    (folder / "make").write_text(
        "#!/bin/sh\n"
        'for step in "$@"; do\n'
        '  case "$step" in *=*) continue;; esac\n'
        '  echo "made $step"\n'
        f'  [ "$step" != {failing} ] || exit 1\n'
        "done\n"
    )
    (folder / "python3").write_text(
        "#!/bin/sh\n"
        "mkdir -p .venv/bin\n"
        f"printf '#!/bin/sh\\n[ {failing} != uv ]\\n' > .venv/bin/python\n"
        "chmod +x .venv/bin/python\n"
    )
    for name in ("make", "python3"):
        (folder / name).chmod(0o755)
    script = folder / ".ci/run"
    script.parent.mkdir()
    script.write_bytes((ROOT / ".ci/run").read_bytes())
    environ = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.run(["bash", script], env=environ, capture_output=True, text=True)


@pytest.mark.parametrize("failing", ["none", "uv"])
def test_ci_makes_every_step_once(tmp_path: Path, failing: str) -> None:
    done = ci_by_made_up_steps(tmp_path, failing=failing)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == sorted(["made"] * len(STEPS) + STEPS)


@pytest.mark.parametrize("failing", sorted({*STEPS} - {"debian"}))
def test_ci_fails_with_any_step_and_prints_it(tmp_path: Path, failing: str) -> None:
    done = ci_by_made_up_steps(tmp_path, failing=failing)
    assert done.returncode != 0
    assert f"made {failing}\n" in done.stdout


@pytest.mark.parametrize("marker", ["slurm", "mpi", "peers", "gpu"])
def test_what_needs_more_than_this_machine_is_in_no_part(marker: str) -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    chosen = re.search(r'^SLOW = "(.*)"$', text, re.M)
    assert chosen is not None
    assert f"not {marker}" in chosen[1]
