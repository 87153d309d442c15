"""Measure which part of a run the CPU time of one further sample goes to.

Run `python bench/parts.py [ROUNDS]`. It runs `serve-eval run` with all defaults and a key at two
sizes, in turn, and takes the stack of the process at each tick of its CPU time (SIGPROF). A tick
belongs to the innermost of our files in it, and one in the event loop to the callback after it. The
difference of the two sizes is the cost of a further sample: what is the same for both cancels out.
"""

from __future__ import annotations

import json
import re
import signal
import statistics
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

TICK_S = 0.001
"""CPU seconds between two ticks; the system rounds them up to its own, mostly 4 ms."""
OTHER = "the rest"
PAGE, ASKING = "the page", "asking"
STAGES = {
    PAGE: r"cli/_ending\.py",
    "prompts kept": r"storage/prompts\.py|_keep_prompts",
    "report": r"report_run|save_report|report/ci|report/summary/",
    "prepare": r"evaluation/prepare\.py|evaluation/open_tasks\.py",
    "probe": r"evaluation/capabilities/",
}
"""The stages of a run, each by its frames; everything else is asking."""
INNER: Mapping[str, Mapping[str, str]] = {
    PAGE: {
        "read journal, scores and prompts": r"storage/|report/samples/",
        "columns, JSON, compression, HTML": r"report/page/",
        "pictures, without their process": r"report/pictures/|report/drawing",
    },
    ASKING: {
        "connections, event loop, system": r"client/http1/|client/transport",
        "wire format": r"client/wire_format/|client/request",
        "attempts, patience, tries": r"client/",
        "scoring": r"/scorers/|/tasks/|results/scoring",
        "accumulator": r"evaluation/results/(accumulator|sample_table|task_result)",
        "alarm": r"results/degradation|_alarm|stats/",
        "journal and scores": r"storage/",
        "engine": r"evaluation/engine/|evaluation/",
        "masking": r"masking\.py|secret_",
        "progress": r"serve_eval/cli/|rich/",
    },
}


def sample(out: Path, arguments: list[str]) -> None:
    """Run the command line, and write its stacks with their ticks, and its CPU seconds."""
    import gc
    import os
    import time

    stacks: Counter[str] = Counter()
    collected = [0.0, 0.0]

    def take(_: int, frame: FrameType | None) -> None:
        stacks["\n".join(_walk(_find_busy(frame)))] += 1

    def collect(phase: str, _: object) -> None:
        collected[0] = time.thread_time() if phase == "start" else collected[0]
        collected[1] += time.thread_time() - collected[0] if phase == "stop" else 0.0

    signal.signal(signal.SIGPROF, take)
    gc.callbacks.append(collect)
    os.register_at_fork(after_in_child=lambda: signal.setitimer(signal.ITIMER_PROF, 0))
    signal.setitimer(signal.ITIMER_PROF, TICK_S, TICK_S)
    from serve_eval.cli import main

    sys.argv[1:] = arguments
    try:
        main()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        spent = os.times()
        told = {"cpu_s": spent.user + spent.system, "collector_s": collected[1]}
        told |= {"drawing_s": spent.children_user + spent.children_system}
        out.write_text(json.dumps({**told, "stacks": stacks}), "utf-8")


def _find_busy(frame: FrameType | None) -> FrameType | None:
    """Return the frame of the thread that works: the main one, unless it waits for another."""
    main = threading.main_thread().ident
    waits = frame is None or frame.f_code.co_filename.endswith(("asyncio/runners.py", "_async.py"))
    for thread, other in sys._current_frames().items():
        idle = other.f_code.co_filename.endswith(("threading.py", "thread.py"))
        if waits and thread != main and not idle:
            return other
    return frame


