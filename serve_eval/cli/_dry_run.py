"""What a run would do, without doing it."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from serve_eval import folders
from serve_eval.plan import to_file
from serve_eval.preparation import PreparedTask, prepare
from serve_eval.report.exit_code import PASS, UNDECIDED
from serve_eval.report.text import clean
from serve_eval.run_folder import pretty_json
from serve_eval.schema import LaunchContext, Plan
from serve_eval.stats.classic import classic_test


def dump(plan: Plan, file: Path) -> None:
    """Writes every prompt as a JSON line: task, id, prompt (text or messages), target."""
    with file.open("wb") as out:
        for p in prepare(replace(plan, no_reference=True)):
            for sample in p.dataset.samples:
                line = {"task": p.task.name, "id": sample.id, "prompt": sample.prompt, "target": sample.target}
                out.write(msgspec.json.encode(line) + b"\n")


def show(plan: Plan, *, as_json: bool) -> int:
    """Prints the plan, the commands of the launcher and, per task, requests, reference, threshold and first prompt.

    Returns the exit code: 3 when the run would be refused for want of a reference that applies.
    """
    prepared = prepare(replace(plan, no_reference=True))
    launcher = folders.load("launchers", plan.launcher.name)
    options = folders.check_options(launcher, plan.launcher.options, "launcher")
    commands = sys.modules[launcher.__module__].commands(
        LaunchContext(model=plan.model, log_dir=Path("logs")), **options
    )
    tasks = [_facts(p) for p in prepared]
    if as_json:
        content = {"plan": to_file(plan), "commands": commands, "tasks": tasks}
        sys.stdout.write(pretty_json(content).decode())
    else:
        sys.stdout.write(_text(plan, commands, tasks))
    refused = plan.model is not None and not plan.no_reference and any(p.reference is None for p in prepared)
    return UNDECIDED if refused else PASS


def _facts(p: PreparedTask) -> dict[str, Any]:
    h, found = p.hypothesis, p.reference
    facts: dict[str, Any] = {
        "task": p.task.name,
        "requests": len(p.dataset.samples),
        "num_samples": h.num_samples,
        "sigma": h.sigma,
        "alpha": h.alpha,
        "beta": h.beta,
        "data": {"files": p.dataset.files, "sha256": p.dataset.sha256},
        "notes": p.notes,
    }
    if found is None:
        facts["no_reference"] = p.why_no_reference
    else:
        assert h.num_samples is not None
        better = p.task.metric.higher_is_better if found.higher_is_better is None else found.higher_is_better
        test = classic_test(h.num_samples, found.value, h.sigma, h.alpha, h.beta, better)
        facts |= {
            "reference": found.value,
            "threshold": test.threshold if found.threshold is None else found.threshold,
            "theta": test.theta if found.threshold is None else None,
            "reference_source": f"{found.file}:{found.line}",
            "protocol": p.protocol,
        }
    facts["first_prompt"] = p.dataset.samples[0].prompt
    return facts


def _text(plan: Plan, commands: list[list[str]], tasks: list[dict[str, Any]]) -> str:
    import yaml

    lines = ["plan:", *_indented(yaml.safe_dump(msgspec.to_builtins(to_file(plan)), sort_keys=False))]
    if commands:
        lines += ["commands:", *(f"  {shlex.join(command)}" for command in commands)]
    for facts in tasks:
        lines.append(f"task {facts['task']}: {facts['requests']} requests")
        shown = {key: value for key, value in facts.items() if key not in ("task", "requests", "data", "first_prompt")}
        lines += [f"  {key}: {value}" for key, value in shown.items() if value not in (None, ())]
        files = facts["data"]["files"]
        lines.append(f"  data: {files[0]}{f' and {len(files) - 1} more' if len(files) > 1 else ''}")
        lines.append(f"  data sha256: {facts['data']['sha256']}")
        prompt = facts["first_prompt"]
        text = (
            prompt if isinstance(prompt, str) else msgspec.json.format(msgspec.json.encode(prompt), indent=2).decode()
        )
        lines += ["  first prompt:", *_indented(text, "    | ")]
    total = sum(facts["requests"] for facts in tasks)
    lines.append(f"{total} requests in all; nothing was sent")
    return clean("\n".join(lines) + "\n")


def _indented(text: str, prefix: str = "  ") -> list[str]:
    return [prefix + line for line in text.rstrip("\n").split("\n")]
