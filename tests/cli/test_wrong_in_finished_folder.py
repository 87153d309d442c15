"""Test that a command which is wrong leaves the files of a finished result as they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import serve_eval
from tests.thinking.commands import write_sums
from tests.thinking.flavours import flavour_in_thread


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with flavour_in_thread("never") as found:
        yield found


@pytest.fixture(scope="module")
def finished(url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, a comparison and a smoke test, each finished in a folder of its own."""
    folder = tmp_path_factory.mktemp("finished")
    cases = write_sums(folder, 100, 4)
    asked = ["--model", "M", "--cases", cases]
    serve_eval("run", "--base-url", url, *asked, "--no-reference", "-o", folder / "run")
    with flavour_in_thread("never") as other:
        serve_eval("compare", url, other, *asked, "--self", "0", "-o", folder / "both")
    serve_eval("smoke", url, "-o", folder / "smoke")
    assert all((folder / name / "summary.md").exists() for name in ("run", "both", "smoke"))
    return folder


def _read(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


WRONG = {
    "limit": ["run", "--resume", "RUN", "--limit", "0"],
    "option": ["run", "--resume", "RUN", "--set", "cases:sums.nosuch=1"],
    "junit": ["run", "--resume", "RUN", "--junit", "/nowhere/x.xml"],
    "task": ["check", "load", "URL", "-t", "nosuch", "-o", "RUN"],
    "cases": ["compare", "URL", "URL", "--cases", "/nowhere.yaml", "-o", "BOTH"],
    "level": ["smoke", "URL", "--level", "nosuch", "-o", "SMOKE"],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_usage_error_keeps_the_summary_of_a_finished_result(
    name: str, finished: Path, url: str
) -> None:
    places = {"URL": url, **{word.upper(): finished / word for word in ("run", "both", "smoke")}}
    before = _read(finished)
    done = serve_eval(*(places.get(word, word) for word in WRONG[name]))
    assert done.returncode == 2, done.stderr
    assert _read(finished) == before


def test_a_usage_error_is_still_told_where_the_command_asks_for_it(
    finished: Path, tmp_path: Path
) -> None:
    junit = tmp_path / "junit.xml"
    done = serve_eval("run", "--resume", finished / "run", "--limit", "0", "--junit", junit)
    assert done.returncode == 2
    assert "limit: must be 1 or more" in junit.read_text()