def _walk(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        yield f"{frame.f_code.co_filename}:{frame.f_code.co_name}"
        frame = frame.f_back


def name_part(stack: list[str]) -> tuple[str, str]:
    """Return the stage of a stack, innermost frame first, and its part of the stage."""
    whole = "\n".join(stack)
    stage = next((name for name, sign in STAGES.items() if re.search(sign, whole)), ASKING)
    for frame in stack if stage in INNER else ():
        for part, sign in INNER[stage].items():
            if re.search(sign, frame) and not frame.endswith(("run_async", ":main")):
                return stage, part if "serve_eval/cli/run.py" not in frame else OTHER
    return stage, OTHER if stage in INNER else ""


def count(told: Mapping[str, Any]) -> Counter[tuple[str, str]]:
    """Return the CPU seconds of each part of a run."""
    stacks = told["stacks"]
    tick_s, found = told["cpu_s"] / sum(stacks.values()), Counter[tuple[str, str]]()
    for stack, ticks in stacks.items():
        found[name_part(stack.split("\n"))] += ticks * tick_s
    found["garbage collector, within these", ""] = told["collector_s"]
    return found


def measure(rounds: int) -> None:
    """Print the table of both tasks."""
    from gate_measure import _WRITE, HERE, TRAIN
    from processes import environment, run
    from serving import Mode, Server

    with (
        Server(Mode(latency_ms=200)) as late,
        Server(Mode()) as at_once,
        tempfile.TemporaryDirectory(prefix="serve-eval-bench-") as name,
    ):
        scratch = Path(name)
        run([sys.executable, "-c", _WRITE, str(scratch / "gsm8k"), str(TRAIN), "15000"], limit_s=99)
        sums = ["--include-path", str(HERE / "include"), "--tasks", "sums", "--concurrency", "64"]
        gsm8k = ["--dataset-root", name, "--tasks", "gsm8k", "--concurrency", "512"]
        for task, server, given, sizes in (
            ("gsm8k", late, gsm8k, (4_000, 15_000)),
            ("sums", at_once, sums, (6_000, 30_000)),
        ):
            found: dict[int, list[Counter[tuple[str, str]]]] = {n: [] for n in sizes}
            for turn in range(rounds * len(sizes)):
                n, out = sizes[turn % len(sizes)], scratch / f"{task}-{turn}"
                command = [sys.executable, __file__, "sampled", f"{out}.json", "run", *given]
                command += ["--set", f"{task}.num_samples={n}", "--base-url", server.base_url]
                command += ["--model", "m", "--no-reference", "-o", str(out)]
                done = run(command, limit_s=900, env=environment(scratch))
                if done.code != 3:  # no reference applies
                    raise SystemExit(done.last_words)
                found[n].append(count(json.loads(Path(f"{out}.json").read_bytes())))
            _print(task, found)


def _print(task: str, found: Mapping[int, list[Counter[tuple[str, str]]]]) -> None:
    (few, small), (many, large) = sorted(found.items())
    parts = {part for one in (*small, *large) for part in one}
    further = {
        part: 1e6
        * (statistics.mean(c[part] for c in large) - statistics.mean(c[part] for c in small))
        / (many - few)
        for part in parts
    }
    print(f"\nCPU of one further sample of {task}, us, {few} to {many}, {len(large)} rounds")
    for stage in (ASKING, PAGE, *(name for name in STAGES if name != PAGE)):
        own = {part: us for (of, part), us in further.items() if of == stage}
        print(f"  {stage:50} {sum(own.values()):7.1f}")
        for part, us in sorted(own.items(), key=lambda item: -item[1]):
            if part:
                print(f"    {part:48} {us:7.1f}")
    collector = [us for (stage, _), us in further.items() if stage.startswith("garbage")]
    whole = sum(further.values()) - sum(collector)
    print(f"  {'sum':50} {whole:7.1f}")
    print(f"  {'garbage collector, within these':50} {sum(collector):7.1f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["sampled"]:
        sample(Path(sys.argv[2]), sys.argv[3:])
    else:
        measure(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
