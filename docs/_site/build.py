"""Build the documentation as a site: `make docs`, or `python docs/_site/build.py FOLDER`.

The pages of docs/ are copied, the reference is written from the code, and every warning, such as a
link to a page or heading that does not exist, is an error. `--links` also asks the addresses of
other sites.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from sphinx.cmd.build import main as run_sphinx

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent
REFERENCE = "reference"
REFERENCE_ROW = f"* [Reference]({REFERENCE}/index.md): commands, plugins, library, from the code\n"
QUESTIONS = "\n## By question\n"
"""The heading below the lists of pages."""
SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
PAGE = re.compile(r"^\* \[[^\]]+\]\(([\w/-]+)\.md\)", re.MULTILINE)


def copy_pages(source: Path, pages: Mapping[str, str]) -> None:
    """Copy docs/ and the generated pages into a folder, with the menus of the sidebar in its index.

    The pages of measured/ are in no menu and no search: the page of their claim links each.
    """
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(DOCS, source, ignore=shutil.ignore_patterns("_site", "__pycache__"))
    for file in sorted(source.glob("measured/*.md")):
        file.write_text(f"---\norphan: true\nnosearch: true\n---\n\n{file.read_text()}")
    (source / REFERENCE).mkdir()
    for name, text in {**pages, "index": _write_reference_list(pages)}.items():
        (source / REFERENCE / f"{name}.md").write_text(text)
    before, heading, after = (source / "README.md").read_text().partition(QUESTIONS)
    text = f"{before}{REFERENCE_ROW}{heading}{after}"
    (source / "README.md").unlink()
    (source / "index.md").write_text(text + "".join(_write_menus(text)))


def _write_reference_list(pages: Mapping[str, str]) -> str:
    rows = [
        f"* [{name.capitalize()}]({name}.md): {_say_first(text)}" for name, text in pages.items()
    ]
    return "\n".join(["# Reference", "", *rows, _menu("\n".join(pages))])


def _say_first(page: str) -> str:
    """Return the first sentence below the heading of a page."""
    sentence = page.split("\n\n")[1].partition(". ")[0].rstrip(".")
    return sentence[0].lower() + sentence[1:] if not sentence.startswith("`") else sentence


def _write_menus(index: str) -> Iterator[str]:
    """Yield a menu for each section of the index that lists pages."""
    titles = list(SECTION.finditer(index))
    ends = [*(one.start() for one in titles[1:]), len(index)]
    for title, end in zip(titles, ends, strict=True):
        if pages := PAGE.findall(index[title.end() : end]):
            yield _menu("\n".join(pages), f":caption: {title[1]}")


def _menu(listed: str, *options: str) -> str:
    head = "\n".join(("```{toctree}", ":hidden:", *options))
    return f"\n{head}\n\n{listed}\n```\n"


def main() -> int:
    """Build the site and return Sphinx's exit status."""
    from reference import write_pages

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="Folder of the site")
    parser.add_argument("--links", action="store_true", help="check links to other sites instead")
    given = parser.parse_args()
    source = given.folder.absolute().with_name(f"{given.folder.name}-source")
    copy_pages(source, dict(write_pages()))
    builder = "linkcheck" if given.links else "html"
    how = ["-q", "-W", "--keep-going", "-b", builder, "-c", str(HERE)]
    return run_sphinx([*how, str(source), str(given.folder)])


if __name__ == "__main__":
    sys.exit(main())
