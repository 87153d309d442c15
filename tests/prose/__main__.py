"""Count how the text of checkouts reads, side by side: `python -m tests.prose [ROOT ...]`."""

from __future__ import annotations

import argparse
import ast
import io
import random
import re
import tokenize
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

LISTED = {
    r"(?:was|were|is|are|be|been) had": "has, got; `finished answers are kept`",
    r"had is kept": "`finished answers are kept`",
    r"(?:is|are|was|were|be) told": "receives, reports, prints",
    r"nothing tells": "the response does not say",
    r"tells of": "reports",
    r"lets? (?:others |them |it )?wait": "is slow, blocks",
    r"so many": "that number of, the share",
    r"so much": "the amount, the size",
    r"beside": "next to, compared with",
    r"besides": "also, except",
    r"anew": "again, new",
    r"whoever": "the process that, the user who",
    r"otherwise than": "different from, unlike",
    r"for ever": "forever, without a limit",
    r"may be \w+ no more": "counts towards the limit",
    r"no more (?:is|are|was|were)": "no longer",
    r"as good as": "almost",
    r"all the same": "still, nevertheless",
    r"is no good": "is not usable",
    r"(?:is|are) waited for": "waits for",
    r"(?:is|are) looked at": "checks, reads",
    r"(?:is|are) meant": "means, applies to",
    r"front door": "orchestrator, front end",
    r"behind (?:one|the|a) door": "behind an endpoint",
    r"(?:behind|through|at|of) the door": "endpoint",
    r"where that is known": "if known",
    r"of one's own": "your own",
    r"than there was": "than before",
    r"by what": "how much, the share",
    r"in the way of": "like, as",
    r"is there no": "there is no",
    r"not but": "only",
    r"nothing but": "only",
    r"somebody": "someone; name the user or the process",
}
"""From a phrase (a regular expression between word boundaries) to plainer words."""

PHRASES = re.compile(r"\b(?:" + "|".join(LISTED) + r")\b", re.IGNORECASE)

QUESTION_WORDS = frozenset(
    ("what", "which", "whether", "where", "who", "whose", "whom", "when", "how", "why")
)


