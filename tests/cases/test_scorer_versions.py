"""A reference that was taken with another version of a scorer judges no run in silence."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serve_eval.errors import ServeEvalError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.plan import resolve
from serve_eval.protocol.fingerprint import fingerprint, protocol_differences
from serve_eval.schema import DataRoots, Report
from serve_eval.tasks import cases
from serve_eval.workflows.references.register import register
from tests.cases.counting import Counting, counting

SCORERS: dict[str, tuple[Any, Any, dict[str, int]]] = {
    "choice": ("choice", "B", {"choice": 2}),
    "yes_no": ("yes_no", "no", {"yes_no": 2}),
    "numeric": ("numeric", 4, {"numeric": 2}),
    "code": ("code", "assert total == 4", {"code": 3}),
    "exact": ("exact", "4", {"exact": 2}),
    "as BioChatter": ({"exact": {"as_biochatter": True}}, "b", {"exact": 1}),
    "set": ("set", ["a", "b"], {"set": 2}),
    "any_of": (
        {"any_of": {"scorer": {"any_of": {"scorer": "numeric"}}}},
        [[3, 4]],
        {"any_of": 1, "any_of/any_of": 1, "any_of/any_of/numeric": 2},
    ),
}


def _write(file: Path, scorer: object, expected: object) -> Path:
    case = {"case": "n", "input": {"prompt": "Question: what is 4?"}, "expected": expected}
    file.write_text(json.dumps({"sums": {"scorer": scorer, "cases": [case]}}))
    return file


@pytest.mark.parametrize("name", SCORERS)
def test_the_versions_of_scorers_are_part_of_the_fingerprint(tmp_path: Path, name: str) -> None:
    scorer, expected, versions = SCORERS[name]
    task = cases.task("sums", path=str(_write(tmp_path / "c.yaml", scorer, expected)))
    fields = fingerprint(task, task.load(DataRoots(roots=()), 1))
    assert json.loads(fields["scorers"]) == versions
    older = {**fields, "scorers": json.dumps({one: v - 1 for one, v in versions.items()})}
    assert protocol_differences(fields, older) == ["scorers"]


@pytest.fixture
def endpoint() -> Iterator[Counting]:
    with counting() as server:
        yield server


def _run(file: Path, endpoint: Counting, out: Path, **more: Any) -> Report:
    settings = {"cases": [str(file)], "base_url": endpoint.url, "model": "m", **more}
    return asyncio.run(evaluate(resolve.resolve({}, settings, {}).plan, out, environ={}))


@pytest.mark.parametrize("scorer", ["numeric", {"any_of": {"scorer": "numeric"}}])
def test_a_reference_of_an_older_version_is_refused_unless_it_is_allowed(
    tmp_path: Path, endpoint: Counting, scorer: Any
) -> None:
    expected = 4 if scorer == "numeric" else [4]
    file = _write(tmp_path / "c.yaml", scorer, expected)
    _run(file, endpoint, tmp_path / "first", no_reference=True)
    register([tmp_path / "first"], tmp_path / "refs")
    refs = {"references_dir": str(tmp_path / "refs")}
    assert _run(file, endpoint, tmp_path / "same", **refs).tasks[0].verdict.outcome == "PASS"
    [reference] = (tmp_path / "refs").glob("*.yaml")
    text = reference.read_text()
    assert "numeric: 2" in text
    reference.write_text(text.replace("numeric: 2", "numeric: 1"))
    with pytest.raises(ServeEvalError, match=r"protocol differs.*scorers is .*numeric.*2.*1"):
        _run(file, endpoint, tmp_path / "other", **refs)
    allowed = _run(file, endpoint, tmp_path / "wish", allow_mismatch=["scorers"], **refs)
    assert allowed.tasks[0].verdict.outcome == "PASS"
