"""Show the files and commands of a plan's launcher, ready to paste."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from serve_eval.evaluation.endpoint.inherited_settings import check_inherited
from serve_eval.evaluation.plan.serialise import to_file
from serve_eval.plugins.values import load_launcher
from serve_eval.schema import LaunchContext, Plan
from serve_eval.shell_words import join_words, quote_path


def preview(plan: Plan, log_dir: Path) -> tuple[list[list[str]], dict[str, str]]:
    """Return the launcher's command lines, and the text of its files by path.

    Raises PlanError for invalid launcher options.
    """
    check_inherited(plan)
    launcher = load_launcher(plan.launcher.name)
    options = launcher.check_options(plan.launcher.options, "launcher")
    context = LaunchContext(
        model=plan.model,
        log_dir=log_dir,
        patience_s=plan.limits.sample_timeout_s,
        plan_file=msgspec.to_builtins(to_file(plan)),
    )
    files = {} if launcher.files is None else launcher.files(context, **options)
    return launcher.commands(context, **options), {str(path): text for path, text in files.items()}


def lines(commands: Sequence[Sequence[str]], files: Mapping[str, str]) -> list[str]:
    """Return files and commands as text.

    Files are here-documents. Several commands run in the background, so that they run together.
    """
    found = []
    if files:
        found += [
            "files:",
            f"mkdir -p {join_words(sorted({str(Path(path).parent) for path in files}))}",
        ]
    for path, text in files.items():
        found += [f"cat > {quote_path(path)} <<'END'", text.rstrip("\n"), "END"]
    if commands:
        together = " &" if len(commands) > 1 else ""
        found += ["commands:", *(f"  {join_words(command)}{together}" for command in commands)]
    return found
