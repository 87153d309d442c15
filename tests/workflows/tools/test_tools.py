"""`check tools` against a stand-in of trtllm-serve, sound and with faults of its parsers."""

from __future__ import annotations

import asyncio
import io
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from serve_eval.errors import PlanError, RunFolderError
from serve_eval.report.ci import write_junit
from serve_eval.report.document import make_ci_result, print_document
from serve_eval.schema import ToolCheck
from serve_eval.tasks._tool_requests import KINDS
from serve_eval.verdicts.exit_code import FAIL, PASS
from serve_eval.workflows.tools.document import make_document
from serve_eval.workflows.tools.story import check_limits
from tests.cli.command import serve_eval
from tests.scripted_server import serve_in_thread
from tests.workflows.tools.on_standin import (
    ToolModel,
    check_standin,
    create_standin,
    write_tool_answers,
)

SOME = ("auto", "no_tool", "parallel", "json_schema")
"""Kinds that show every fault."""
LIMIT = 40


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tool_answers(
        tmp_path_factory.mktemp("tools") / "answers.jsonl", list(KINDS), errors=0.0, seed=0
    )


def _check(
    out: Path, answers: Path, faults: dict[str, Any] | None = None, **more: Any
) -> ToolCheck:
    asked = {"kinds": SOME, "loads": (1,), "limit": LIMIT, **more}
    return asyncio.run(check_standin(out, answers, faults, **asked))


def _name(found: ToolCheck) -> dict[str, str]:
    """Return where each error is."""
    return {one.fault: one.where for one in found.findings}


def test_a_sound_server_is_not_accused_and_serves_as_a_reference(
    tmp_path: Path, answers: Path
) -> None:
    found = _check(tmp_path / "a", answers)
    assert (found.findings, found.exit_code) == ((), PASS)
    assert [(one.name, one.sound, one.scored) for one in found.cells] == [
        ("whole at 1", LIMIT, LIMIT),
        ("stream at 1", LIMIT, LIMIT),
    ]
    assert all(one.f1 == 1.0 and one.prompt_tokens > 0 for one in found.cells)
    worse = _check(tmp_path / "b", answers, {"forgets_arguments": True}, reference=tmp_path / "a")
    assert worse.exit_code == FAIL
    [schema] = [one for one in worse.findings if one.fault == "schema mismatch"]
    assert (schema.where, schema.examples != ()) == ("everywhere", True)
    assert any("against the reference: precision 1.000" in line for line in worse.remarks)
    with pytest.raises(RunFolderError, match="holds other requests"):
        _check(tmp_path / "c", answers, limit=LIMIT - 1, reference=tmp_path / "a")


def test_the_command_prints_writes_and_resumes(tmp_path: Path, answers: Path) -> None:
    model = ToolModel(answers, seed=0, thinks=False)
    chosen = (
        "--set",
        "tools.kinds=auto,no_tool",
        "--set",
        "tools.kinds=regex",
        "--limit",
        30,
        "-o",
        tmp_path / "out",
    )
    with serve_in_thread(create_standin(model, {"one_id": True})) as url:
        command = ("check", "tools", url, "--model", "M", "--concurrency", "1", *chosen)
        sound = serve_eval(*command, "--junit", tmp_path / "a.xml")
        assert (sound.returncode, sound.stdout.startswith(" PASS   tool calls  ")) == (
            0,
            True,
        )
        suite = ElementTree.fromstring((tmp_path / "a.xml").read_text())
        assert (suite.get("tests"), suite.get("failures")) == ("12", "0")
        before = model.answered
        # The same answers, judged more strictly: of the fields, four are not refused.
        strict = serve_eval(*command, "--json", "--require", "refusals")
        assert (strict.returncode, model.answered) == (FAIL, before)
        assert json.loads(strict.stdout)["result"]["exit_code"] == FAIL
        assert serve_eval(*command, "--concurrency", "1,2").returncode == 2
    for wrong in (
        ["--set", "tools.max=x=1"],
        ["--set", "tools.max=invalid JSON"],
        ["--set", "tools.kinds=x"],
    ):
        assert serve_eval("check", "tools", url, *wrong).returncode == 2


@pytest.mark.parametrize(
    ("faults", "thinks", "named"),
    [
        ({"drops_last_piece": True}, False, {"lost part": "in streams"}),
        ({"cuts_characters": True}, False, {"broken characters": "in streams"}),
        ({"interval": 10}, False, {"markup left": "in streams"}),
        ({"leaves_markup": True}, False, {"markup left": "everywhere"}),
        (
            {"loses_reasoning": True, "one_index": True, "wrong_usage": True},
            True,
            {
                "lost reasoning": "everywhere",
                "bad id or index": "in streams",
                "prompt tokens differ": "in streams",
            },
        ),
        (
            {"one_id": True, "wrong_finish": True},
            False,
            {"bad id or index": "everywhere", "wrong finish_reason": "everywhere"},
        ),
    ],
)
def test_a_fault_of_a_parser_or_a_stream_is_named(
    tmp_path: Path, answers: Path, faults: dict[str, Any], thinks: bool, named: dict[str, str]
) -> None:
    kinds = ("auto", "no_tool", "parallel") if thinks else SOME
    found = _check(tmp_path / "out", answers, faults, thinks=thinks, kinds=kinds)
    assert found.exit_code == FAIL
    assert named.items() <= _name(found).items()


def test_a_fault_under_load_is_named_with_its_load_and_printed(
    tmp_path: Path, answers: Path
) -> None:
    faults = {"breaks_json_above": 8}
    found = _check(tmp_path / "out", answers, faults, kinds=("auto", "json_schema"), loads=(1, 16))
    assert _name(found)["invalid JSON"] == "from 16 on"
    assert _name(found)["json_schema not enforced"] == "from 16 on"
    document = make_document(found, Path("OUT"))
    suite = ElementTree.fromstring(write_junit(make_ci_result(document)))
    assert suite.get("failures") == "2"
    console = Console(width=80, record=True, file=io.StringIO())
    print_document(document, console)
    shown = console.export_text()
    assert shown.startswith(" FAIL   tool calls  ")
    assert " likely   invalid JSON from 16 on, and 1 more, which points to: a piece of" in shown
    assert " next     serve-eval show OUT/whole_16 " in shown


def test_limits_name_known_errors() -> None:
    check_limits({"invalid JSON": 0.5})
    for limits in ({"no such": 0.5}, {"invalid JSON": 1.5}):
        with pytest.raises(PlanError, match=r"tools\.max"):
            check_limits(limits)
