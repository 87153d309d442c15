"""Test that commands accuse no sound model that thinks, and say when they cannot judge it."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from tests.cli.command import serve_eval
from tests.scripted_server import HttpRequest, Reply, ScriptedServer, answer
from tests.thinking.commands import (
    ENOUGH,
    FEW,
    CopyingModel,
    canaries_once,
    invariants_once,
    lm_eval_once,
    load_once,
    probes_once,
    write_sums,
)
from tests.thinking.flavours import flavour_in_thread
from tests.thinking.trials import UNJUDGED, Trial


def _attribute(folder: Path, forms: tuple[str, str], max_tokens: int, **faults: int) -> int:
    """Return the exit code of attribute for a server of each form; the faults are the second's."""
    cases = write_sums(folder, max_tokens)
    with flavour_in_thread(forms[0]) as one, flavour_in_thread(forms[1], **faults) as other:
        words = ["--model", "M", "--no-reference", "-o", folder / "run"]
        serve_eval("run", "--base-url", one, "--cases", cases, *words)
        workers = ["--worker", one, "--worker", other]
        done = serve_eval("check", "workers", folder / "run", *workers, "--samples", "20")
    return done.returncode


def _warnings(folder: Path) -> str:
    return "; ".join(json.loads((folder / "run/attribution.json").read_text())["warnings"])


@pytest.mark.parametrize("forms", [("field_long", "opened_long"), ("inline", "inline")])
def test_attribute_judges_no_worker_whose_answers_ended_within_thoughts(
    forms: tuple[str, str], tmp_path: Path
) -> None:
    """Two replicas, of which one has a reasoning parser, differ in the form of thoughts alone."""
    assert _attribute(tmp_path, forms, FEW) == 5
    assert "40 of 40 answers were cut within the model's thoughts" in _warnings(tmp_path)


def test_attribute_finds_a_damaged_worker_that_thinks(tmp_path: Path) -> None:
    assert _attribute(tmp_path, ("field", "opened"), ENOUGH, corrupt_after=0) == 1


def test_attribute_calls_workers_with_whole_thoughts_sound(tmp_path: Path) -> None:
    assert _attribute(tmp_path, ("field", "opened"), ENOUGH) == 0
    assert _warnings(tmp_path) == ""


@pytest.mark.parametrize("name", ["field_long", "opened_long"])
def test_probes_leave_room_for_thoughts(name: str) -> None:
    """Abilities that a short answer hides are found, and their lack is too."""
    assert probes_once(name, False, 0) == ""
    assert "the schema was ignored" in (told := probes_once(name, True, 0))
    assert "tool calls" in told


@pytest.mark.parametrize("trial", [invariants_once, load_once])
def test_answers_that_ended_within_thoughts_show_nothing(trial: Trial) -> None:
    """An odd number asks with few tokens."""
    assert trial("opened", False, 1) == UNJUDGED
    assert trial("opened", False, 0) == ""


def test_lm_evals_model_warns_of_answers_that_ended_within_thoughts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pytest.importorskip("lm_eval")
    with caplog.at_level(logging.WARNING, "lm_eval"):
        assert lm_eval_once("opened", False, 1) == UNJUDGED
    assert "8 of 8 answers were cut within the model's thoughts" in caplog.text


@pytest.mark.parametrize("name", ["field_long", "hybrid_opened"])
def test_chats_of_canaries_repeat_their_codes_behind_thoughts(name: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with flavour_in_thread(name, CopyingModel()) as url:
        words = ["--model", "M", "--canaries", "--limit", "14", "--concurrency", "2", "-o", out]
        assert serve_eval("check", "invariants", url, *words).returncode == 0
    found = json.loads((out / "canaries.json").read_text())
    assert (found["answers"], found["own"]) == (14, 14)


def test_a_leak_of_a_thinker_is_found() -> None:
    assert "received the code of" in canaries_once("opened_long", True, 0)


@pytest.mark.parametrize(("policy", "sent"), [("neutral", True), ("keep", False)])
def test_lm_evals_model_sends_neutral_values_that_are_heeded(policy: str, sent: bool) -> None:
    pytest.importorskip("lm_eval")
    from lm_eval.api.instance import Instance  # slow to import

    from serve_eval.lm_eval_model.model import ServeEvalLM

    server = ScriptedServer(_answer_by_penalty, probed=True)
    with server.serve_in_thread() as url:
        model = ServeEvalLM(base_url=url, model="m", server_defaults=policy)
        given = {"until": ["Question:"], "max_gen_toks": 77}
        asked = Instance(request_type="generate_until", doc={}, arguments=("2+3=", given), idx=0)
        model.generate_until([asked])
    [body] = [body for body in server.bodies if body["max_tokens"] == 77]
    assert ("repetition_penalty" in body) is sent


def _answer_by_penalty(request: HttpRequest) -> Reply:
    return answer(f"text {request.body.get('repetition_penalty', 1)}")
