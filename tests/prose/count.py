"""Count how a checkout's text reads: question openings, listed phrases, lengths, the index."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tests.prose import source
from tests.prose.listed import PHRASES, QUESTION_WORDS
from tests.prose.source import OTHERS, PACKAGES, Prose

LONGEST = 100
_JOINTS = re.compile(r"""(?:\\[nrt]|\b[fFrRbB]{1,2}(?=['"])|[\s#"\\]|(?<!\w)'|'(?!\w))+""")
_OPENED = re.compile(r"""^ *r?['"]{3}\s*([^\s]+)""", re.MULTILINE)
_HEADING = re.compile(r"^#+ .*$", re.MULTILINE)
_CLAUSE = re.compile(
    r"(?:^|[.:;!?|] |\* |- |\*\*)\**((?:What|Whether|Which|How|Why) [a-z`][^.:;!?|]*)[.:;!|]"
)
TOOL = Path(__file__).parent
"""This package names the phrases that it looks for."""


def figures(root: Path) -> Mapping[str, str]:
    """Return one row for each count, in the order in which they are printed."""
    readme = (root / "README.md").read_text("utf-8")
    pages = sorted((root / "docs").glob("*.md"))
    indexed = [page for page in pages if page in _index(root)]
    others = [file for file in source.python_files(root, OTHERS) if TOOL.name not in file.parts]
    return {
        "docstrings that open with a question word": _share(source.python_files(root, PACKAGES)),
        "the same in tests, bench and training": _share(others),
        "words a line of serve_eval that is not blank": f"{_words_per_line(root):.2f}",
        f"lines of Python above {LONGEST} characters": str(len(list(long_lines(root)))),
        f"lines of the pages above {LONGEST} characters, tables and code left out": str(
            len(list(long_page_lines(root)))
        ),
        "listed phrases in docstrings, comments and messages": str(len(list(listed_in_code(root)))),
        "sentences of the pages that open with a question word": str(
            len(list(asking_sentences(source.pages(root))))
        ),
        "listed phrases in the pages": str(len(list(listed(source.pages(root))))),
        "README, words": str(len(readme.split())),
        "README, lines": str(len(readme.splitlines())),
        "pages in docs": str(len([page for page in pages if page.name != "README.md"])),
        "pages of docs in the index": str(len(indexed)),
    }


def worst_files(root: Path, count: int) -> list[str]:
    """Return the files with most question openings and listed phrases, the worst first."""
    found = Counter(
        prose.file
        for file in source.python_files(root, PACKAGES)
        for prose in source.docstrings(file)
        if opens_with_question(prose.text)
    )
    found.update(prose.file for prose, _ in listed_in_code(root))
    found.update(prose.file for prose, _ in listed(source.pages(root)))
    return [f"{times:4}  {file.relative_to(root)}" for file, times in found.most_common(count)]


def asking_docstrings(files: Iterable[Path]) -> tuple[list[str], int]:
    """Return the docstrings that open with a question word, and how many there are about.

    Only files with a text in triple quotes that opens so are parsed.
    """
    asking, count = [], 0
    for file in files:
        opened = _OPENED.findall(file.read_text("utf-8"))
        count += len(opened)
        if any(map(opens_with_question, opened)):
            texts = (prose.text for prose in source.docstrings(file))
            asking += filter(opens_with_question, texts)
    return asking, count


def opens_with_question(text: str) -> bool:
    """Say whether the first word of a text is a question word."""
    words = text.split(maxsplit=1)
    return bool(words) and words[0].strip(".,:;'\"`").lower() in QUESTION_WORDS


def asking_sentences(proses: Iterable[Prose]) -> Iterator[tuple[Prose, str]]:
    """Yield the sentences of pages that begin with a clause such as "What it is" and ask nothing.

    Headings and questions may begin so.
    """
    for prose in proses:
        for found in _CLAUSE.finditer(" ".join(_HEADING.sub("", prose.text).split())):
            yield prose, found[1].strip()


def listed(proses: Iterable[Prose]) -> Iterator[tuple[Prose, str]]:
    """Yield the listed phrases of some texts, each with the text that it stands in."""
    for prose in proses:
        for found in PHRASES.finditer(" ".join(prose.text.split())):
            yield prose, found[0]


def listed_in_code(root: Path) -> Iterator[tuple[Prose, str]]:
    """Yield the listed phrases in the docstrings, comments and messages of the packages.

    Only files are parsed that have one without their quotes, line ends and signs of comments.
    """
    for file in source.python_files(root, PACKAGES):
        if not PHRASES.search(_JOINTS.sub(" ", file.read_text("utf-8"))):
            continue
        for kind in (source.docstrings, source.comments, source.messages):
            yield from listed(kind(file))


def long_lines(root: Path) -> Iterator[str]:
    """Yield FILE:LINE of each line of Python that is too long."""
    for file in source.python_files(root, PACKAGES + OTHERS):
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
            if len(line) > LONGEST:
                yield f"{file.relative_to(root)}:{number}"


def long_page_lines(root: Path) -> Iterator[str]:
    """Yield FILE:LINE of each line of a page that is too long and could be wrapped."""
    for pattern in source.PAGES:
        for file in sorted(root.glob(pattern)):
            fenced = False
            for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
                fenced ^= line.lstrip().startswith("```")
                wraps = not fenced and not line.startswith("|") and " " in line[:LONGEST].strip()
                if wraps and len(line) > LONGEST:
                    yield f"{file.relative_to(root)}:{number}"


def _share(files: list[Path]) -> str:
    texts = [prose.text for file in files for prose in source.docstrings(file)]
    asking = sum(map(opens_with_question, texts))
    return f"{asking} of {len(texts)} ({100 * asking / max(len(texts), 1):.1f} %)"


def _words_per_line(root: Path) -> float:
    lines = [
        line
        for file in source.python_files(root, ("serve_eval",))
        for line in file.read_text("utf-8").splitlines()
        if line.strip()
    ]
    return sum(len(line.split()) for line in lines) / max(len(lines), 1)


def _index(root: Path) -> set[Path]:
    index = root / "docs" / "README.md"
    if not index.exists():
        return set()
    return {root / "docs" / name for name in re.findall(r"\]\(([\w-]+\.md)\)", index.read_text())}
