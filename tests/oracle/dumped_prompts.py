"""Write the prompts that our engine would send, by task.

The command is `python -m tests.oracle.dumped_prompts SETTING`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from serve_eval.errors import ServeEvalError
from serve_eval.evaluation.prepare import prepare
from serve_eval.plugins import extensions
from serve_eval.schema import Plan, Spec
from tests.oracle.server import END
from tests.oracle.sides import ROOT, options


def start(setting, cache, *, hash_seed):
    """Start a process that loads every task with our engine and writes its requests."""
    told = setting.folder / f"dump{hash_seed}.setting.json"
    into = setting.folder / f"dump{hash_seed}.json"
    own = {"own": str(setting.folder / "own"), "into": str(into)}
    told.write_text(json.dumps({"files": setting.files, "shots": setting.shots, **own}))
    environ = {
        **os.environ,
        "PYTHONHASHSEED": str(hash_seed),
        "HF_HOME": str(cache),
        "HF_DATASETS_CACHE": str(cache),
    }
    command = [sys.executable, "-m", "tests.oracle.dumped_prompts", str(told)]
    with into.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(command, cwd=ROOT, env=environ, stdout=log, stderr=log), into


def result(dump):
    """Wait for a process of `start` and return its documents by task.

    Raises RuntimeError if it fails.
    """
    process, into = dump
    if process.wait():
        raise RuntimeError(into.with_suffix(".log").read_text()[-2000:])
    return json.loads(into.read_text())


def main(setting):
    """Write the documents of every task, or why it cannot be loaded."""
    given = json.loads(setting.read_text())
    told = {}
    for name, files in given["files"].items():
        spec = Spec(name=f"lm_eval:{name}", options=options(files, given["shots"][name]))
        plan = Plan(
            model="oracle",
            launcher=Spec(name="external"),
            tasks=(spec,),
            include_path=(given["own"],),
            no_reference=True,
        )
        extensions.include(plan.include_path)
        try:
            (prepared,) = prepare(plan)
            told[name] = [_document(sample) for sample in prepared.dataset.samples]
        except ServeEvalError as error:
            told[name] = f"{type(error).__name__}: {error}"
    Path(given["into"]).write_text(json.dumps(told))


def _document(sample):
    texts = (
        [context + choice for context, choice in sample.continued]
        if sample.choices
        else [str(sample.prompt)]
    )
    return {
        "id": sample.id,
        "target": sample.target,
        "texts": [text.removeprefix(END) for text in texts],
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
