"""Test the row of a smoke test that compares prompts with the files of a model."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from serve_eval.checks.kinds.tokens import prompt_tokens_check
from serve_eval.checks.row import CheckOutcome, CheckRow
from serve_eval.errors import install_command
from serve_eval.evidence.prompt_audit.local_tokens import LocalTokenizer
from serve_eval.launchers.embedded import WEIGHTS
from tests.cli.command import in_a_process, serve_eval
from tests.evidence.prompt_audit.embedded_tokenizer import (
    TEMPLATE,
    local_side,
    make_folder,
    serve_folder,
)
from tests.scripted_server import ScriptedServer
from tests.workflows.smoke.trying import by_name, smoke_of

NO_PACKAGE = "raise ImportError('not installed')\n"
PACKAGE = """
from pathlib import Path
from tests.evidence.prompt_audit.embedded_tokenizer import EmbeddedTokenizer

class Tokenizer:
    @classmethod
    def from_file(cls, path):
        self = cls()
        self.own = EmbeddedTokenizer(Path(path).parent)
        return self
    def encode(self, text, add_special_tokens):
        self.ids = self.own.encode(text, add_special_tokens=add_special_tokens)
        return self
    def id_to_token(self, token):
        return self.own.piece(token)
    def token_to_id(self, piece):
        return self.own.find(piece)
"""
"""A package with the interface of `tokenizers`, which this environment may lack."""


def _row(server: ScriptedServer, local: LocalTokenizer) -> CheckRow:
    return by_name(smoke_of(server, only=["prompt_tokens"], local=local))["prompt_tokens"]


def test_equal_ids_pass_and_so_do_equal_counts() -> None:
    row = _row(serve_folder(WEIGHTS), local_side(WEIGHTS))
    assert (row.outcome, row.told) == (CheckOutcome.PASS, "4 prompts have the ids of the files")
    row = _row(serve_folder(WEIGHTS, ids=False), local_side(WEIGHTS))
    assert row.outcome is CheckOutcome.PASS
    assert row.told == "4 their number of tokens (ids are not available)"


def test_another_template_fails_and_is_named(tmp_path: Path) -> None:
    served = make_folder(tmp_path, "<|system|>\nBe nice.<|end|>\n" + TEMPLATE)
    row = _row(serve_folder(served), local_side(WEIGHTS))
    assert row.outcome is CheckOutcome.FAIL
    assert row.told.startswith(
        "chat 'Name a colour.': the server adds a system message before the first turn:"
        " '<|system|>\\nBe nice.<|end|>\\n'"
    )
    row = _row(serve_folder(served, ids=False), local_side(WEIGHTS))
    assert row.outcome is CheckOutcome.FAIL
    assert "more than the folder" in row.told


def test_a_route_with_other_tokens_than_answers_count_fails() -> None:
    row = _row(serve_folder(WEIGHTS, counted_more=1), local_side(WEIGHTS))
    assert row.outcome is CheckOutcome.FAIL
    assert "/tokenize gives 16 tokens, but its answers count 17" in row.told
    assert row.told.endswith("; 1 more")


def test_such_a_route_fails_even_if_the_counts_are_those_of_the_files(tmp_path: Path) -> None:
    served = make_folder(tmp_path, "<|end|>" + TEMPLATE)
    row = _row(serve_folder(served, bos="<|end|>", counted_more=-1), local_side(WEIGHTS))
    assert row.outcome is CheckOutcome.FAIL
    assert "/tokenize gives 17 tokens, but its answers count 16" in row.told


@pytest.mark.parametrize("begin", ["{{ strftime_now('%d %b %Y') }}", "<|end|><|end|>"])
def test_a_date_or_a_doubled_token_on_both_sides_passes_and_is_named(
    tmp_path: Path, begin: str
) -> None:
    folder = make_folder(tmp_path, begin + TEMPLATE, bos_token="<|end|>")
    row = _row(serve_folder(folder), local_side(folder))
    assert row.outcome is CheckOutcome.PASS
    told = "writes the date 26 Nov 2026" if "strftime" in begin else "begins 2 times with <|end|>"
    assert told in row.told


def test_prompts_that_cannot_be_read_are_unsupported(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "{{ raise_exception('no') }}")
    row = _row(serve_folder(WEIGHTS, chats_only=True), local_side(folder))
    assert row.outcome is CheckOutcome.UNSUPPORTED
    assert "the chat template fails: no" in row.told


def test_the_command_reads_the_folder_with_the_package(tmp_path: Path) -> None:
    (tmp_path / "tokenizers.py").write_text(PACKAGE)
    path = os.pathsep.join([str(tmp_path), str(Path.cwd())])
    with serve_folder(WEIGHTS).serve_in_thread() as url:
        done = in_a_process(
            "smoke", url, "-v", "--set", f"smoke.tokenizer={WEIGHTS}", PYTHONPATH=path
        )
    [line] = [one for one in done.stdout.splitlines() if " prompt_tokens " in one]
    assert line.split()[0] == "PASS", done.stdout + done.stderr
    assert line.endswith("4 prompts have the ids of the files")


def test_the_extra_is_named_if_its_package_is_missing(tmp_path: Path) -> None:
    (tmp_path / "tokenizers.py").write_text(NO_PACKAGE)
    path = os.pathsep.join([str(tmp_path), str(Path.cwd())])
    done = in_a_process(
        "smoke", "127.0.0.1:9", "--set", f"smoke.tokenizer={WEIGHTS}", PYTHONPATH=path
    )
    assert done.returncode == 2
    assert install_command("tokenizer") in done.stderr
    done = serve_eval("smoke", "127.0.0.1:9", "--set", f"smoke.tokenizer={tmp_path}")
    assert (done.returncode, "has no tokenizer.json" in done.stderr) == (2, True)


def test_its_cost_is_declared() -> None:
    check = prompt_tokens_check(local_side(WEIGHTS))
    assert (check.requests, check.tokens) == (32, 8)
