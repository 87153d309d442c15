"""The rows of a smoke test: broken between words, with commands that a shell reads as before."""

from __future__ import annotations

import shlex
import subprocess

from hypothesis import given, settings
from hypothesis import strategies as st

from serve_eval.checks.row import CheckOutcome, CheckRow
from serve_eval.cli._smoke_rows import fold_command, write_row
from tests.cli.command import serve_eval
from tests.workflows.smoke.server import Quirks, create

WORDS = st.lists(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=120),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(words=WORDS, width=st.integers(24, 100))
def test_a_folded_command_has_the_same_words(words: list[str], width: int) -> None:
    command = " ".join(map(shlex.quote, words))
    folded = fold_command(command, width)
    assert shlex.split(folded.replace("\\\n", "")) == words
    script = f"printf '%s\\0' {folded}"
    ran = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
    assert ran.stdout.decode().split("\0")[:-1] == words


def test_a_variable_in_a_command_stays_in_one_line() -> None:
    command = (
        "curl -H 'Authorization: Bearer '\"${OPENAI_API_KEY}\" 'a b c d e f g h i j k l m n o'"
    )
    folded = fold_command(command, 30)
    assert len(folded.splitlines()) > 3
    assert '"${OPENAI_API_KEY}"' in folded


def test_no_line_is_longer_than_the_terminal_and_no_word_is_cut() -> None:
    quirks = Quirks(names=frozenset({"unhealthy", "no_tools", "no_guided", "keeps_stop"}))
    with create(quirks).serve_in_thread() as url:
        for more in ((), ("-v",)):
            done = serve_eval("smoke", url, *more, COLUMNS="80")
            wide = serve_eval("smoke", url, *more, COLUMNS="9999")
            assert max(map(len, done.stdout.splitlines())) <= 80, done.stdout
            words = {word for word in wide.stdout.split() if word.isalpha()}
            assert words <= set(done.stdout.replace("'\\\n'", "").split())


def test_a_row_says_everything_and_hides_nothing() -> None:
    told = "the server said " + " ".join(f"word{number}" for number in range(40))
    row = CheckRow(
        name="openai_stream_completions",
        outcome=CheckOutcome.FAIL,
        told=told,
        time_s=1.25,
        model=True,
        curl="curl -sS http://h/v1/models",
    )
    text = write_row(row, verbose=False, width=80)
    assert " ".join(told.split()) in " ".join(text.split())
    assert "(tests the model)" in " ".join(text.split())
    assert text.endswith("\n    curl -sS http://h/v1/models\n")
    assert "1.25 s" in write_row(row, verbose=True, width=None)
