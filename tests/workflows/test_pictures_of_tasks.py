"""No picture of any page mixes the values of two tasks: every page with pictures is walked."""

import re
from html import unescape
from pathlib import Path

import pytest

from tests.cli.command import serve_eval

TASKS = ("word_problems", "passkey_short", "tool_calls")
PRODUCERS = {
    "report/run/page_blocks.py",
    "workflows/drift.py",
    "workflows/compare/document.py",
    "workflows/load/document.py",
    "workflows/suite/page_blocks.py",
    "workflows/verify/document.py",  # distances of the probes of one server, which have no task
    "workflows/view/document.py",
    "workflows/view/listing.py",  # fields of the breakdown of a task, as in compare
    "workflows/watch/document.py",  # a watch refuses more than one task
}
RUNS = 5

pytestmark = pytest.mark.usefixtures("simulated_here")


@pytest.fixture(scope="module")
def pages(tmp_path_factory, simulated_here):
    """Return a folder with pages of a run, a suite, a comparison, loads, a view and a drift."""
    top = tmp_path_factory.mktemp("pages")
    runs = "\n".join(
        f"    - {{label: build-{i}, launcher: {{name: simulated, damage: 0.{i}}},"
        f" attributes: {{bits: {16 - 2 * i}, cache: {'fp8' if i % 2 else 'bf16'}}}}}"
        for i in range(RUNS)
    )
    (top / "nightly.yaml").write_text(
        "defaults: {model: org/llama-8b, limit: 24, no_reference: true,"
        f" tasks: [{', '.join(TASKS)}]}}\nmatrix:\n  build:\n{runs}\n"
    )
    serve_eval(f"run {top}/nightly.yaml -o {top}/suite", exits=3)
    serve_eval(
        f"run --launcher simulated -m org/llama-8b --limit 24 --no-reference -o {top}/run -t",
        ",".join(TASKS),
        exits=3,
    )
    a, b = (top / f"suite/runs/build-{i}" for i in (0, 4))
    assert serve_eval(f"compare {a} {b} -o {top}/compare").returncode in (0, 1, 3)
    (top / "plan.yaml").write_text("model: org/llama-8b\nlauncher: {name: simulated}\n")
    load = serve_eval(
        f"check load {top}/plan.yaml -t word_problems,tool_calls --limit 12 --concurrency 1,4"
        f" -o {top}/load"
    )
    assert (top / "load/report.html").exists(), load.stderr
    serve_eval(f"runs view {top}/suite -o {top}/view.html", exits=0)
    drift = serve_eval(f"runs trend {top}/suite -o {top}/drift.html")
    assert (top / "drift.html").exists(), drift.stderr
    return top


def _list_figures(page):
    """Return the title and the labels of the bars of each picture of a page."""
    html = page.read_text()
    return [
        (
            unescape(re.findall(r"<figcaption>(.*?)</figcaption>", figure)[0]),
            [unescape(label) for label in re.findall(r"<dt>(.*?)</dt>", figure)],
        )
        for figure in re.findall(r"<figure>(.*?)</figure>", html, re.DOTALL)
    ]


def test_every_picture_shows_one_task(pages):
    found = {page: _list_figures(page) for page in sorted(pages.rglob("*.html"))}
    names = {str(page.relative_to(pages)) for page, figures in found.items() if figures}
    stories = {f"{story}/report.html" for story in ("run", "suite", "compare", "load")}
    assert stories | {"view.html", "drift.html"} <= names
    for page, figures in found.items():
        for title, labels in figures:
            named = [task for task in TASKS if task in title]
            assert len(named) == 1, (page.name, title)
            others = [task for task in TASKS if task not in title]
            assert not [x for x in labels for task in others if task in x], (page, title)


def test_a_picture_of_a_suite_has_each_run_once(pages):
    figures = _list_figures(pages / "suite/report.html")
    over = [(title, labels) for title, labels in figures if "value by bits" in title]
    assert len(over) == len(TASKS)
    assert all(len(labels) == len({*labels}) == RUNS for _, labels in over)
    assert len([title for title, _ in figures if "value by cache" in title]) == len(TASKS)


def test_a_watch_takes_one_task(tmp_path):
    serve_eval(
        f"watch http://127.0.0.1:9 -o {tmp_path}/w -t",
        ",".join(TASKS[:2]),
        exits=2,
        tells="a watch takes one task, not 2",
    )


def test_every_maker_of_pictures_is_walked_here():
    """A new page with pictures needs a line in PRODUCERS, and its pages above."""
    top = Path(__file__).parents[2] / "serve_eval"
    users = {
        str(file.relative_to(top))
        for file in top.rglob("*.py")
        if "PictureSection(" in file.read_text() and file.name != "content.py"
    }
    assert users == PRODUCERS
