"""`serve-eval demo`: the main job without a GPU, a download or a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    output_dir: Annotated[
        Path | None, typer.Option("--output-dir", "-o", help="Folder for data and runs (default outputs/<time>_demo).")
    ] = None,
) -> None:
    """Run GSM8K and MMLU on generated data against a simulated endpoint: sound (PASS), then damaged (FAIL)."""
    from datetime import UTC, datetime

    from serve_eval.cli._streams import emit
    from serve_eval.cli.run import execute
    from serve_eval.demo import DAMAGE, plans, write_inputs
    from serve_eval.errors import RunFolderError
    from serve_eval.report.exit_code import FAIL, INTERRUPTED, PASS

    folder = output_dir or Path("outputs") / f"{datetime.now(UTC):%Y%m%d_%H%M%S}_demo"
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunFolderError(f"{folder} exists and is not an empty folder", hint="Choose another with -o.")
    try:
        write_inputs(folder)
    except OSError as error:
        raise RunFolderError(
            f"{folder}: cannot write: {error.strerror}", hint="Choose another folder with -o."
        ) from error
    titles = {
        "sound": ("The simulated endpoint as its reference says it is. Expected: PASS.", PASS),
        "damaged": (f"The same endpoint, having lost {DAMAGE:.0%} of its right answers. Expected: FAIL.", FAIL),
    }
    as_expected = True
    for name, plan in plans(folder).items():
        title, expected = titles[name]
        emit(f"\n{title}\n\n")
        code = execute(plan, folder / name)
        if code == INTERRUPTED:
            raise typer.Exit(code)
        as_expected = as_expected and code == expected
    emit(
        "\nOnly the model was simulated. Next: serve-eval run --base-url http://HOST:8000 --model NAME --tasks gsm8k\n"
    )
    raise typer.Exit(0 if as_expected else 1)
