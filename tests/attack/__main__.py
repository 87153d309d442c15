"""Attack runs as `make attack` does, and print the accounts.

First comes a server with every fault, then each proxy of `FRONTS`. The exit code is 1 if anything
was lost or wrong.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.attack.hostile import question, right, said

_OURS = ("SERVE_EVAL_", "OPENAI_", "LLM_MODELS", "TRTLLM")
_DIES, _TWICE_AT_THE_END = ("--deaths", "6"), ("--doubles", "0.3", "--from-request", "280")

FRONTS = {
    "answers twice and dies": (_DIES, 32, 0),
    "answers twice and dies, and lists no models": ((*_DIES, "--models", "missing"), 32, 0),
    "answers twice and dies, and the client is killed": (_DIES, 16, 3),
    "answers twice, and the client is killed": ((), 16, 3),
    "answers twice and dies at the end": ((*_DIES, *_TWICE_AT_THE_END), 32, 0),
    "ends connections after 4 to 7 answers": (("--closes",), 2, 0),
    "announces such ends": (("--closes", "--announces"), 2, 0),
}
"""Attacks by a proxy: the options of `tests.attack.front`, the requests in flight, and the kills of
the client. With few in flight, an answer too many rarely meets an idle connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The outcomes of `planned` samples: answered, failed (with a reported reason) or lost.

    `doubled` samples were scored more than once. The kept answer of `swapped` ones names another
    sample. The score of `changed` ones is not that of the server's answer. `unproven` answers count
    by the report although nothing proves whose they are (None: it does not say). `front` has what
    the proxy counted, if there was one.
    """

    planned: int
    answered: int
    failed: int
    lost: int
    doubled: int
    swapped: int
    changed: int
    value: float
    expected: float
    kills: int
    sessions: int
    exit_code: int
    wall_s: float
    withdrawn: int
    said: Sequence[str]
    unproven: int | None = None
    front: Mapping[str, int] = field(default_factory=dict)

    def table(self):
        """Return a line for each figure."""
        names = [
            "planned",
            "answered",
            "failed",
            "lost",
            "doubled",
            "swapped",
            "changed",
            "withdrawn",
            "unproven",
            "kills",
        ]
        lines = [f"{name:10} {getattr(self, name)}" for name in names]
        lines.append(
            f"value      {self.value:.2f} (of the answered samples without an attack:"
            f" {self.expected:.2f})"
        )
        lines += [f"{name:10} {count}" for name, count in self.front.items()]
        return "\n".join([*lines, f"wall_s     {self.wall_s:.0f}", *self.said])


def write_questions(root, count):
    """Write a GSM8K with this number of questions into a data root."""
    folder = root / "gsm8k"
    folder.mkdir(parents=True)
    with (folder / "test.jsonl").open("w") as file:
        for case in range(count):
            file.write(
                json.dumps({"question": question(case), "answer": f"One more.\n#### {case + 1}"})
                + "\n"
            )
    (folder / "train.jsonl").write_text(
        json.dumps({"question": "1 + 1?", "answer": "#### 2"}) + "\n"
    )


@contextmanager
def hostile(folder, *flags, module="hostile"):
    """Serve a hostile server and yield its base URL; it ends with the context."""
    ready = folder / "ready"
    command = [sys.executable, "-m", f"tests.attack.{module}", "--ready-file", str(ready), *flags]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2]) as process:
        try:
            deadline = time.monotonic() + 60
            while not (ready.exists() and ready.read_text()) and time.monotonic() < deadline:
                time.sleep(0.05)
            yield ready.read_text()
        finally:
            process.terminate()


def attack(
    folder,
    *,
    samples,
    in_flight,
    share,
    kills,
    seed,
    latency_s,
    faults="",
    stream=True,
    flags=(),
    front=None,
    sessions_after=3,
):
    """Run until the command ends on its own, after `kills` SIGKILLs at random moments.

    A session that ends before its moment is the last that was to be killed: see `Account.kills`.
    `front` has the options of the proxy of `tests.attack.front`, which then answers instead.
    `sessions_after` sessions follow the kills; each asks temporary failures again.
    """
    write_questions(folder / "data", samples)
    out, rng, began = folder / "out", random.Random(seed), time.monotonic()
    env = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    killed = sessions = 0
    how = [
        "--share",
        str(share),
        "--seed",
        str(seed),
        "--latency-s",
        str(latency_s),
        "--faults",
        faults,
    ]
    module = "hostile"
    if front is not None:
        module = "front"
        how = ["--seed", str(seed), "--latency-s", str(latency_s), *front]
    with hostile(folder, *how, module=module) as url:
        command = [
            sys.executable,
            "-m",
            "serve_eval",
            "run",
            "--base-url",
            url,
            "--model",
            "m",
            "--tasks",
            "gsm8k",
        ]
        command += [
            "--dataset-root",
            str(folder / "data"),
            "--num-fewshot",
            "0",
            "--no-reference",
            "--set",
        ]
        command += [f"gsm8k.num_samples={samples}", "--concurrency", str(in_flight), "-o", str(out)]
        limits = {"stall_timeout_s": "3", "sample_timeout_s": "60", "max_error_rate": "0.5"}
        limits["stream"] = "true" if stream else "false"
        command += [
            word for name, value in limits.items() for word in ("--set", f"limits.{name}={value}")
        ]
        command += flags
        journal = out / "samples/gsm8k.jsonl"
        code = -1
        for moment in sorted(rng.uniform(0.0, 0.95 * samples) for _ in range(kills)):
            sessions += 1
            reached = _lines(journal) >= moment  # the moment is then a random one near the start
            with subprocess.Popen(
                command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            ) as process:
                while process.poll() is None and _lines(journal) < moment:
                    time.sleep(0.01)
                if reached:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(rng.uniform(0.0, 3.0))
                if process.poll() is not None:
                    if process.returncode not in (0, 1, 3):
                        raise AssertionError(f"session {sessions} ended with {process.returncode}")
                    break
                process.kill()
                killed += 1
        for _ in range(sessions_after):
            sessions += 1
            last = subprocess.run(
                command, env=env, capture_output=True, text=True, timeout=1200, check=False
            )
            code = last.returncode
            if code not in (0, 1, 3):
                raise AssertionError(f"ended with {code}: {last.stderr[-3000:]}")
    return _account(
        out, samples, killed, sessions, code, time.monotonic() - began, last.stdout + last.stderr
    )


def _lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _account(out, samples, kills, sessions, code, wall_s, printed):
    answers = {}
    failed = set()
    withdrawn = 0
    for line in (out / "samples/gsm8k.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record.get("response") is not None:
            answers.setdefault(record["id"], record["response"]["text"])
            failed.discard(record["id"])
        elif record.get("withdrawn") is not None:
            withdrawn += 1
            answers.pop(record["id"], None)
        elif record["id"] not in answers:
            failed.add(record["id"])
    scores = [json.loads(line) for line in (out / "scores/gsm8k.jsonl").read_text().splitlines()]
    counts = Counter(score["id"] for score in scores)
    case = {f"test-{i}": i for i in range(samples)}
    report = json.loads((out / "report.json").read_text())
    result, counts_file = report["tasks"][0]["result"], out.parent / "counts.json"
    expected = [right(case[name]) for name in answers]
    return Account(
        planned=samples,
        answered=len(answers),
        failed=len(failed),
        lost=samples - len(answers) - len(failed) + (samples - result["scored"] - len(failed)),
        doubled=sum(count > 1 for count in counts.values()) + (result["scored"] != len(counts)),
        swapped=sum(text.strip() != said(case[name]) for name, text in answers.items()),
        changed=sum(score["value"] != float(right(case[score["id"]])) for score in scores),
        value=result["value"],
        expected=100.0 * sum(expected) / max(1, len(expected)),
        kills=kills,
        sessions=sessions,
        exit_code=code,
        wall_s=wall_s,
        withdrawn=withdrawn,
        said=[line for line in printed.splitlines() if "withdr" in line or "asked again" in line][
            :6
        ],
        unproven=report.get("unproven_answers"),
        front=json.loads(counts_file.read_text()) if counts_file.exists() else {},
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--in-flight", type=int, default=256)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--latency-s", type=float, default=0.3)
    parser.add_argument("--faults", default="")
    parser.add_argument("--no-stream", action="store_true")
    told = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="serve-eval-attack-") as folder:
        account = attack(
            Path(folder),
            samples=told.samples,
            in_flight=told.in_flight,
            share=told.share,
            kills=told.kills,
            seed=told.seed,
            latency_s=told.latency_s,
            faults=told.faults,
            stream=not told.no_stream,
        )
    print(account.table())
    accounts = [account, *_attack_by_proxies(told.seed, stream=not told.no_stream)]
    sys.exit(any(any((one.lost, one.doubled, one.swapped, one.changed)) for one in accounts))


def _attack_by_proxies(seed, *, stream):
    """Yield the account of a run of GSM8K's size behind each proxy, after printing it."""
    for name, (options, in_flight, kills) in FRONTS.items():
        with tempfile.TemporaryDirectory(prefix="serve-eval-attack-") as folder:
            account = attack(
                Path(folder),
                samples=1319,
                in_flight=in_flight,
                share=0.0,
                kills=kills,
                seed=seed,
                latency_s=0.03,
                stream=stream,
                front=options,
            )
        print(f"\nA proxy that {name}\n{account.table()}")
        yield account


if __name__ == "__main__":
    main()
