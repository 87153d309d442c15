"""The text of the project keeps to CONTRIBUTING.md, as far as a script can tell."""

import pytest

from tests.prose import __main__ as count
from tests.prose.__main__ import PHRASES, Prose
from tests.root import ROOT


@pytest.mark.parametrize("folders", [count.PACKAGES, count.OTHERS])
def test_docstrings_do_not_open_with_a_question_word(folders):
    asking, docstrings = count.asking_docstrings(count.python_files(ROOT, folders))
    assert docstrings > 1000
    assert asking == []


def test_a_docstring_that_asks_is_counted(tmp_path):
    file = tmp_path / "module.py"
    file.write_text(
        '"""Count it."""\n\n\ndef run():\n    """\n    What it is."""\n    """Why not."""\n'
    )
    assert count.asking_docstrings([file]) == (["\n    What it is.", "Why not."], 3)


def test_no_sentence_of_a_page_opens_with_a_question_word():
    found = list(count.asking_sentences(count.find_pages(ROOT)))
    assert [f"{prose.file.name}:{prose.line} {text}" for prose, text in found] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("One. What it\nis, is two.", ["What it is, is two"]),
        ("**Whether it is** depends.", ["Whether it is** depends"]),
        ("* One.\n* **How it ends.** It does.", ["How it ends"]),
        ("| a | Which it is |", ["Which it is"]),
        ("So: what it is. What is it? Two.", []),
        ("## What it is. One\nTwo.", []),
        ("**How to read it**", []),
        ("What `--flag` sets is one.", ["What `code` sets is one"]),
        ("Whatever it is. Howl.", []),
    ],
)
def test_a_sentence_that_opens_with_a_clause_is_found(tmp_path, text, found):
    (tmp_path / "README.md").write_text(text)
    assert [hit[1] for hit in count.asking_sentences(count.find_pages(tmp_path))] == found


SENT = "_judge_prompts.py"
"""Its texts are sent to judges: other words would give other scores."""


def test_no_docstring_comment_or_message_has_a_listed_phrase():
    found = [hit for hit in count.listed_in_code(ROOT) if hit[0].file.name != SENT]
    assert [f"{prose.file.name}:{prose.line} {phrase}" for prose, phrase in found] == []


def test_no_page_has_a_listed_phrase():
    found = list(count.listed(count.find_pages(ROOT)))
    assert [f"{prose.file.name}:{prose.line} {phrase}" for prose, phrase in found] == []


SOURCE = '''"""Whether it counts."""
# somebody reads
# this beside that
LIMIT = 3
"""So many."""


def run(name: str) -> str:
    """Return it."""
    return f"{name} is told anew, for ever"
'''


def test_each_kind_of_text_is_found(tmp_path):
    file = tmp_path / "module.py"
    file.write_text(SOURCE)
    docstrings = [(prose.line, prose.text) for prose in count.docstrings(file)]
    assert docstrings == [(1, "Whether it counts."), (5, "So many."), (9, "Return it.")]
    assert [prose.text for prose in count.comments(file)] == ["somebody reads this beside that"]
    assert [prose.text for prose in count.messages(file)] == ["{} is told anew, for ever"]


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("Whether", True),
        ("How it is.", True),
        ("Howl.", False),
        ("Return what.", False),
        ("", False),
    ],
)
def test_the_first_word_decides(text, asks):
    assert count.opens_with_question(text) is asks


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Whoever asks beside it", ["Whoever", "beside"]),
        ("what was had is kept", ["was had"]),
        ("a doorway, toldness, besiege", []),
    ],
)
def test_phrases_are_whole_words(text, found):
    assert [hit[0] for hit in PHRASES.finditer(text)] == found


def test_pages_are_read_without_their_code(tmp_path):
    (tmp_path / "README.md").write_text("Somebody.\n\n```\nanew\n```\n\nthe flag `beside`\n")
    assert [phrase for _, phrase in count.listed(count.find_pages(tmp_path))] == ["Somebody"]
    assert list(count.find_pages(tmp_path))[1] == Prose(
        tmp_path / "README.md", 7, "the flag `code`\n"
    )


def test_a_seed_draws_the_same_files_and_messages(tmp_path):
    files = count.draw_files(ROOT, 30, 1)
    assert len(set(files)) == 30
    assert files == count.draw_files(ROOT, 30, 1) != count.draw_files(ROOT, 30, 2)
    (tmp_path / "serve_eval").symlink_to(ROOT / "serve_eval" / "verdicts")  # a part is read sooner
    messages = count.draw_messages(tmp_path, 5, 1)
    assert len(set(messages)) == 5
    assert messages == count.draw_messages(tmp_path, 5, 1) != count.draw_messages(tmp_path, 5, 2)
