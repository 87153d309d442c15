"""Several models in one suite, each at its own endpoint: two launched, two already running."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.evaluation.endpoint import launch as endpoints
from serve_eval.launchers._simulated.simulator import STATS, SimulatorConfig, create_app, serve
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.protocol.shared import build_task
from serve_eval.schema import DataRoots, Endpoint, Plan, Spec, SuiteReport
from serve_eval.schema.media import prompt_sha256
from serve_eval.workflows.suite.execution import evaluate_suite
from serve_eval.workflows.suite.file import read

CHAT = {"num_samples": 30, "apply_chat_template": True}
SUITE = """\
defaults:
  dataset_root: {data}
  references_dir: {references}
  allow_mismatch: [apply_chat_template, stop]
  tasks: [{{gsm8k: {{num_samples: 30, apply_chat_template: true}}}}]
plans:
  - {{name: first, model: org/first, launcher: {{name: simulated, accuracy: 0.9}}}}
  - {{name: studio, model: studio, base_url: "{studio}", connection: {{api_key_env: ""}}}}
  - {{name: second, model: org/second, launcher: {{name: simulated, accuracy: 0.9}}}}
  - name: hosted
    model: hosted
    base_url: "{hosted}"
    connection: {{api_key_env: HOSTED_KEY, max_tokens_field: max_completion_tokens}}
    limits: {{concurrency: 4}}
  - {{name: first-again, model: org/first, seed: 1, launcher: {{name: simulated, accuracy: 0.9}}}}
"""


def _answers(file: Path, data_root: Path) -> Path:
    """Write the right answer to each question of the suite, for a running server."""
    task = build_task(Spec(name="gsm8k", options=CHAT))
    lines = []
    for sample in task.load(DataRoots(roots=(data_root,)), 30).samples:
        right, wrong = task.answers(sample)
        entry = {
            "sha256": prompt_sha256(sample.prompt),
            "right": right,
            "wrong": wrong,
            "probability": 1.0,
        }
        lines.append(msgspec.json.encode(entry))
    file.write_bytes(b"\n".join(lines) + b"\n")
    return file


class Launched:
    """The usual launchers, with a record of when their processes start and end."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.up: dict[int, str] = {}

    @asynccontextmanager
    async def launch(
        self, plan: Plan, prepared: Sequence[PreparedTask], folder: Path
    ) -> AsyncIterator[Endpoint]:
        assert not self.up, "the previous one has not ended"
        async with endpoints.launch(plan, prepared, folder) as endpoint:
            self.events.append(f"{plan.launcher.name} {plan.model}")
            if plan.launcher.name != "external":
                self.up[int(str(endpoint.info.pid))] = str(plan.model)
            yield endpoint
        for pid in list(self.up):
            assert not Path(f"/proc/{pid}/cmdline").exists()
            self.events.append(f"end {self.up.pop(pid)}")


async def _evaluate(
    tmp_path: Path, data_root: Path, launched: Launched, seen: dict[str, Any]
) -> SuiteReport:
    configs = {
        "studio": SimulatorConfig(
            answers=tmp_path / "answers", model="studio", no_completions=True, record=True
        ),
        "hosted": SimulatorConfig(
            answers=tmp_path / "answers", model="hosted", api_key="right", record=True
        ),
    }
    async with AsyncExitStack() as stack:
        urls = {}
        for name, config in configs.items():
            app = create_app(config)
            urls[name], seen[name] = await stack.enter_async_context(serve(app)), app[STATS]
        file = tmp_path / "suite.yaml"
        file.write_text(SUITE.format(data=data_root, references=tmp_path / "references", **urls))
        environ = {**os.environ, "HOSTED_KEY": "right", "OPENAI_API_KEY": "of-another"}
        suite = read(file, environ)
        return await evaluate_suite(
            suite, tmp_path / "out", environ=environ, launching=launched.launch
        )


def test_each_model_is_asked_at_its_own_endpoint_and_each_server_starts_and_ends_once(
    tmp_path: Path, data_root: Path
) -> None:
    (tmp_path / "references").mkdir()
    rows = [
        f"{model}:\n  - accuracy: 90.0\n"
        for model in ("org/first", "org/second", "studio", "hosted")
    ]
    (tmp_path / "references/gsm8k.yaml").write_text("".join(rows))
    _answers(tmp_path / "answers", data_root)
    launched, seen = Launched(), dict[str, Any]()
    report = asyncio.run(_evaluate(tmp_path, data_root, launched, seen))
    assert launched.events == [
        "simulated org/first",
        "end org/first",
        "external studio",
        "simulated org/second",
        "end org/second",
        "external hosted",
    ]
    assert {row.run: row.outcome.value for row in report.rows} == dict.fromkeys(
        ("first", "studio", "second", "hosted", "first-again"), "PASS"
    )
    assert report.exit_code == 0
    for name, keys, field in (
        ("studio", {None}, "max_tokens"),
        ("hosted", {"Bearer right"}, "max_completion_tokens"),
    ):
        stats = seen[name]
        assert {headers.get("Authorization") for headers in stats.headers} == keys
        assert {body["model"] for body in stats.bodies} == {name}
        assert all(field in body and "messages" in body for body in stats.bodies)
        assert len(stats.bodies) >= 30
    assert seen["hosted"].max_concurrent <= 4
