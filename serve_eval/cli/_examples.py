"""Hold the examples in the help of groups, and of commands without structures of options.

The keys are the words after `serve-eval`. A command with such structures has its own examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

EXAMPLES: Mapping[str, Sequence[tuple[str, str]]] = {
    "": (
        ("Try it, without an endpoint or data:", "serve-eval setup demo"),
        ("Check in seconds which features an endpoint has:", "serve-eval smoke host:8000"),
        (
            "Judge a running endpoint on a task:",
            "serve-eval run --base-url host:8000 --tasks gsm8k --dataset-root DIR",
        ),
    ),
    "check": (
        (
            "Find the load from which answers break:",
            "serve-eval check load host:8000 -t gsm8k --concurrency 1,8,32",
        ),
        ("Find the worker that is bad, with the prompts of a run:", "serve-eval check workers RUN"),
    ),
    "runs": (
        ("Show all nights in a browser:", "serve-eval runs view outputs"),
        ("Find a slow decline:", "serve-eval runs trend outputs"),
    ),
    "setup": (
        ("Try it, without an endpoint or data:", "serve-eval setup demo"),
        ("Write a first plan for an endpoint:", "serve-eval setup init host:8000"),
    ),
    "check workers": (
        ("Ask each worker behind the endpoint of a run:", "serve-eval check workers RUN"),
        (
            "Name two workers by their addresses:",
            "serve-eval check workers RUN --worker gpu1:8000 --worker gpu2:8000",
        ),
    ),
    "diagnose": (
        ("Explain a run that is red:", "serve-eval diagnose outputs/RUN"),
        (
            "Also compare the prompts with the model's chat template:",
            "serve-eval diagnose outputs/RUN --tokenizer DIR",
        ),
    ),
    "judge": (
        (
            "Test a finished run for a drop of 1 point:",
            "serve-eval judge RUN --verdict noninferiority --margin 1.0",
        ),
        (
            "Judge it by your own references, and write a JUnit file:",
            "serve-eval judge RUN --references-dir my-references --junit verdict.xml",
        ),
        (
            "Score the answers again, with another reading of them:",
            "serve-eval judge RUN --rescore --set gsm8k.filter=strict-match -o RESCORED",
        ),
    ),
    "runs export": (
        ("Write a run as lm-eval would:", "serve-eval runs export RUN"),
        ("Choose the folder:", "serve-eval runs export RUN --format lm-eval -o FOLDER"),
        (
            "Write BioChatter's tables of all runs in a folder:",
            "serve-eval runs export outputs --format biochatter -o FOLDER",
        ),
        ("Print deployments by tasks:", "serve-eval runs export outputs --format table"),
        (
            "Write them for a paper:",
            "serve-eval runs export outputs --format latex -o results.tex",
        ),
    ),
    "references power": (
        ("Compute the drop that 1319 samples detect:", "serve-eval references power --total 1319"),
        (
            "Compute the samples for a drop of 2 points, with the flips of a run:",
            "serve-eval references power --detect 2 --from RUN",
        ),
    ),
    "data list": (
        ("List all tasks:", "serve-eval data list tasks"),
        ("List all data sets:", "serve-eval data list datasets -v"),
        ("Describe the options of a launcher:", "serve-eval data list launchers trtllm"),
    ),
    "setup demo": (
        ("Judge a tiny real model, intact and damaged:", "serve-eval setup demo"),
        ("Keep its runs in a folder:", "serve-eval setup demo -o demo-runs"),
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
            "serve-eval references take PLAN.yaml --set 'take.hardware=8x H200'",
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
            "serve-eval references register RUN --references-dir D --reason R",
        ),
    ),
    "references import": (
        (
            "Import results of lm-eval or another tool as references:",
            "serve-eval references import results_TIME.json --dataset-root DIR",
        ),
        (
            "Import the references folder of a checkout of TensorRT-LLM:",
            "serve-eval references import REFERENCES -o DIR",
        ),
        (
            "Name its commit, and show what was skipped:",
            "serve-eval references import REFERENCES -o DIR --set import.commit=5bceeb1a",
        ),
    ),
    "data": (
        ("Fetch two data sets into a folder:", "serve-eval data fetch gsm8k mmlu -o DIR"),
        ("Use that folder in a run:", "serve-eval run PLAN.yaml --dataset-root DIR"),
    ),
    "data fetch": (
        ("Fetch a data set into the user's cache:", "serve-eval data fetch gsm8k"),
        (
            "Fill a folder for another machine:",
            "serve-eval data fetch mmlu -o DIR",
        ),
    ),
    "data check": (
        ("Verify all that was fetched:", "serve-eval data check"),
        ("Verify one data set of a folder:", "serve-eval data check slimpajama --dataset-root DIR"),
        ("Verify that gold answers of a task score 100 %:", "serve-eval data check gsm8k"),
    ),
    "data path": (
        ("Print the folder of all data sets:", "serve-eval data path"),
        ("Print the folder of one:", "serve-eval data path gsm8k --dataset-root DIR"),
    ),
    "data requests": (
        ("Say what a log holds, and send nothing:", "serve-eval data requests log.jsonl"),
        (
            "Find the fields that a server refuses:",
            "serve-eval data requests log.jsonl --base-url host:8000",
        ),
    ),
    "data cases": (
        ("Begin a file of your own cases:", "serve-eval data cases new my-cases.yaml"),
        ("Ask them, without a reference:", "serve-eval run --cases my-cases.yaml --no-reference"),
    ),
    "data cases expand": (
        ("Show each case with its prompt:", "serve-eval data cases expand my-cases.yaml"),
        ("Print them as JSON:", "serve-eval data cases expand my-cases/ --json"),
    ),
    "data cases new": (
        ("Write a file to begin with:", "serve-eval data cases new my-cases.yaml"),
        ("Write it into a folder of cases:", "serve-eval data cases new my-cases/capitals.yaml"),
    ),
    "data cases schema": (
        ("Print the JSON schema of files of cases:", "serve-eval data cases schema"),
        ("Keep it for your editor:", "serve-eval data cases schema > cases.schema.json"),
    ),
    "data cases encrypt": (
        ("Encrypt cases that no model may learn:", "serve-eval data cases encrypt held-out.yaml"),
        ("Choose the file:", "serve-eval data cases encrypt held-out.yaml -o held-out.enc.yaml"),
    ),
    "data cases import-results": (
        (
            "Make results of BioChatter references:",
            "serve-eval data cases import-results R.csv --cases FILE --references-dir DIR",
        ),
        (
            "Take the results of two files:",
            "serve-eval data cases import-results A B --cases FILE --references-dir DIR",
        ),
    ),
}


def find_examples(ctx: Any) -> Sequence[tuple[str, str]]:
    """Return the examples of the command of a context."""
    return EXAMPLES.get(" ".join(ctx.command_path.split()[1:]), ())


def format_examples(examples: Sequence[tuple[str, str]]) -> str:
    """Return examples as a block of the help."""
    return "\n".join(["Examples:", *(f"  {text}\n    {line}" for text, line in examples)])
