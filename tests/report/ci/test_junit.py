"""Test the JUnit file of a run, and the commands that write it."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from serve_eval.report.ci import write_junit
from serve_eval.report.document import make_ci_result
from serve_eval.report.run.document import make_run_document
from serve_eval.storage.reports.report_file import read_report
from tests.cli.command import serve_eval as command
from tests.evidence.path_proof.deployments import Deployment, PathFault, run


def test_a_path_that_is_not_proven_is_an_error_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(Deployment(PathFault.BYPASS), folder, expect=("kv_transfer", "speculation"))
    [suite] = ElementTree.fromstring(
        write_junit(make_ci_result(make_run_document(read_report(folder), folder)))
    )
    assert (suite.get("tests"), suite.get("errors"), suite.get("failures")) == ("3", "2", "0")
    task, transfer, speculation = suite
    assert (task.get("classname"), task.get("name")) == ("task", "word_problems")
    properties, error = task
    assert (properties.tag, error.tag) == ("properties", "error")
    assert str(error.get("message")).startswith("INCONCLUSIVE word_problems m: ")
    assert "path not proven: kv_transfer: " in str(error.get("message"))
    assert (transfer.get("classname"), transfer.get("name")) == ("path", "kv_transfer")
    assert str(transfer[0].get("message")).startswith(
        "path not proven: kv_transfer: context servers had 0 of 24 requests"
    )
    assert [one.tag for one in speculation] == ["system-out"]
    # Judging again writes the same file, and a flag adds to the saved expectations.
    file = tmp_path / "again.xml"
    done = command("judge", str(folder), "--junit", str(file), "--expect", "deterministic")
    assert done.returncode == 3
    [again] = ElementTree.parse(file).getroot()
    assert [one.get("name") for one in again] == [
        "word_problems",
        "kv_transfer",
        "speculation",
        "deterministic",
    ]
    missing = command("judge", str(folder), "--junit", str(tmp_path / "no" / "file.xml"))
    assert missing.returncode == 2
