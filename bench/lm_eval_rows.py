"""Rows of one task of lm-eval: our engine, lm-eval on our client, and lm-eval on its own client.

The whole tools read the task and its data, send the requests and score. The requests alone are
lm-eval's calls of a model, in one process, without loading or scoring.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from client_rows import AFTER_200_MS, AT_ONCE
from processes import command_of_run, environment, run
from rows import Measured, NotInstalled, NotMeasured, Row, Size
from serving import Server
from tool_rows import (
    USUAL,
    USUAL_IN_FLIGHT,
    measured_of,
    prepare,
    task_folder,
    task_name,
)

ENGINE, ON_OUR_CLIENT = "lm_eval:TASK, serve-eval run", "lm-eval --model serve-eval"
ALONE = {
    "serve-eval": "lm-eval's requests, our client alone",
    "local-completions": "lm-eval's requests, its client alone",
}


def lm_eval_rows(size: Size, scratch: Path) -> list[Row]:
    """Return rows of the whole tools with a server's latency, and of the clients also without."""
    in_flight = size.in_flight(USUAL_IN_FLIGHT)
    n = size.requests(USUAL, in_flight)
    whole = [(ENGINE, AFTER_200_MS, _engine), (ON_OUR_CLIENT, AFTER_200_MS, _on_our_client)]
    rows = [
        Row(name=name, mode=mode, in_flight=USUAL_IN_FLIGHT, n=n, run=make(scratch, n, in_flight))
        for name, mode, make in whole
    ]
    for mode in (AFTER_200_MS, AT_ONCE):
        for model, name in ALONE.items():
            alone = _alone(scratch, n, in_flight, model)
            rows.append(Row(name=name, mode=mode, in_flight=USUAL_IN_FLIGHT, n=n, run=alone))
    return rows


def _engine(scratch: Path, n: int, in_flight: int) -> Callable[[Server], Measured]:
    task = f"lm_eval:{task_name(n)}"

    def measure(server: Server) -> Measured:
        _needs_lm_eval()
        prepare(scratch, n)
        out = Path(tempfile.mkdtemp(dir=scratch)) / "run"
        command = [*command_of_run(task), "-o", str(out), "--base-url", server.base_url]
        command += ["--include-path", str(task_folder(scratch).parent)]
        command += ["--concurrency", str(in_flight)]
        finished = run(command, limit_s=180, env=environment(scratch), started=server.watch)
        if finished.code != 3:  # no reference applies
            raise NotMeasured(finished.last_words)
        result = json.loads((out / "report.json").read_bytes())["tasks"][0]["result"]
        shutil.rmtree(out.parent)
        return measured_of(server, finished, n, result["outcomes"].get("correct", 0))

    return measure


def _on_our_client(scratch: Path, n: int, in_flight: int) -> Callable[[Server], Measured]:
    told = [
        sys.executable,
        "-m",
        "serve_eval.lm_eval_model",
        "run",
        "--model",
        "serve-eval",
        "--tasks",
        task_name(n),
    ]

    def measure(server: Server) -> Measured:
        _needs_lm_eval()
        prepare(scratch, n)
        out = Path(tempfile.mkdtemp(dir=scratch))
        command = [*told, "--include_path", str(task_folder(scratch)), "--output_path", str(out)]
        command += ["--model_args", f"model=m,base_url={server.base_url},concurrency={in_flight}"]
        finished = run(command, limit_s=180, env=environment(scratch), started=server.watch)
        results = list(out.rglob("results_*.json"))
        if finished.code or not results:
            raise NotMeasured(finished.last_words)
        said = json.loads(results[0].read_bytes())
        shutil.rmtree(out)
        right = said["results"][task_name(n)]["exact_match,strict-match"]
        return measured_of(server, finished, n, round(right * n))

    return measure


def _alone(scratch: Path, n: int, in_flight: int, model: str) -> Callable[[Server], Measured]:
    def measure(server: Server) -> Measured:
        _needs_lm_eval()
        prepare(scratch, n)
        command = [sys.executable, str(Path(__file__).with_name("one_lm_eval_model.py")), model]
        command += ["--base-url", server.base_url, "--prompts", str(scratch / f"asked_{n}.jsonl")]
        finished = run(
            [*command, "--concurrency", str(in_flight)], limit_s=180, env=environment(scratch)
        )
        if finished.code:
            raise NotMeasured(finished.last_words)
        told, seen = json.loads(finished.out), server.seen()
        return Measured(
            n=n,
            ok=told["ok"],
            cpu_s=told["cpu_s"],
            wall_s=told["wall_s"],
            peak_rss_mb=finished.peak_rss_mb,
            received=seen.requests,
            at_server=seen.max_in_progress,
        )

    return measure


def _needs_lm_eval() -> None:
    if importlib.util.find_spec("lm_eval") is None:
        raise NotInstalled("lm-eval")
