"""Data sets are found in known.py and in the task files that declare one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import serve_eval.tasks
from serve_eval.datasets import local
from serve_eval.datasets.known import KNOWN
from serve_eval.datasets.local import find_sources
from tests.cli.command import serve_eval as run

DECLARES = """\"\"\"A task of a test.\"\"\"

from serve_eval.datasets.source import Source

SOURCE = Source(
    name="Rivers",
    folders=("made_up_rivers",),
    homepage="https://example.com",
    licence="MIT",
    rows="9 test",
)
"""


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder whose files are tasks for the length of a test."""
    before = set(sys.modules)
    monkeypatch.setattr(serve_eval.tasks, "__path__", [*serve_eval.tasks.__path__, str(tmp_path)])
    yield tmp_path
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def test_the_shared_sets_come_first() -> None:
    assert list(find_sources())[: len(KNOWN)] == list(KNOWN)


@pytest.mark.usefixtures("tasks")
def test_a_set_of_a_task_file_is_listed_and_its_folder_is_known(tasks: Path) -> None:
    before = find_sources()
    (tasks / "made_up_rivers.py").write_text(DECLARES)
    (tasks / "made_up_lakes.py").write_text('raise SystemError("imported for nothing")\n')
    found = find_sources()
    assert found.keys() - before.keys() == {"made_up_rivers"}
    assert "Put a copy from https://example.com" in local.advice(found["made_up_rivers"])
    listed = " ".join(run("data", "list", "datasets", "-v").stdout.split())
    assert "made_up_rivers: Rivers, 9 test; licence: MIT" in listed
    where = run("data", "path", "made_up_rivers", "--dataset-root", tasks)
    assert (where.returncode, where.stdout) == (2, f"{tasks}/made_up_rivers\n")


def test_a_set_that_is_shared_is_not_declared_again(tasks: Path) -> None:
    before = find_sources()
    (tasks / "made_up_rivers.py").write_text(
        'from serve_eval.datasets.known import KNOWN\nSOURCE = KNOWN["mmlu"]\n'
    )
    assert find_sources() == before


def test_a_name_of_a_shared_set_is_refused(tasks: Path) -> None:
    (tasks / "slimpajama.py").write_text(DECLARES)
    with pytest.raises(ValueError, match=r"tasks/slimpajama\.py: SOURCE has the name of a set"):
        find_sources()
