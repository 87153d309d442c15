"""Test that an evaluation of the stand-in passes without a fault and fails with a bad worker."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack

import pytest
import yaml

from tests.standin.deployments import environment, free_port, running, wait_healthy

pytestmark = pytest.mark.slow


def evaluate(data_root, folder, name, *more):
    """Return the verdict of a small run in which every request was answered."""
    (folder / "references").mkdir(exist_ok=True)
    for task in ("gsm8k", "mmlu"):
        text = "simulated:\n  - accuracy: 90.0\n    source: declared by the tests\n"
        (folder / "references" / f"{task}.yaml").write_text(text)
    flags = [
        "--dataset-root",
        str(data_root),
        "--references-dir",
        str(folder / "references"),
        "-o",
        str(folder / name),
    ]
    flags += [
        "--tasks",
        "gsm8k,mmlu",
        "--set",
        "gsm8k.num_samples=400",
        "--set",
        "mmlu.num_samples=400",
    ]
    env = {key: value for key, value in os.environ.items() if not key.startswith("SERVE_EVAL_")}
    command = [sys.executable, "-m", "serve_eval", "run", *flags, *more]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    tasks = json.loads((folder / name / "report.json").read_text())["tasks"]
    assert all(task["result"]["failed"] == 0 for task in tasks if "failed" in task["result"])
    return ("PASS", "FAIL")[done.returncode]


def test_a_sound_pair_passes_and_a_corrupt_generation_worker_fails(data_root, tmp_path):
    simulated = ["--launcher", "simulated", "--set", "launcher.accuracy=0.9"]
    assert evaluate(data_root, tmp_path, "simulated", *simulated) == "PASS"
    answers = tmp_path / "simulated/logs/simulated.answers.jsonl"
    (tmp_path / "w.yaml").write_text(
        yaml.safe_dump({"cache_transceiver_config": {"backend": "UCX"}})
    )
    for name, faults in (("sound", {}), ("corrupt", {"corrupt_after": 150, "when": {"gpus": "1"}})):
        with ExitStack() as stack:
            ports = [free_port() for _ in range(3)]
            for gpu, port in enumerate(ports[:2]):
                env = environment(faults=faults, answers=answers, CUDA_VISIBLE_DEVICES=str(gpu))
                argv = ["M", "--port", str(port), "--config", str(tmp_path / "w.yaml")]
                process = stack.enter_context(running(argv, tmp_path / f"{gpu}.log", env))
                wait_healthy(process, port, tmp_path / f"{gpu}.log")
            urls = [[f"localhost:{port}"] for port in ports]
            config = {
                "port": ports[2],
                "context_servers": {"urls": urls[0]},
                "generation_servers": {"urls": urls[1]},
            }
            (tmp_path / "d.yaml").write_text(yaml.safe_dump(config))
            front = stack.enter_context(
                running(["disaggregated", "-c", str(tmp_path / "d.yaml")], tmp_path / "front.log")
            )
            url = wait_healthy(front, ports[2], tmp_path / "front.log")
            flags = ["--base-url", f"{url}/v1", "--model", "simulated"]
            verdict = evaluate(data_root, tmp_path, name, *flags)
            assert verdict == ("PASS" if name == "sound" else "FAIL")
