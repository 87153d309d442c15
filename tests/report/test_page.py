"""The page shows foreign text as text, in every place."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import msgspec

from serve_eval.report.page import write_page
from serve_eval.schema import Report
from tests.cli.command import serve_eval

HOSTILE = "</title><script>alert('{1}')</script><pre>&amp;{title}{pictures}"


def test_no_name_ends_the_title_or_begins_an_element(tmp_path: Path) -> None:
    cases = tmp_path / "a.yaml"
    cases.write_text("a: {cases: [{case: x, input: {prompt: hi}, expected: {answer: b}}]}")
    flags = ["--launcher", "simulated", "-m", "m", "--cases", cases, "--no-reference"]
    serve_eval("run", *flags, "-o", tmp_path / "run")
    report = msgspec.json.decode((tmp_path / "run/report.json").read_bytes(), type=Report)
    plain = write_page(report, tmp_path / "run").read_text()
    task = report.tasks[0]
    named = replace(
        report,
        tasks=(
            replace(
                task,
                result=replace(task.result, task=HOSTILE),
                verdict=replace(task.verdict, task=HOSTILE, reasons=(HOSTILE,)),
            ),
        ),
        endpoint=replace(report.endpoint, base_url=HOSTILE, model=HOSTILE),
    )
    page = write_page(named, tmp_path / "run").read_text()
    title = re.findall(r"<title>(.*?)</title>", page, re.DOTALL)
    assert [unescape(one) for one in title] == [f"{HOSTILE}: NO REFERENCE"]
    elements = [re.findall(r"<(?!/?span)[^>]+>", text) for text in (page, plain)]
    assert elements[0] == elements[1]
    assert "<script" not in page