PACKAGES = ("serve_eval", "launchers")
OTHERS = ("tests", "bench", "training")
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/*.md")
MIN_WORDS = 3
"""A string with fewer words is a name or a value, not a message."""

_FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")


@dataclass(frozen=True, slots=True)
class Prose:
    """A piece of text for people, at the first line of where it stands."""

    file: Path
    line: int
    text: str


def python_files(root, folders):
    """Return the Python files below some folders of a checkout."""
    return [file for folder in folders for file in sorted((root / folder).rglob("*.py"))]


def docstrings(file):
    """Return the docstrings of a file: of the module, classes, functions, and of constants."""
    return _parse_texts(file)[0]


@cache
def comments(file):
    """Return the comments of a file, those of consecutive lines as one."""
    return tuple(_find_comments(file))


def messages(file):
    """Return the strings of a file that are no docstrings and have at least MIN_WORDS words."""
    return _parse_texts(file)[1]


@cache  # several checks read the same files, and parsing is most of their time
def _parse_texts(file):
    nodes = list(ast.walk(ast.parse(file.read_text("utf-8"))))
    return tuple(_find_docstrings(file, nodes)), tuple(_find_messages(file, nodes))


def _find_docstrings(file, nodes):
    for node in nodes:
        match node:
            case ast.Expr(value=ast.Constant(value=str() as text)):
                yield Prose(file, node.lineno, text)


def _find_comments(file):
    block = []
    source = file.read_text("utf-8")
    if "#" not in source:
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if block and token.start[0] > block[-1][0] + 1:
            yield Prose(file, block[0][0], " ".join(text for _, text in block))
            block = []
        block.append((token.start[0], token.string.lstrip("#! ")))
    if block:
        yield Prose(file, block[0][0], " ".join(text for _, text in block))


def _find_messages(file, nodes):
    known = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # docstrings
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            known |= {id(part) for part in node.values}
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if id(node) not in known and len(re.findall(r"[A-Za-z]{2,}", text)) >= MIN_WORDS:
            yield Prose(file, node.lineno, text)


def find_pages(root):
    """Yield each paragraph of the pages, without fenced code and the text in backticks."""
    for pattern in PAGES:
        for file in sorted(root.glob(pattern)):
            text = _FENCE.sub(lambda found: "\n" * found[0].count("\n"), file.read_text("utf-8"))
            line = 1
            for paragraph in re.split(r"(\n\s*\n)", text):
                if paragraph.strip():
                    yield Prose(file, line, _CODE.sub("`code`", paragraph))
                line += paragraph.count("\n")


MIN_LINES = 30
"""Shorter files hold too little text to judge."""


def draw_files(root, number, seed):
    """Return `number` files of the packages, as paths below `root`, in the order of the draw."""
    files = [
        str(file.relative_to(root))
        for file in python_files(root, PACKAGES)
        if len(file.read_text("utf-8").splitlines()) >= MIN_LINES
    ]
    return random.Random(seed).sample(files, number)


def draw_messages(root, number, seed):
    """Return `number` messages of the packages as FILE:LINE and text, in the order of the draw."""
    found = [
        f"{file.relative_to(root)}:{prose.line}  {' '.join(prose.text.split())}"
        for file in python_files(root, PACKAGES)
        for prose in messages(file)
    ]
    return random.Random(seed).sample(found, number)


LONGEST = 100
_JOINTS = re.compile(r"""(?:\\[nrt]|\b[fFrRbB]{1,2}(?=['"])|[\s#"\\]|(?<!\w)'|'(?!\w))+""")
_OPENED = re.compile(r"""^ *r?['"]{3}\s*([^\s]+)""", re.MULTILINE)
_HEADING = re.compile(r"^#+ .*$", re.MULTILINE)
_CLAUSE = re.compile(
    r"(?:^|[.:;!?|] |\* |- |\*\*)\**((?:What|Whether|Which|How|Why) [a-z`][^.:;!?|]*)[.:;!|]"
)
TOOL = Path(__file__).parent
"""This package names the phrases that it looks for."""


def figures(root):
    """Return one row for each count, in the order in which they are printed."""
    readme = (root / "README.md").read_text("utf-8")
    pages = sorted((root / "docs").glob("*.md"))
    indexed = [page for page in pages if page in _index(root)]
    others = [file for file in python_files(root, OTHERS) if TOOL.name not in file.parts]
    return {
        "docstrings that open with a question word": _share(python_files(root, PACKAGES)),
        "the same in tests, bench and training": _share(others),
        "words a line of serve_eval that is not blank": f"{_words_per_line(root):.2f}",
        f"lines of Python above {LONGEST} characters": str(len(list(long_lines(root)))),
        f"lines of the pages above {LONGEST} characters, tables and code left out": str(
            len(list(long_page_lines(root)))
        ),
        "listed phrases in docstrings, comments and messages": str(len(list(listed_in_code(root)))),
        "sentences of the pages that open with a question word": str(
            len(list(asking_sentences(find_pages(root))))
        ),
        "listed phrases in the pages": str(len(list(listed(find_pages(root))))),
        "README, words": str(len(readme.split())),
        "README, lines": str(len(readme.splitlines())),
        "pages in docs": str(len([page for page in pages if page.name != "README.md"])),
        "pages of docs in the index": str(len(indexed)),
    }


def worst_files(root, count):
    """Return the files with most question openings and listed phrases, the worst first."""
    found = Counter(
        prose.file
        for file in python_files(root, PACKAGES)
        for prose in docstrings(file)
        if opens_with_question(prose.text)
    )
    found.update(prose.file for prose, _ in listed_in_code(root))
    found.update(prose.file for prose, _ in listed(find_pages(root)))
    return [f"{times:4}  {file.relative_to(root)}" for file, times in found.most_common(count)]


def asking_docstrings(files):
    """Return the docstrings that open with a question word, and how many there are about.

    Only files with a text in triple quotes that opens so are parsed.
    """
    asking, count = [], 0
    for file in files:
        opened = _OPENED.findall(file.read_text("utf-8"))
        count += len(opened)
        if any(map(opens_with_question, opened)):
            texts = (prose.text for prose in docstrings(file))
            asking += filter(opens_with_question, texts)
    return asking, count


def opens_with_question(text):
    """Say whether the first word of a text is a question word."""
    words = text.split(maxsplit=1)
    return bool(words) and words[0].strip(".,:;'\"`").lower() in QUESTION_WORDS


def asking_sentences(proses):
    """Yield the sentences of pages that begin with a clause such as "What it is" and ask nothing.

    Headings and questions may begin so.
    """
    for prose in proses:
        for found in _CLAUSE.finditer(" ".join(_HEADING.sub("", prose.text).split())):
            yield prose, found[1].strip()


def listed(proses):
    """Yield the listed phrases of some texts, each with the text that it stands in."""
    for prose in proses:
        for found in PHRASES.finditer(" ".join(prose.text.split())):
            yield prose, found[0]


def listed_in_code(root):
    """Yield the listed phrases in the docstrings, comments and messages of the packages.

    Only files are parsed that have one without their quotes, line ends and signs of comments.
    """
    for file in python_files(root, PACKAGES):
        if not PHRASES.search(_JOINTS.sub(" ", file.read_text("utf-8"))):
            continue
        for kind in (docstrings, comments, messages):
            yield from listed(kind(file))


def long_lines(root):
    """Yield FILE:LINE of each line of Python that is too long."""
    for file in python_files(root, PACKAGES + OTHERS):
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
            if len(line) > LONGEST:
                yield f"{file.relative_to(root)}:{number}"


def long_page_lines(root):
    """Yield FILE:LINE of each line of a page that is too long and could be wrapped."""
    for pattern in PAGES:
        for file in sorted(root.glob(pattern)):
            fenced = False
            for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
                fenced ^= line.lstrip().startswith("```")
                wraps = not fenced and not line.startswith("|") and " " in line[:LONGEST].strip()
                if wraps and len(line) > LONGEST:
                    yield f"{file.relative_to(root)}:{number}"


def _share(files):
    texts = [prose.text for file in files for prose in docstrings(file)]
    asking = sum(map(opens_with_question, texts))
    return f"{asking} of {len(texts)} ({100 * asking / max(len(texts), 1):.1f} %)"


def _words_per_line(root):
    lines = [
        line
        for file in python_files(root, ("serve_eval",))
        for line in file.read_text("utf-8").splitlines()
        if line.strip()
    ]
    return sum(len(line.split()) for line in lines) / max(len(lines), 1)


def _index(root):
    index = root / "docs" / "README.md"
    if not index.exists():
        return set()
    return {root / "docs" / name for name in re.findall(r"\]\(([\w-]+\.md)\)", index.read_text())}


def main():
    """Print the counts of each checkout, then the worst files of the last one."""
    parser = argparse.ArgumentParser(prog="python -m tests.prose", description=__doc__)
    parser.add_argument("roots", nargs="*", type=Path, default=[Path()], metavar="ROOT")
    parser.add_argument("--worst", type=int, default=10, metavar="N", help="files to print")
    parser.add_argument(
        "--below", metavar="PATH", help="print every finding below a path, and nothing else"
    )
    parser.add_argument("--draw", type=int, metavar="N", help="print N files drawn by --seed")
    parser.add_argument(
        "--draw-messages", type=int, metavar="N", help="print N messages drawn by --seed"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--phrases", action="store_true", help="print the list, and nothing else")
    given = parser.parse_args()
    root = given.roots[-1].resolve()
    if given.phrases:
        for phrase, instead in LISTED.items():
            print(f"{phrase:40} {instead}")
    elif given.draw:
        print("\n".join(draw_files(root, given.draw, given.seed)))
    elif given.draw_messages:
        print("\n".join(draw_messages(root, given.draw_messages, given.seed)))
    elif given.below:
        _print_findings(root, given.below)
    else:
        _print_figures([root.resolve() for root in given.roots])
        print(f"\nworst files of {root.name}:")
        print("\n".join(worst_files(root, given.worst)))


def _print_figures(roots):
    columns = [figures(root) for root in roots]
    width = max(map(len, columns[0]))
    for name in columns[0]:
        print(f"{name:{width}}  " + "  ".join(f"{column[name]:>20}" for column in columns))


def _print_findings(root, below):
    folder = root / below
    for file in python_files(root, PACKAGES + OTHERS):
        if file.is_relative_to(folder):
            for prose in docstrings(file):
                if opens_with_question(prose.text):
                    print(
                        f"{file.relative_to(root)}:{prose.line} opens with {prose.text.split()[0]}"
                    )
            for kind in (docstrings, comments, messages):
                for prose, phrase in listed(kind(file)):
                    print(f"{file.relative_to(root)}:{prose.line} {phrase}")
    for prose, phrase in listed(find_pages(root)):
        if prose.file.is_relative_to(folder):
            print(f"{prose.file.relative_to(root)}:{prose.line} {phrase}")


if __name__ == "__main__":
    main()
