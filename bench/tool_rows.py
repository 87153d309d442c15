"""Rows of whole tools on one set of prompts: serve-eval, lm-eval and a script with OpenAI's SDK.

Each runs as its users run it. The prompts are GSM8K's 5-shot ones over generated questions.
serve-eval reads the data set. Its `--dump-prompts` writes the prompts for lm-eval, whose local task
uses the same stop strings and extracts the number with the same two filters. The server's answers
all end in `#### 42`, and both tools must have scored every answer.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from client_rows import AFTER_200_MS
from processes import Finished, command_of_run, environment, run
from rows import Measured, NotInstalled, NotMeasured, Row, Size
from serving import Server

TRAIN = 7473
"""Training rows, as many as GSM8K has."""

IN_FLIGHT = 512
LARGE, LARGE_OF_A_PEER = 15_000, 5000
"""The larger sizes of the slope, which starts at IN_FLIGHT requests.

IN_FLIGHT connections are opened for each size. A small cost per sample needs more samples to stand
out from the noise.
"""

USUAL_IN_FLIGHT = 128
USUAL = 1000
"""A run of about the size of GSM8K, as users run it."""

_WRITE = "import sys, pathlib; from serve_eval.datasets.generated import write_gsm8k as write; "
_WRITE += "write(pathlib.Path(sys.argv[1]), train=int(sys.argv[2]), test=int(sys.argv[3]))"

_LM_EVAL_TASK = """\
task: {task}
dataset_path: json
dataset_kwargs:
  data_files: {{test: {file}}}
output_type: generate_until
test_split: test
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "{{{{target}}}}"
num_fewshot: 0
generation_kwargs: {{until: ["Question:", "</s>", "<|im_end|>"], do_sample: false,
                    temperature: 0.0, max_gen_toks: 256}}
filter_list:
  - name: strict-match
    filter: [{{function: regex, regex_pattern: '#### (\\-?[0-9\\.\\,]+)'}},
             {{function: take_first}}]
  - name: flexible-extract
    filter:
      - {{function: regex, group_select: -1, regex_pattern: '(-?[$0-9.,]{{2,}})|(-?[0-9]+)'}}
      - {{function: take_first}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true, ignore_case: true,
      ignore_punctuation: false}}
"""


def tool_rows(size: Size, scratch: Path) -> list[Row]:
    """Return rows of the tools at the two sizes of the slope and at the usual one."""

    tools = (
        ("serve-eval run", _serve_eval, LARGE),
        ("lm-eval local-completions", _lm_eval, LARGE_OF_A_PEER),
        ("AsyncOpenAI script", _openai_script, LARGE_OF_A_PEER),
    )
    rows = []
    for part in ("small", "large", "usual"):
        for name, measured, large in tools:
            in_flight = USUAL_IN_FLIGHT if part == "usual" else IN_FLIGHT
            really = size.in_flight(in_flight)
            n = {
                "small": really,
                "large": size.requests(large, 3 * really),
                "usual": size.requests(USUAL, really),
            }[part]
            run_it = measured(scratch, n, really)
            rows.append(Row(name=name, mode=AFTER_200_MS, in_flight=in_flight, n=n, run=run_it))
    return rows


def mean_prompt(scratch: Path) -> float:
    """Return the mean number of characters in the prompts of the largest data set."""
    files = sorted(scratch.glob("prompts_*.jsonl"), key=lambda path: path.stat().st_size)
    lengths = [
        len(json.loads(line)["prompt"])
        for file in files[-1:]
        for line in file.open(encoding="utf-8")
    ]
    return sum(lengths) / len(lengths) if lengths else 0.0


@cache
def prepare(scratch: Path, n: int) -> None:
    """Write the data set of `n` questions, its prompts and lm-eval's task when first needed."""
    root, prompts = scratch / f"data_{n}", scratch / f"prompts_{n}.jsonl"
    subprocess.run(
        [sys.executable, "-c", _WRITE, str(root / "gsm8k"), str(TRAIN), str(n)], check=True
    )
    dumped = [
        *_serve_eval_command(scratch, n),
        "--base-url",
        "localhost:1",
        "--dump-prompts",
        str(prompts),
    ]
    written = run(dumped, limit_s=180, env=environment(scratch))
    if written.code:
        raise NotMeasured(f"no prompts: {written.last_words}")
    questions = (json.loads(line)["prompt"] for line in prompts.open(encoding="utf-8"))
    asked = scratch / f"asked_{n}.jsonl"
    asked.write_text(
        "".join(json.dumps({"prompt": text, "target": "42"}) + "\n" for text in questions), "utf-8"
    )
    tasks = task_folder(scratch)
    tasks.mkdir(parents=True, exist_ok=True)
    (tasks / f"{task_name(n)}.yaml").write_text(
        _LM_EVAL_TASK.format(task=task_name(n), file=asked), "utf-8"
    )


