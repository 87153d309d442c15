"""Test that smoke, watch and verify accuse no sound model that thinks, and see a damaged one."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve_eval.launchers._standin.generation import ThoughtsForm
from tests.cli.command import serve_eval
from tests.thinking.flavours import FLAVOURS, flavour_in_thread
from tests.thinking.trials import smoke_once, watch_once


@pytest.mark.parametrize("name", ["opened_long", "hybrid_field"])
def test_smoke_accuses_a_damaged_thinker_alone(name: str) -> None:
    assert smoke_once(name, False, 0) == ""
    assert "questions" in smoke_once(name, True, 0)


@pytest.mark.parametrize("name", ["opened_long", "hybrid_opened"])
def test_a_watch_accuses_a_damaged_thinker_alone(name: str) -> None:
    assert watch_once(name, False, 1) == ""
    assert watch_once(name, True, 1) != ""


def test_verify_asks_a_thinker_without_thoughts_where_it_continues_no_message(
    tmp_path: Path,
) -> None:
    file = tmp_path / "reference.json"
    words = ["--model", "M", "--floor", "0.08", "--probes", "40", "-o", tmp_path / "out"]
    with flavour_in_thread("hybrid_field") as url:
        made = serve_eval(
            "verify", url, *words, "--set", "protocol.apply_chat_template=true", "--register", file
        )
    assert made.returncode == 0, made.stderr
    assert '"route":"plain"' in file.read_text()


@pytest.mark.parametrize("name", ["field", "opened", "hybrid_field"])
def test_smoke_names_thoughts_that_loop(name: str) -> None:
    form = FLAVOURS[name][1]["thoughts"]
    looping = ThoughtsForm(opened=form.opened, words=20, repeats=" Wait, let me think again.")
    told = smoke_once(name, False, 0, thoughts=looping)
    assert "reasoning: the thoughts loop: 'Wait, let me think again.' comes again" in told
    assert "questions" not in told


def test_smoke_accuses_no_model_whose_thoughts_are_longer_than_its_limit() -> None:
    """They repeat nothing, and whether they would end is not known."""
    assert smoke_once("opened", False, 0, thoughts=ThoughtsForm(opened=True, words=9000)) == ""
