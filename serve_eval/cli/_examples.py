"""Hold the examples in the help of groups, and of commands without structures of options.

The keys are the words after `serve-eval`. A command with such structures has its own examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

EXAMPLES: Mapping[str, Sequence[tuple[str, str]]] = {
    "": (
        ("Try it, without an endpoint or data:", "serve-eval demo"),
        ("Check in seconds which features an endpoint has:", "serve-eval smoke host:8000"),
        (
            "Judge a running endpoint on a task:",
            "serve-eval run --base-url host:8000 --tasks gsm8k --dataset-root DIR",
        ),
    ),
    "attribute": (
        ("Ask each worker behind the endpoint of a run:", "serve-eval attribute RUN"),
        (
            "Name two workers by their addresses:",
            "serve-eval attribute RUN --worker gpu1:8000 --worker gpu2:8000",
        ),
    ),
    "diagnose": (
        ("Explain a run that is red:", "serve-eval diagnose outputs/RUN"),
        (
            "Also compare the prompts with the model's chat template:",
            "serve-eval diagnose outputs/RUN --tokenizer DIR",
        ),
    ),
    "capsule": (
        ("Write a folder that asks one sample again:", "serve-eval capsule RUN --sample test-198"),
        (
            "Choose the task and the folder:",
            "serve-eval capsule RUN --task gsm8k --sample test-198 -o CAPSULE",
        ),
    ),
    "verdict": (
        (
            "Test a finished run for a drop of 1 point:",
            "serve-eval verdict RUN --verdict noninferiority --margin 1.0",
        ),
        (
            "Judge it by your own references, and write a JUnit file:",
            "serve-eval verdict RUN --references-dir my-references --junit verdict.xml",
        ),
    ),
    "rescore": (
        ("Score the answers of a run by the scorers of today:", "serve-eval rescore RUN"),
        (
            "Choose another reading of the answers:",
            "serve-eval rescore RUN --set gsm8k.filter=strict-match -o RESCORED",
        ),
    ),
    "export": (
        ("Write a run as lm-eval would:", "serve-eval export RUN"),
        ("Choose the folder:", "serve-eval export RUN --format lm-eval -o FOLDER"),
        (
            "Write BioChatter's tables of all runs in a folder:",
            "serve-eval export outputs --format biochatter -o FOLDER",
        ),
        ("Print deployments by tasks:", "serve-eval export outputs --format table"),
        (
            "Write them for a paper:",
            "serve-eval export outputs --format latex -o results.tex",
        ),
    ),
    "power": (
        ("Compute the drop that 1319 samples detect:", "serve-eval power --total 1319"),
        (
            "Compute the samples for a drop of 2 points, with the flips of a run:",
            "serve-eval power --detect 2 --from RUN",
        ),
    ),
    "list": (
        ("List all tasks:", "serve-eval list tasks"),
        ("Describe the options of a launcher:", "serve-eval list launchers trtllm"),
    ),
    "demo": (
        ("Judge a tiny real model, intact and damaged:", "serve-eval demo"),
        ("Keep its runs in a folder:", "serve-eval demo -o demo-runs"),
    ),
    "references": (
        ("Show the models with a reference:", "serve-eval references show gsm8k"),
        (
            "Take a reference at an endpoint that you trust:",
            "serve-eval references take host:8000 --runs 3 -t gsm8k --dataset-root DIR",
        ),
        (
            "Make finished runs the reference:",
            "serve-eval references register RUN1 RUN2 RUN3 --references-dir DIR",
        ),
    ),
    "references take": (
        (
            "Ask all samples of a task three times, and register the mean:",
            "serve-eval references take host:8000 --runs 3 -t gsm8k --dataset-root DIR",
        ),
        (
            "Take it for a plan, and say where it was measured:",
            'serve-eval references take PLAN.yaml --hardware "8x H200"',
        ),
    ),
    "references list": (
        ("List the shipped reference files:", "serve-eval references list"),
        ("List your own too:", "serve-eval references list --references-dir DIR"),
    ),
    "references show": (
        ("Show all entries of a task:", "serve-eval references show gsm8k"),
        (
            "Show those of one model:",
            "serve-eval references show gsm8k --model meta-llama/Llama-3.1-8B-Instruct",
        ),
    ),
    "references check": (
        ("Check a file before a run needs it:", "serve-eval references check DIR/gsm8k.yaml"),
        ("Check all files of a folder:", "serve-eval references check DIR"),
    ),
    "references register": (
        (
            "Register the mean of three runs:",
            "serve-eval references register RUN1 RUN2 RUN3 --references-dir DIR",
        ),
        (
            "Replace an entry by one run, with a reason:",
            "serve-eval references register RUN --wanted 1 --references-dir D --reason R",
        ),
    ),
    "references import": (
        (
            "Import the references folder of a checkout of TensorRT-LLM:",
            "serve-eval references import REFERENCES --to DIR",
        ),
        (
            "Name its commit, and show what was skipped:",
            "serve-eval references import REFERENCES --to DIR --commit 5bceeb1a --verbose",
        ),
    ),
    "datasets": (
        ("Fetch two data sets into a folder:", "serve-eval datasets fetch gsm8k mmlu --to DIR"),
        ("Use that folder in a run:", "serve-eval run PLAN.yaml --dataset-root DIR"),
    ),
    "datasets list": (
        ("List all data sets:", "serve-eval datasets list"),
        ("Find those with a licence:", "serve-eval datasets list | grep MIT"),
    ),
    "datasets fetch": (
        ("Fetch a data set into the user's cache:", "serve-eval datasets fetch gsm8k"),
        (
            "Fill a folder for another machine:",
            "serve-eval datasets fetch mmlu --to DIR",
        ),
    ),
    "datasets verify": (
        ("Verify all that was fetched:", "serve-eval datasets verify"),
        ("Verify one data set of a folder:", "serve-eval datasets verify gsm8k --root DIR"),
    ),
    "datasets path": (
        ("Print the folder of all data sets:", "serve-eval datasets path"),
        ("Print the folder of one:", "serve-eval datasets path gsm8k --root DIR"),
    ),
    "cases": (
        ("Begin a file of your own cases:", "serve-eval cases new my-cases.yaml"),
        ("Ask them, without a reference:", "serve-eval run --cases my-cases.yaml --no-reference"),
    ),
    "cases expand": (
        ("Show each case with its prompt:", "serve-eval cases expand my-cases.yaml"),
        ("Print them as JSON:", "serve-eval cases expand my-cases/ --json"),
    ),
    "cases new": (
        ("Write a file to begin with:", "serve-eval cases new my-cases.yaml"),
        ("Write it into a folder of cases:", "serve-eval cases new my-cases/capitals.yaml"),
    ),
    "cases schema": (
        ("Print the JSON schema of files of cases:", "serve-eval cases schema"),
        ("Keep it for your editor:", "serve-eval cases schema > cases.schema.json"),
    ),
    "cases encrypt": (
        ("Encrypt cases that no model may learn:", "serve-eval cases encrypt held-out.yaml"),
        ("Choose the file:", "serve-eval cases encrypt held-out.yaml --to held-out.enc.yaml"),
    ),
    "cases import-results": (
        (
            "Make results of BioChatter references:",
            "serve-eval cases import-results R.csv --cases FILE --references-dir DIR",
        ),
        (
            "Take the results of two files:",
            "serve-eval cases import-results A.csv B.csv --cases F --references-dir DIR",
        ),
    ),
}


def find_examples(ctx: Any) -> Sequence[tuple[str, str]]:
    """Return the examples of the command of a context."""
    return EXAMPLES.get(ctx.command_path.removeprefix(ctx.find_root().command_path).strip(), ())


def format_examples(examples: Sequence[tuple[str, str]]) -> str:
    """Return examples as a block of the help."""
    return "\n".join(["Examples:", *(f"  {text}\n    {line}" for text, line in examples)])
