"""The process that draws: what it loses is a ruler, with one warning, and one line without it."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.report.pictures import Picture, draw_boxes
from serve_eval.report.pictures.drawing import draw_all, name_extra
from tests.cli.command import environment, serve_eval

GOOD = draw_boxes("lengths", {"a": [1.0, 2.0, 3.0]}, "tokens")
assert GOOD is not None
BAD = replace(GOOD, spec={"mark": {"type": "no such mark"}})
OWN = Picture(title="own", description="own", svg="<svg></svg>")
WITHOUT = "import sys; sys.modules['vl_convert'] = None; from serve_eval.cli import main; main()"


def _draw(*pictures: Picture) -> tuple[list[Picture], list[str]]:
    said: list[str] = []
    return draw_all(pictures, said.append), said


def test_a_specification_that_cannot_be_drawn_leaves_the_others() -> None:
    drawn, said = _draw(GOOD, BAD, OWN, replace(GOOD, title="another"))
    assert [one.svg is not None for one in drawn] == [True, False, True, True]
    assert drawn[2] is OWN
    assert said == ["warning: 1 of 3 pictures were not drawn, the page shows rulers instead"]


def test_pictures_need_no_process_if_none_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert _draw() == ([], [])
    assert _draw(OWN) == ([OWN], [])
    monkeypatch.setenv("SERVE_EVAL_NO_PICTURES", "1")
    assert _draw(GOOD) == ([GOOD], [])
    monkeypatch.setenv("SERVE_EVAL_NO_PICTURES", "")
    drawn, [warning] = _draw(GOOD, OWN)
    assert drawn == [GOOD, OWN]
    assert "could not be started: FileNotFoundError" in warning


@pytest.mark.parametrize(
    ("library", "kept", "why"),
    [
        ("def vegalite_to_svg(spec, **more): os._exit(3)", 0, "it ended with the status 3"),
        ("import this_is_missing", 0, "it ended with the status 1"),
        (
            "left = [1]\n"
            "def vegalite_to_svg(spec, **more):\n"
            "    left.pop() if left else os.abort()\n"
            '    return \'<svg width="1" height="1" viewBox="0 0 1 1"></svg>\'',
            1,
            "it was ended by SIGABRT",
        ),
        ("def vegalite_to_svg(spec, **more): return 'no picture'", 0, ""),
        ("print('{')\ndef vegalite_to_svg(spec, **more): return '<svg></svg>'", 0, ""),
    ],
)
def test_a_library_that_ends_its_process_keeps_what_was_drawn(
    library: str, kept: int, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vl_convert.py").write_text(f"import os\n{library}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    drawn, [warning] = _draw(GOOD, GOOD, GOOD)
    assert [one.svg is not None for one in drawn] == [i < kept for i in range(3)]
    said = f"warning: {3 - kept} of 3 pictures were not drawn, the page shows rulers instead"
    assert warning == said + (f": the process that draws ended early, {why}" if why else "")


def test_a_limit_of_addresses_is_named(tmp_path: Path) -> None:
    code = (
        "import resource; from tests.report.pictures.test_drawing import GOOD, draw_all\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({8 * 2**30}, resource.RLIM_INFINITY))\n"
        "assert draw_all([GOOD], print) == [GOOD]"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert (
        "ended by SIGTRAP. It reserves 65 GiB of addresses, and ulimit -v allows 8" in done.stdout
    )
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


def test_without_the_extra_the_page_has_the_rulers_of_the_terminal(tmp_path: Path) -> None:
    out = tmp_path / "out"
    flags = ["--launcher", "simulated", "-m", "embedded", "--tasks", "word_problems"]
    more = ["--limit", "30", "--no-reference", "-o", str(out)]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, "run", *flags, *more],
        env=environment(SERVE_EVAL_NO_PICTURES=""),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr.count("warning: ")) == (3, 0), done.stderr
    page = (out / "report.html").read_text()
    [low, high] = re.search(r"\n +(\d+) [┴─]\S+ (\d+)\n", done.stdout).groups()  # type: ignore[union-attr]
    verdict = page[page.index('<section class="verdict') : page.index("</section>")]
    assert re.findall(r'"ruler-end">(\d+)<', verdict) == [low, high]
    value = re.search(r"● ([\d.]+)", done.stdout)
    assert value is not None
    assert f"● value {value[1]} (" in verdict
    assert page.count("The extra page draws more pictures: pip install") == 1
    assert "<rect" not in page
    assert json.loads((out / "report.json").read_text())["tasks"][0]["result"]["scored"] == 30


def test_with_the_extra_the_page_does_not_name_it(tmp_path: Path) -> None:
    flags = ["--launcher", "simulated", "-m", "embedded", "--tasks", "word_problems"]
    more = ["--limit", "30", "--no-reference", "-o", tmp_path / "out"]
    serve_eval("run", *flags, *more, SERVE_EVAL_NO_PICTURES="")
    page = (tmp_path / "out/report.html").read_text()
    assert page.count("<desc") == 3
    assert "The extra page" not in page


def test_the_extra_is_named_by_what_a_package_index_has() -> None:
    assert re.fullmatch(
        r"The extra page draws more pictures: pip install 'vl-convert-python>=[\d.]+'", name_extra()
    )
    assert os.sep not in name_extra()
