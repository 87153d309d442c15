"""Test that each file of docs/measured/ says how, when and where its tables were measured."""

from __future__ import annotations

import re
from datetime import date

import pytest

from tests import measured
from tests.root import ROOT

FILES = sorted(measured.MEASURED.glob("*.md"))
MOST_BY_HAND = 19
"""The tables that no command prints. Never raise it: write a script that prints the table."""
MAKEFILE = (ROOT / "Makefile").read_text()


def _read_header(path):
    return measured.find_origins(path.read_text())


def _is_there(words):
    """Return whether a command is a make target, a module or a file of this checkout."""
    match words:
        case ["make", target, *_]:
            return re.search(rf"^{re.escape(target)}:", MAKEFILE, re.MULTILINE) is not None
        case ["python", "-m", module, *_]:
            place = ROOT / module.replace(".", "/")
            return place.with_suffix(".py").is_file() or (place / "__main__.py").is_file()
        case ["python", file, *_]:
            return file.endswith(".py") and (ROOT / file).is_file()
    return False


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_begins_with_its_claim_and_its_origin(path):
    text = path.read_text()
    assert re.match(r"# \S.*\n\nClaim: ", text)
    page = measured.find_page(text)
    assert page is not None, "the claim links no page"
    assert (ROOT / "docs" / page).is_file(), f"the claim links {page}, which is no page"
    rows = _read_header(path)
    assert rows, f"the file lacks the header {measured.HEAD}"
    for row in rows:
        assert re.fullmatch(r"[0-9a-f]{7,12}", row.commit), row
        assert row.machine
        assert date.fromisoformat(row.date)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_command_of_a_file_exists(path):
    for row in _read_header(path):
        if not row.by_hand:
            assert _is_there(measured.split_command(row.command)[1]), row.command


def test_a_command_that_does_not_exist_is_noticed():
    assert _is_there(["make", "calibrate", "ARGS=paired write"])
    for command in ("make nothing", "python -m tests.nothing", "python bench/nothing.py", "serve"):
        assert not _is_there(command.split()), command


def test_tables_without_a_command_do_not_become_more():
    rows = [row for path in FILES for row in _read_header(path)]
    assert sum(row.by_hand for row in rows) <= MOST_BY_HAND


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_is_linked_once(path):
    pages = [page for page in (ROOT / "docs").glob("*.md") if page.stem != "README"]
    link = f"](measured/{path.name})"
    linking = [page.name for page in pages for _ in range(page.read_text().count(link))]
    assert linking == [measured.find_page(path.read_text())]


def test_the_list_has_a_line_for_each_row():
    lines = measured.list_files().splitlines()
    assert len(lines) == 1 + sum(len(_read_header(path)) for path in FILES)
    assert all(any(line.split()[0] == path.stem for line in lines) for path in FILES)


def test_a_written_file_names_the_commit_and_the_day():
    text = "\n".join(
        (measured.HEAD, "|---|---|---|---|", "| `make a` | 1234567 | 1 core | 2026-01-02 |")
    )
    text = f"# T\n\nClaim: [p](../p.md#h).\n\n{text}\n| by hand | 1234567 | 1 core | 2026-01-02 |\n"
    first, second = measured.find_origins(measured.stamp(text))
    assert (first.command, second) == ("make a", measured.find_origins(text)[1])
    assert first.date > "2026-01-02"
    assert re.fullmatch(r"[0-9a-f]{8}", first.commit)
    assert measured.find_page(text) == "p.md"
    assert measured.stamp(text, "make b") == text


def test_variables_of_a_command_are_split_off():
    found = measured.split_command('TRIALS=3 make calibrate ARGS="a write"')
    assert found == ({"TRIALS": "3"}, ["make", "calibrate", "ARGS=a write"])


def test_a_name_without_a_file_is_refused(capsys):
    assert measured.main(["nothing"]) == 2
    assert "docs/measured/nothing.md" in capsys.readouterr().out
