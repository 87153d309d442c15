"""The watch of make test-wheel notices code that comes from the checkout, and hides it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.wheel.steps import Failed, expect
from tests.wheel.watching import (
    Hiding,
    build_variables,
    copy_watch,
    find_foreign,
    hide,
    run_watched,
)


@pytest.fixture
def checkout(tmp_path) -> Path:
    """Return a folder with a module and a file."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "of_checkout.py").write_text("import os\n")
    (folder / "data.txt").write_text("data")
    return folder


IMPORTS = "import os, sys; sys.path.append(os.environ['CHECKOUT']); import of_checkout"
READS = "import os; open(os.environ['CHECKOUT'] + '/data.txt').read()"


@pytest.mark.parametrize(
    ("code", "processes", "found"),
    [
        ("print('nothing')", 1, set()),
        (IMPORTS, 1, {"module", "opened"}),
        (READS, 1, {"opened"}),
        (f"{READS}; os._exit(0)", 1, {"opened"}),
        (
            f"import subprocess, sys; subprocess.run([sys.executable, '-P', '-c', {IMPORTS!r}])",
            2,
            {"module", "opened"},
        ),
    ],
)
def test_what_a_process_takes_from_the_checkout_is_found(
    tmp_path, checkout: Path, code: str, processes: int, found: set[str]
):
    log = copy_watch(tmp_path, checkout)
    done = run_watched(
        [sys.executable, "-P", "-c", code],
        hiding=Hiding((), ""),
        folder=tmp_path,
        variables={**build_variables(log), "CHECKOUT": str(checkout)},
    )
    assert done.returncode == 0, done.stderr
    watched, foreign = find_foreign(log, tmp_path / "environment")
    assert watched == processes
    assert {one.partition(" ")[0] for one in foreign} == found
    assert all(str(checkout) in one for one in foreign)


def test_our_modules_may_come_from_the_environment_only(tmp_path):
    log = tmp_path / "log"
    inside, outside = tmp_path / "environment/lib/serve_eval/a.py", tmp_path / "else/a.py"
    log.write_text(f"begun\nmodule serve_eval.a {inside}\nmodule serve_eval.b {outside}\n")
    assert find_foreign(log, tmp_path / "environment") == (1, [f"module serve_eval.b {outside}"])
    assert find_foreign(tmp_path / "none", tmp_path) == (0, [])


def test_a_hidden_checkout_is_empty(tmp_path, checkout: Path):
    hiding = hide(checkout)
    if not hiding.words:
        pytest.skip("this machine refuses mount namespaces")
    command = ["sh", "-c", 'ls -A "$0"; cat "$0/data.txt"', str(checkout)]
    done = run_watched(command, hiding=hiding, folder=tmp_path, variables={"PATH": "/usr/bin:/bin"})
    assert done.returncode != 0
    assert done.stdout == ""
    assert (checkout / "data.txt").read_text() == "data"


def test_a_step_fails_by_exit_code_or_by_a_missing_word(tmp_path):
    command = ["sh", "-c", "echo said; exit 3"]
    done = run_watched(command, hiding=Hiding((), ""), folder=tmp_path, variables={})
    expect(done, code=3, words=("said",))
    with pytest.raises(Failed, match="exit code 3, not 0"):
        expect(done, code=0)
    with pytest.raises(Failed, match="lacks 'more'"):
        expect(done, code=3, words=("more",))
