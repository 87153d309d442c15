"""Show what a suite would do, without sending anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from serve_eval.cli._dry_run import facts
from serve_eval.cli._launch_preview import lines as launch_lines
from serve_eval.cli._launch_preview import preview
from serve_eval.cli._streams import emit, say
from serve_eval.errors import PlanError, ServeEvalError
from serve_eval.evaluation.plan.command_line import HOW_TO_TAKE, write_take_command
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.storage.file_names import LOGS, SERVERS
from serve_eval.evaluation.storage.private_files import pretty_json
from serve_eval.report.text import clean
from serve_eval.schema import Suite, SuiteRun
from serve_eval.verdicts.exit_code import UNDECIDED, worst
from serve_eval.verdicts.references import spec_text
from serve_eval.workflows.suite.server_groups import groups

_SHOWN = ("requests", "judge_requests", "reference", "threshold", "theta", "no_reference", "notes")


def show(suite: Suite, *, as_json: bool) -> int:
    """Print the runs by the server that they share, with its commands and each task's threshold.

    Returns the exit code of the worst run that would be refused, else 0.
    """
    servers = [_server(number, runs) for number, runs in enumerate(groups(suite.runs), start=1)]
    runs = [run for server in servers for run in server["runs"]]
    total = sum(task["requests"] for run in runs for task in run["tasks"])
    content = {"name": suite.name, "servers": servers, "requests": total, "waivers": suite.waivers}
    if as_json:
        emit(pretty_json(content).decode())
    else:
        emit(
            clean(
                "\n".join(
                    [
                        *_lines(suite, servers),
                        f"{len(runs)} runs, {total} requests; nothing was sent",
                    ]
                )
                + "\n"
            )
        )
    refused = [run for run in runs if run["refused"]]
    for run in refused:
        say(f"error: the run {run['name']} would be refused: {run['refused']}")
    return worst([run["exit_code"] for run in runs])


def _server(number: int, runs: Sequence[SuiteRun]) -> dict[str, Any]:
    """Return the runs of a server and the commands that start it.

    Invalid launcher options refuse all of its runs.
    """
    plan, refused = runs[0].plan, None
    commands: list[list[str]] = []
    files: dict[str, str] = {}
    try:
        commands, files = preview(plan, Path(SERVERS) / str(number) / LOGS)
    except PlanError as error:
        refused = error
    return {
        "endpoint": _endpoint(runs[0]),
        "model": plan.model,
        "commands": commands,
        "files": files,
        "runs": [_run(run, refused) for run in runs],
    }


def _endpoint(run: SuiteRun) -> str:
    launcher = run.plan.launcher
    options = ", ".join(
        f"{key}={value}" for key, value in launcher.options.items() if key != "base_url"
    )
    base_url = launcher.options.get("base_url")
    return " ".join(
        filter(None, (f"endpoint {base_url}" if base_url else f"launcher {launcher.name}", options))
    )


def _run(run: SuiteRun, refused: PlanError | None) -> dict[str, Any]:
    plan = run.plan
    told: dict[str, Any] = {
        "name": run.name,
        "attributes": run.attributes,
        "accuracy_spec": spec_text(plan.accuracy_spec),
        "verdict": plan.verdict.name,
        "tasks": [],
        "refused": "",
        "exit_code": 0,
    }
    try:
        if refused is not None:
            raise refused
        prepared = prepare(replace(plan, allow_missing_reference=True))
    except ServeEvalError as error:
        return {**told, "refused": str(error), "exit_code": error.exit_code}
    told["tasks"] = [
        {
            "task": p.task.name,
            **{k: v for k, v in facts(p, plan.times(p.task.name)).items() if k in _SHOWN},
        }
        for p in prepared
    ]
    lacking = [p.spec.name for p in prepared if p.reference is None]
    if lacking and not (
        plan.model is None
        or plan.no_reference
        or plan.allow_missing_reference
        or plan.integration_test
    ):
        take = f"{HOW_TO_TAKE}:\n  {write_take_command(plan, lacking)}"
        why = f"no reference applies to {', '.join(lacking)}. {take}"
        return {**told, "refused": why, "exit_code": UNDECIDED}
    return told


def _lines(suite: Suite, servers: list[dict[str, Any]]) -> list[str]:
    lines = [f"suite {suite.name}"]
    for server in servers:
        lines.append(f"{server['endpoint']}, model {server['model']}:")
        lines += launch_lines(server["commands"], server["files"])
        for run in server["runs"]:
            told = [
                run["accuracy_spec"],
                f"verdict {run['verdict']}",
                *(f"{k} {v}" for k, v in run["attributes"].items()),
            ]
            lines.append(f"  {run['name']}: {', '.join(told)}")
            for task in run["tasks"]:
                reference = task.get("no_reference") or f"threshold {task['threshold']:.3f}"
                if "reference" in task:
                    reference = f"reference {task['reference']:g}, {reference}"
                judged = sum(task.get("judge_requests", {}).values())
                to_judges = f" and at most {judged} to judges" if judged else ""
                lines.append(
                    f"    {task['task']}: {task['requests']} requests{to_judges}, {reference}"
                )
                lines += [f"      note: {note}" for note in task["notes"]]
    return [
        *lines,
        *(f"waiver until {w.until}: {dict(w.match)}: {w.reason}" for w in suite.waivers),
    ]
