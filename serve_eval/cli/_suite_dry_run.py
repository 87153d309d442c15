"""Show what a suite would do, without sending anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from serve_eval.cli._dry_run import facts, list_commands, preview
from serve_eval.cli._streams import emit, say
from serve_eval.errors import PlanError
from serve_eval.report.text import clean
from serve_eval.schema import Suite, SuiteRun
from serve_eval.storage.file_names import LOGS, SERVERS
from serve_eval.storage.json_files import pretty_json
from serve_eval.verdicts.exit_code import worst
from serve_eval.verdicts.references import spec_text
from serve_eval.workflows.power.forecast import forecast_tokens, sum_up
from serve_eval.workflows.suite.preparation import (
    RefusedRun,
    check_tasks,
    find_missing,
    groups,
    list_runs,
)

_SHOWN = ("requests", "judge_requests", "reference", "threshold", "theta", "no_reference", "notes")


def show(suite: Suite, refused: Sequence[RefusedRun] = (), *, as_json: bool) -> int:
    """Print the runs by the server that they share, with its commands and each task's threshold.

    `refused` are the runs whose plans are wrong. Returns the exit code of the worst run that would
    be refused, else 0.
    """
    servers = [_server(number, runs) for number, runs in enumerate(groups(suite.runs), start=1)]
    runs = [run for server in servers for run in server["runs"]]
    total = sum(task["requests"] for run in runs for task in run["tasks"])
    tokens = [one for run in runs for one in run["tokens"]]
    content = {
        "name": suite.name,
        "servers": servers,
        "requests": total,
        "tokens": {
            "total": sum(one.total for one in tokens),
            "bounded": any(one.bounded for one in tokens),
        },
        "end_when_certain": suite.end_when_certain,
        "max_tokens_total": suite.max_tokens_total,
        "max_time_s": suite.max_time_s,
        "waivers": suite.waivers,
        "refused": [one._asdict() for one in refused],
    }
    if as_json:
        emit(pretty_json(content).decode())
    else:
        emit(
            clean(
                "\n".join(
                    [
                        *_lines(suite, servers, refused),
                        _count(runs, refused, total, sum_up(tokens, suite.max_tokens_total)),
                    ]
                )
                + "\n"
            )
        )
    for text, names in _group(runs, refused).items():
        say(f"error: the {list_runs(names)} would be refused: {text}")
    return worst([PlanError.exit_code for _ in refused] + [run["exit_code"] for run in runs])


def _count(
    runs: Sequence[Mapping[str, Any]], refused: Sequence[RefusedRun], total: int, tokens: str
) -> str:
    bad = len(refused) + sum(bool(run["refused"]) for run in runs)
    told = f", {bad} would be refused" if bad else ""
    return f"{len(runs) + len(refused)} runs{told}, {total} requests, {tokens}; nothing was sent"


def _group(
    runs: Sequence[Mapping[str, Any]], refused: Sequence[RefusedRun]
) -> dict[str, list[str]]:
    """Return the reasons that would refuse runs, each with the names of its runs."""
    found: dict[str, list[str]] = {}
    for one in refused:
        for problem in one.problems:
            found.setdefault(problem, []).append(one.name)
    for run in runs:
        if run["refused"]:
            found.setdefault(run["refused"], []).append(run["name"])
    return found


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
        "verdict": plan.verdict.name if plan.rule_named else "",
        "tasks": [],
        "tokens": [],
        "refused": "",
        "problems": [],
        "exit_code": 0,
    }
    checked = check_tasks(plan)
    errors = [*([] if refused is None else [refused]), *checked.errors]
    told["refused"] = "\n".join(text for one in errors for text in (str(one), one.hint) if text)
    told["problems"] = [str(one).partition("\n")[0] for one in errors]
    told["exit_code"] = worst([one.exit_code for one in errors]) if errors else 0
    told["tokens"] = [forecast_tokens(plan, p, None) for p in checked.prepared]
    told["tasks"] = [
        {
            "task": p.task.name,
            **{k: v for k, v in facts(p, plan.times(p.task.name)).items() if k in _SHOWN},
        }
        for p in checked.prepared
    ]
    return told


def _lines(suite: Suite, servers: list[dict[str, Any]], refused: Sequence[RefusedRun]) -> list[str]:
    lines = [f"suite {suite.name}"]
    for server in servers:
        lines.append(f"{server['endpoint']}, model {server['model']}:")
        lines += list_commands(server["commands"], server["files"])
        missing = find_missing(server["commands"])
        lines += [f"note: {program} is not on PATH here" for program in missing]
        for run in server["runs"]:
            told = [
                run["accuracy_spec"],
                f"verdict {run['verdict'] or 'by reference'}",
                *(f"{k} {v}" for k, v in run["attributes"].items()),
            ]
            if run["tokens"]:
                told.append(sum_up(run["tokens"], None))
            lines.append(f"  {run['name']}: {', '.join(told)}")
            lines += [f"    refused: {problem}" for problem in run["problems"]]
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
    if refused:
        lines.append("wrong in the file:")
    for one in refused:
        described = "".join(f", {k} {v}" for k, v in one.attributes.items())
        lines.append(f"  {one.name}{described}:")
        lines += [f"    refused: {problem}" for problem in one.problems]
    return [
        *lines,
        *(f"waiver until {w.until}: {dict(w.match)}: {w.reason}" for w in suite.waivers),
    ]
