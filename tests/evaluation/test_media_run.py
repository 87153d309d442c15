"""A whole run with media: what its folder keeps, and what a lost file does to it."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.datasets import small_media
from serve_eval.errors import PlanError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.launchers._simulated.simulator import SimulatorConfig, create_app, serve
from serve_eval.schema import Connection, MediaFile, Plan, Report, Spec, VerdictOutcome
from serve_eval.storage.records.prompts import read_prompts
from serve_eval.workflows.capsule.capsule import capsules

FOLDER = Path(small_media.__file__).parent
CASES = """heard:
  cases:
    - case: both
      input: {prompt: What do you see and hear?, images: [shape.png], audio: [number.wav]}
      expected: I do not know.
    - case: moves
      input: {prompt: Where does it move?, video: [dot.mp4], audio: [number.wav]}
      expected: I do not know.
"""


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    for name in ("shape.png", "number.wav", "dot.mp4"):
        shutil.copy(FOLDER / name, tmp_path)
    (tmp_path / "heard.yaml").write_text(CASES)
    task = Spec(name="cases:heard", options={"path": str(tmp_path / "heard.yaml")})
    launcher = Spec(name="external", options={"base_url": "http://localhost:1/v1"})
    return Plan(model="simulated", launcher=launcher, tasks=(task,), no_reference=True)


def _run(plan: Plan, out: Path, config: SimulatorConfig | None = None) -> Report:
    async def main() -> Report:
        async with serve(create_app(config or SimulatorConfig())) as url:
            launcher = replace(plan.launcher, options={"base_url": url})
            return await evaluate(replace(plan, launcher=launcher), out, environ={})

    return asyncio.run(main())


def _kept(out: Path) -> list[str]:
    return sorted(path.suffix for path in (out / "media").glob("*"))


def test_a_run_keeps_each_medium_once_and_no_path(plan: Plan, tmp_path: Path) -> None:
    out = tmp_path / "run"
    [task] = _run(plan, out).tasks
    assert task.result.value == 100.0
    assert _kept(out) == [".mp4", ".png", ".wav"]
    prompts = [one.prompt for one in read_prompts(out, "cases:heard")]
    media = [part for prompt in prompts for turn in prompt or () for part in turn.media]  # type: ignore[union-attr]
    assert [part.form for part in media if isinstance(part, MediaFile)] == [
        *("image_url", "input_audio", "input_audio", "video_url")
    ]
    assert str(tmp_path) not in (out / "prompts" / "cases-heard.jsonl").read_text()
    _run(replace(plan, no_media=True), tmp_path / "none")
    assert _kept(tmp_path / "none") == []


def test_a_server_that_may_read_the_files_gives_the_same_fingerprint(
    plan: Plan, tmp_path: Path
) -> None:
    by_path = replace(plan, connection=Connection(send_media="path"))
    [inline] = _run(plan, tmp_path / "inline").tasks
    [path] = _run(by_path, tmp_path / "path", SimulatorConfig(local_media=str(tmp_path))).tasks
    assert path.result.value == inline.result.value == 100.0
    assert path.fingerprint == inline.fingerprint


def test_what_the_endpoint_does_not_take_is_unsupported(plan: Plan, tmp_path: Path) -> None:
    [task] = _run(plan, tmp_path / "run", SimulatorConfig(no_video=True)).tasks
    assert task.verdict.outcome is VerdictOutcome.UNSUPPORTED
    assert task.verdict.reasons[0].startswith("unsupported: the endpoint lacks videos: HTTP 400")
    assert task.verdict.reasons[0].endswith("Serve a model that takes videos.")


def test_a_file_that_is_missing_is_named_before_anything_is_asked(
    plan: Plan, tmp_path: Path
) -> None:
    (tmp_path / "dot.mp4").unlink()
    with pytest.raises(PlanError, match=r"dot\.mp4: No such file"):
        _run(plan, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_capsule_holds_the_bytes_that_were_sent(plan: Plan, tmp_path: Path) -> None:
    out = tmp_path / "run"
    _run(plan, out)
    [name] = [one.id for one in read_prompts(out, "cases:heard") if one.id.startswith("moves")]
    [folder] = capsules(out, [name], tmp_path / "capsules", environ={})
    body = json.loads((folder / "body.json").read_text())
    sound, video, _ = body["messages"][0]["content"]
    dot = base64.b64encode((FOLDER / "dot.mp4").read_bytes()).decode()
    assert video == {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{dot}"}}
    assert (sound["type"], sound["input_audio"]["format"]) == ("input_audio", "wav")