def task_folder(scratch: Path) -> Path:
    """Return the folder for lm-eval's tasks."""
    return scratch / "include/lm_eval"


def task_name(n: int) -> str:
    """Return the name of lm-eval's task of `n` prompts."""
    return f"bench_{n}"


def _serve_eval_command(scratch: Path, n: int) -> list[str]:
    command = [*command_of_run("gsm8k"), "--dataset-root", str(scratch / f"data_{n}")]
    return [*command, "--set", f"gsm8k.num_samples={n}"]


def _serve_eval(scratch: Path, n: int, in_flight: int) -> Callable[[Server], Measured]:
    def measure(server: Server) -> Measured:
        prepare(scratch, n)
        out = Path(tempfile.mkdtemp(dir=scratch)) / "run"
        command = [
            *_serve_eval_command(scratch, n),
            "--base-url",
            server.base_url,
            "--concurrency",
            str(in_flight),
        ]
        finished = run(
            [*command, "-o", str(out)], limit_s=180, env=environment(scratch), started=server.watch
        )
        if finished.code != 3:  # no reference applies
            raise NotMeasured(finished.last_words)
        result = json.loads((out / "report.json").read_bytes())["tasks"][0]["result"]
        shutil.rmtree(out.parent)
        return measured_of(
            server, finished, n, result["scored"] - result["outcomes"].get("unparsed", 0)
        )

    return measure


def _lm_eval(scratch: Path, n: int, in_flight: int) -> Callable[[Server], Measured]:
    task = task_name(n)
    told = [sys.executable, "-m", "lm_eval", "--model", "local-completions", "--tasks", task]
    told += ["--include_path", str(task_folder(scratch)), "--batch_size", "1"]

    def measure(server: Server) -> Measured:
        if importlib.util.find_spec("lm_eval") is None:
            raise NotInstalled("lm-eval")
        prepare(scratch, n)
        out = Path(tempfile.mkdtemp(dir=scratch))
        model = f"model=m,base_url={server.base_url}/completions,num_concurrent={in_flight},"
        model += "max_retries=1,tokenized_requests=False,tokenizer_backend=None"
        command = [*told, "--model_args", model, "--output_path", str(out)]
        finished = run(command, limit_s=180, env=environment(scratch), started=server.watch)
        results = list(out.rglob("results_*.json"))
        if finished.code or not results:
            raise NotMeasured(finished.last_words)
        said = json.loads(results[0].read_bytes())
        shutil.rmtree(out)
        right = min(
            said["results"][task][f"exact_match,{name}"]
            for name in ("strict-match", "flexible-extract")
        )
        return measured_of(server, finished, n, round(right * said["n-samples"][task]["effective"]))

    return measure


def _openai_script(scratch: Path, n: int, in_flight: int) -> Callable[[Server], Measured]:
    def measure(server: Server) -> Measured:
        if importlib.util.find_spec("openai") is None:
            raise NotInstalled("openai")
        prepare(scratch, n)
        command = [
            sys.executable,
            str(Path(__file__).with_name("openai_script.py")),
            "--base-url",
            server.base_url,
        ]
        command += ["--prompts", str(scratch / f"asked_{n}.jsonl"), "--in-flight", str(in_flight)]
        command += ["--out", str(scratch / "openai_script.jsonl")]
        finished = run(command, limit_s=180, env=environment(scratch), started=server.watch)
        if finished.code:
            raise NotMeasured(finished.last_words)
        right = sum(
            '"right": true' in line
            for line in (scratch / "openai_script.jsonl").open(encoding="utf-8")
        )
        return measured_of(server, finished, n, right)

    return measure


def measured_of(server: Server, finished: Finished, n: int, ok: int) -> Measured:
    seen = server.seen()
    return Measured(
        n=n,
        ok=ok,
        cpu_s=finished.cpu_s,
        wall_s=finished.wall_s,
        peak_rss_mb=finished.peak_rss_mb,
        received=seen.requests,
        at_server=seen.max_in_progress,
        cpu_s_at_first=seen.cpu_s_at_first,
    )
