"""Test request bodies that the real models accept and refuse, and the fields that they keep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from serve_eval.launchers._standin.parsing import Invalid, parse, set_fields

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}
KINDS = ("extra_forbidden", "missing", "value_error", "int_type", "int_parsing", "string_type")
OWN: list[dict[str, Any]] = [
    {"route": "completions", "body": {**TEXT, "temperature": 0}, "accepted": True},
    {"route": "completions", "body": {**TEXT, "prompt": [[1], [2, 3]]}, "accepted": True},
    {
        "route": "completions",
        "body": {**TEXT, "prompt_logprobs": 1},
        "accepted": False,
        "error": "extra_forbidden",
    },
    {"route": "completions", "body": {"prompt": "hi"}, "accepted": False, "error": "missing"},
    {
        "route": "chat",
        "body": {**CHAT, "max_tokens": 4, "max_completion_tokens": 4},
        "accepted": False,
    },
    {
        "route": "chat",
        "body": {**CHAT, "top_logprobs": 2},
        "accepted": False,
        "error": "value_error",
    },
    {
        "route": "chat",
        "body": {**CHAT, "detokenize": True},
        "accepted": False,
        "error": "extra_forbidden",
    },
]


def check(row: dict[str, Any]) -> None:
    chat = row["route"] == "chat"
    raw = json.dumps(row["body"]).encode()
    if row["accepted"]:
        request = parse(raw, chat=chat, flavour="v12", path="/v1")
        assert set_fields(request) == row.get("forwarded", set_fields(request))
        return
    with pytest.raises(Invalid) as refused:
        parse(raw, chat=chat, flavour="v12", path="/v1")
    # recorded errors are cut at a length
    assert {kind for kind in KINDS if kind in row.get("error", "")} <= {
        k for k in KINDS if k in str(refused.value)
    }


@pytest.mark.parametrize("row", OWN, ids=lambda row: json.dumps(row["body"]))
def test_bodies_of_ours(row: dict[str, Any]) -> None:
    check(row)


def test_every_body_of_the_conformance_file(shared: Path) -> None:
    rows = json.loads((shared / "vectors/trtllm_serve_conformance.json").read_text())["request"]
    failed = []
    for number, row in enumerate(rows):
        try:
            check(row)
        except (AssertionError, Invalid, pytest.fail.Exception) as error:
            failed.append((number, row["body"], str(error)[:500]))
    assert not failed, f"{len(failed)} of {len(rows)}: {failed}"


def test_broken_json_is_a_validation_error() -> None:
    with pytest.raises(Invalid, match=r"'json_invalid', 'loc': \('body', 9\)"):
        parse(b'{"model":', chat=False, flavour="v12", path="/v1/completions")


def test_main_knows_more_fields() -> None:
    body = {**CHAT, "priority": 0.5, "agent_hierarchy": [["a", 1]]}
    assert set_fields(parse(body, chat=True, flavour="main", path="")) == {**body}
    with pytest.raises(Invalid):
        parse(body, chat=True, flavour="v12", path="")
