"""The message that answers are kept appears only if there are any."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve_eval.cli._async import explain_kept
from tests.cli.command import serve_eval

RECORDS = {
    "none": "",
    "a failure": (
        '{"id":"1","failure":{"kind":"timeout","message":"\\"response\\":{","retryable":true}}\n'
    ),
    "withdrawn": '{"id":"1","withdrawn":"twice"}\n',
    "an answer": '{"id":"1","failure":{"kind":"timeout"}}\n{"id":"2","response":{"text":"5"}}\n',
}


@pytest.mark.parametrize("below", ["samples", "runs/a/samples", "a/samples"])
@pytest.mark.parametrize("record", RECORDS)
def test_a_folder_holds_answers_when_one_was_had(record: str, below: str, tmp_path: Path) -> None:
    (tmp_path / below).mkdir(parents=True)
    (tmp_path / below / "gsm8k.jsonl").write_text(RECORDS[record])
    told = explain_kept(tmp_path, "this again")
    assert told == (
        "Finished answers are kept. Resume with: this again"
        if record == "an answer"
        else "No answer was received yet. Try again with: this again"
    )


@pytest.mark.parametrize(
    ("launcher", "setting", "answers"),
    [
        ("trtllm", "launcher.command='false'", False),
        ("simulated", "launcher.crash_after=40", True),
    ],
)
def test_a_server_that_ends_leaves_answers_or_none(
    launcher: str, setting: str, answers: bool, data_root: Path, tmp_path: Path
) -> None:
    done = serve_eval(
        *(
            "run",
            "--launcher",
            launcher,
            "--model",
            "m",
            "--tasks",
            "gsm8k",
            "--dataset-root",
            data_root,
        ),
        *("--no-reference", "--concurrency", "1", "-o", tmp_path / "out", "--set", setting),
    )
    assert done.returncode == 4
    assert (
        "Finished answers are kept. Resume with: serve-eval run --resume" in done.stderr
    ) is answers, done.stderr
    assert (
        "No answer was received yet. Try again with: serve-eval run --resume" in done.stderr
    ) is not answers
    assert done.stderr.count("kept") == answers
