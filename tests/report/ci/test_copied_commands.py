"""Copy commands out of a rendered summary, and run them: sh must get exactly the words shown."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from serve_eval.checks.row import SentRequest, curl
from serve_eval.plan.command_line import write_take_command
from serve_eval.report.ci import write_code_block, write_markdown
from serve_eval.report.ci_result import CiCase, CiResult, CiState, CiSuite, CiTable
from serve_eval.report.text import clean
from serve_eval.schema import Connection, Plan, Spec
from serve_eval.shell_words import join_words, quote_argument, quote_path, quote_word

HOSTILE = (
    "a`b", "```\nrm -rf x\n```", "~~~", "$(touch owned)", "`touch owned`", "${HOME}", "it's", 'a"b',
    "a;b&c|d>e<f", "\x1b[31mred\x1b[0m", "a\rb", "line\nline\n", "\n", "\t tab ", "  two  blanks ",
    "-x", "--model", "", "~", "*", "a b", "!history", "\\", "é漢字🙂", "\u202egnp.exe", "\u2028",
    "\x7f\x85", "# not a comment", "a=b", "[x](http://e)", "<b>", "\u200b", "%s%d\\033", "'`'`'",
)  # fmt: skip
"""Names as a hostile model or folder may have them."""
TEXTS = st.text(st.characters(exclude_characters="\x00", exclude_categories=("Cs",)), max_size=20)
END = "end of call"
STUB = f"""#!/bin/sh
printf '%s\\0' "$@" '{END}'
"""


def _run(shell: str, folder: Path) -> list[list[bytes]]:
    """Return the words of each `serve-eval` that sh runs; it may run nothing else."""
    stub = folder / "serve-eval"
    if not stub.exists():
        stub.write_text(STUB)
        stub.chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", shell],
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8"},
        cwd=folder,
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert sorted(path.name for path in folder.iterdir()) == ["serve-eval"]
    *calls, rest = done.stdout.split(f"{END}\0".encode())
    assert rest == b""
    return [call.split(b"\0")[:-1] for call in calls]


def _copy(markdown: str) -> str:
    """Return the only block of code of a Markdown text, as a reader copies it."""
    [block] = [one for one in MarkdownIt("commonmark").parse(markdown) if one.type == "fence"]
    return block.content


def _summarise(commands: Sequence[str]) -> str:
    case = CiCase(group="g", name="n", state=CiState.PASSED)
    suite = CiSuite(name="s", cases=[case])
    table = CiTable(columns=(), rows=())
    return write_markdown(
        CiResult(title="t", outcome="PASS", suites=[suite], table=table, commands=commands)
    )


def test_hostile_words_survive_the_summary_and_sh(tmp_path: Path) -> None:
    commands = [join_words(["serve-eval", "run", "--model", text, text]) for text in HOSTILE]
    found = _run(_copy(_summarise(commands)), tmp_path)
    assert found == [[b"run", b"--model", text.encode(), text.encode()] for text in HOSTILE]


@settings(max_examples=12)
@given(st.lists(TEXTS, min_size=1, max_size=8))
def test_any_words_survive_the_summary_and_sh(
    tmp_path_factory: pytest.TempPathFactory, words: list[str]
) -> None:
    copied = _copy(_summarise([join_words(["serve-eval", *words])]))
    [found] = _run(copied, tmp_path_factory.mktemp("stub"))
    assert found == [word.encode() for word in words]


@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_a_terminal_removes_nothing_of_a_command_and_no_line_of_it_ends_its_block(
    words: list[str],
) -> None:
    command = join_words(words)
    assert clean(command) == command
    assert _copy("\n".join(write_code_block([command, "second"]))) == f"{command}\nsecond\n"


def test_the_commands_of_plans_survive(tmp_path: Path) -> None:
    plan = Plan(model="m", launcher=Spec(name="external"), tasks=(Spec(name="gsm8k"),))
    commands = [write_take_command(replace(plan, model=text), ["gsm8k"]) for text in HOSTILE]
    found = _run(_copy(_summarise(commands)), tmp_path)
    models = [words[words.index(b"--model") + 1] for words in found]
    assert models == [text.encode() for text in HOSTILE]


def test_curl_lines_survive(tmp_path: Path) -> None:
    lines = [
        curl(
            SentRequest(url="http://h/v1/x", body={"model": text}),
            Connection(headers={"X": text}),
            (),
        )
        for text in HOSTILE
    ]
    assert list(map(clean, lines)) == lines
    block = _copy(_summarise(lines))
    found = _run(f'curl() {{ serve-eval "$@"; }}\n{block}', tmp_path)
    for text, words in zip(HOSTILE, found, strict=True):
        assert json.loads(words[-1]) == {"model": text}
        expanded = text.replace("${HOME}", os.environ["HOME"])  # a variable stays one
        assert f"X: {expanded}".encode() in words


def test_no_path_or_sample_is_taken_for_an_option() -> None:
    assert quote_path("-rf") == "./-rf"
    assert quote_path(Path("a b")) == "'a b'"
    assert quote_argument("-1") == "-- -1"
    assert quote_word("plain/word:8000") == "plain/word:8000"
    assert quote_word("a\x00\ud800b") == "ab"
