"""Test both legs together: the same answers as from one worker, failures, an evaluation."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import httpx
import msgspec
import pytest
import yaml

from serve_eval.launchers._standin.model import decode
from serve_eval.schema import Message
from serve_eval.schema.media import prompt_sha256
from tests.standin.deployments import HTTP, READY_S, environment, free_port, running, wait_healthy

TRANSCEIVER = {"cache_transceiver_config": {"backend": "DEFAULT"}}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "who?"}]}
TEXT = {"model": "m", "prompt": "2 + 2 ="}
ANSWERS = [
    {
        "sha256": prompt_sha256("2 + 2 ="),
        "right": " 4, of course",
        "wrong": " 5",
        "probability": 1.0,
    },
    {
        "sha256": prompt_sha256((Message(role="user", content="who?"),)),
        "right": "I am ünïcode 数学.",
        "wrong": "nobody",
        "probability": 1.0,
    },
]


def post(url, body, route="completions"):
    return HTTP.post(f"{url}/v1/{route}", json=body)


class Pair:
    """Base URLs of a context worker, two generation workers and an orchestrator.

    The workers are whole servers too.
    """

    def __init__(self, ctx, gen, broken, front):
        self.ctx, self.gen, self.broken, self.front = ctx, gen, broken, front


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    (folder / "answers").write_bytes(b"\n".join(msgspec.json.encode(entry) for entry in ANSWERS))
    (folder / "w.yaml").write_text(yaml.safe_dump(TRANSCEIVER))
    faults = [
        {"wrong_tp": True, "when": {"gpus": "2,3"}},
        {"null_ctx_id": True, "when": {"gpus": "0"}},
    ]
    ports = [free_port() for _ in range(4)]
    urls = [f"localhost:{port}" for port in ports]
    config = {
        "port": ports[3],
        "context_servers": {"urls": urls[:1]},
        "generation_servers": {"urls": urls[1:2]},
    }
    (folder / "d.yaml").write_text(yaml.safe_dump(config))
    with ExitStack() as stack:
        started = []
        for number, gpus in enumerate(("0", "1", "2,3")):
            env = environment(faults=faults, answers=folder / "answers", CUDA_VISIBLE_DEVICES=gpus)
            argv = ["M", "--port", str(ports[number]), "--tp_size", str(len(gpus.split(",")))]
            argv += ["--config", str(folder / "w.yaml")]
            started.append(stack.enter_context(running(argv, folder / f"{number}.log", env)))
        bases = [wait_healthy(one, ports[n], folder / f"{n}.log") for n, one in enumerate(started)]
        front = stack.enter_context(
            running(["disaggregated", "-c", str(folder / "d.yaml")], folder / "3.log")
        )
        yield Pair(*bases, wait_healthy(front, ports[3], folder / "3.log"))


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("completions", TEXT),
        ("completions", {"model": "m", "prompt": "unknown", "stop": ["blue", "red"]}),
        ("completions", {"model": "m", "prompt": [300, 301, 302], "max_tokens": 4}),
        ("completions", {**TEXT, "max_tokens": 1}),
        ("chat/completions", CHAT),
        ("chat/completions", {**CHAT, "max_tokens": 2}),
    ],
)
def test_an_answer_is_the_same_from_one_worker_and_from_two(pair, route, body):
    one, two = post(pair.gen, body, route).json(), post(pair.front, body, route).json()
    for answer in (one, two):
        answer["id"] = answer["created"] = answer["prompt_token_ids"] = None
        answer["choices"][0].pop("disaggregated_params", None)
    assert one == two
    if "max_tokens" in body and body["max_tokens"] == 1:
        return
    texts = [post(url, {**body, "stream": True}, route).text for url in (pair.gen, pair.front)]
    choices = [
        [
            json.loads(event[6:])["choices"]
            for event in text.split("\n\n")
            if event.startswith("data: {")
        ]
        for text in texts
    ]
    assert choices[0] == choices[1] != []


def test_known_prompts_get_their_answers(pair):
    assert post(pair.front, TEXT).json()["choices"][0]["text"] == " 4, of course"
    chat = post(pair.front, CHAT, "chat/completions").json()
    assert chat["choices"][0]["message"]["content"] == "I am ünïcode 数学."


def test_what_the_context_worker_finishes(pair):
    assert post(pair.front, {**TEXT, "max_tokens": 1, "stream": True}).text == "data: [DONE]\n\n"
    lost = post(pair.front, {**TEXT, "stop": " 4"})
    assert lost.status_code == 500
    assert lost.json() == {
        "detail": "Internal server error Invalid disaggregated params in context phase response."
    }


def test_a_refusal_of_a_worker_becomes_a_500(pair):
    started = time.monotonic()
    answer = post(pair.front, {**TEXT, "max_tokens": 0})
    assert answer.status_code == 500
    assert answer.json()["detail"].startswith(
        "Internal server error 400, message='Bad Request', url='http://localhost"
    )
    assert time.monotonic() - started > 1.0
    assert post(pair.front, {**TEXT, "prompt": ["a", "b"]}).status_code == 500
    assert post(pair.front, {**TEXT, "prompt_logprobs": 1}).status_code == 400


def test_a_pair_of_other_tensor_parallel_sizes_answers_wrongly(pair):
    params = {"request_type": "context_only", "disagg_request_id": 2**41}
    context = post(pair.ctx, {**TEXT, "disaggregated_params": params}).json()
    [choice] = context["choices"]
    assert choice["finish_reason"] == "length"
    given = {**choice["disaggregated_params"], "request_type": "generation_only"}
    assert decode(given["first_gen_tokens"]) == choice["text"] == " 4,"
    body = {**TEXT, "prompt": context["prompt_token_ids"], "disaggregated_params": given}
    assert post(pair.gen, body).json()["choices"][0]["text"] == " 4, of course"
    assert post(pair.broken, body).json()["choices"][0]["text"] != " 4, of course"
    other = {**body, "prompt": [*context["prompt_token_ids"], 300]}
    assert post(pair.gen, other).json()["choices"][0]["text"].startswith(" 4,")


def test_workers_take_what_a_real_orchestrator_sent(pair, shared):
    scenarios = json.loads((shared / "recorded_orchestrator/static.json").read_text())
    sent = 0
    for url, name in ((pair.ctx, "ctx_saw"), (pair.gen, "gen_saw")):
        for one in (one for scenario in scenarios for one in scenario.get(name, [])):
            if (
                one["method"] == "POST"
                and one["path"].startswith("/v1/")
                and one["body"].get("n", 1) == 1
            ):
                route = one["path"].removeprefix("/v1/")
                if one["body"].get("echo") and isinstance(one["body"]["prompt"], list):
                    assert post(url, one["body"], route).status_code == 400
                    continue
                answer = post(url, one["body"], route)
                assert answer.status_code == 200, (one["body"], answer.text)
                sent += 1
                if name == "ctx_saw":
                    given = answer.json()["choices"][0]["disaggregated_params"]
                    assert len(given["first_gen_tokens"]) == 1
                    assert None not in (given["ctx_request_id"], given["encoded_opaque_state"])
                    wanted = one["body"]["disaggregated_params"]["disagg_request_id"]
                    assert given["disagg_request_id"] == wanted
                    assert answer.json()["prompt_token_ids"]
                else:
                    assert "<11>" in answer.text
    assert sent > 25


def test_an_orchestrator_without_workers_ends(tmp_path):
    cases = [("v12", 0), ("main", 3)]
    with ExitStack() as stack:
        started = []
        for flavour, _ in cases:
            urls = {"urls": [f"localhost:{free_port()}"]}
            config = {"port": free_port(), "context_servers": urls, "generation_servers": urls}
            (tmp_path / flavour).write_text(yaml.safe_dump(config))
            argv = ["disaggregated", "-c", str(tmp_path / flavour), "-t", "0"]
            started.append(
                stack.enter_context(running(argv, tmp_path / "log", environment(flavour)))
            )
        assert [process.wait(READY_S) for process in started] == [code for _, code in cases]


def test_workers_that_register_themselves(tmp_path):
    """On main: msgpack between servers, 503 for the 500 of 1.2, worker messages in errors."""
    port = free_port()
    cluster = {"cluster_uri": f"http://localhost:{port}", "cluster_name": "c"}
    cluster |= {"heartbeat_interval_sec": 1, "inactive_timeout_sec": 3}
    (tmp_path / "w.yaml").write_text(yaml.safe_dump({"disagg_cluster": cluster, **TRANSCEIVER}))
    (tmp_path / "d.yaml").write_text(yaml.safe_dump({"port": port, "disagg_cluster": cluster}))
    front, env = f"http://localhost:{port}", environment("main")
    with ExitStack() as stack:
        argv = ["disaggregated", "-c", str(tmp_path / "d.yaml")]
        orchestrator = stack.enter_context(running(argv, tmp_path / "front.log", env))
        _until(lambda: HTTP.get(f"{front}/health").status_code == 503)
        workers = {}
        for role in ("context", "generation"):
            argv = ["M", "--port", "0", "--server_role", role, "--config", str(tmp_path / "w.yaml")]
            workers[role] = stack.enter_context(running(argv, tmp_path / f"{role}.log", env))
        _until(lambda: HTTP.get(f"{front}/cluster_info").json()["is_ready"])
        _until(lambda: post(front, TEXT).status_code == 200)
        refused = post(front, {**TEXT, "max_tokens": 0})
        assert (refused.status_code, "must be greater than 0" in refused.json()["detail"]) == (
            400,
            True,
        )
        workers["generation"].send_signal(signal.SIGTERM)
        assert workers["generation"].wait(READY_S) == -signal.SIGTERM
        assert HTTP.get(f"{front}/health").status_code == 503
        assert post(front, TEXT).json() == {"detail": "Internal server error Cluster is not ready"}
        orchestrator.send_signal(signal.SIGTERM)
        assert orchestrator.wait(READY_S) == -signal.SIGTERM


@pytest.mark.slow
def test_an_orchestrator_takes_its_port_at_once_and_listens_when_its_workers_are_healthy(
    tmp_path,
):
    """The config has generation first, a late worker, and one that registers without heartbeats."""
    ports = [free_port() for _ in range(3)]
    urls = [{"urls": [f"localhost:{port}"]} for port in ports]
    config = {"port": ports[2], "context_servers": urls[0], "generation_servers": urls[1]}
    (tmp_path / "d.yaml").write_text(
        yaml.safe_dump({**config, "schedule_style": "generation_first"})
    )
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(TRANSCEIVER))
    with ExitStack() as stack:
        argv = ["disaggregated", "-c", str(tmp_path / "d.yaml")]
        front = stack.enter_context(
            running(argv, tmp_path / "front.log", environment(STANDIN_POLL_S="0.2"))
        )
        started = []
        for port, load_s in zip(ports[:2], (0.0, 2.0), strict=True):
            argv = [
                "M",
                "--port",
                str(port),
                "--config",
                str(tmp_path / "w.yaml"),
                "--reasoning_parser",
                "qwen3",
            ]
            started.append(
                stack.enter_context(running(argv, tmp_path / str(port), environment(load_s=load_s)))
            )
        wait_healthy(started[0], ports[0], tmp_path / str(ports[0]))
        with pytest.raises(httpx.ConnectError):
            HTTP.get(f"http://localhost:{ports[2]}/health")
        url = wait_healthy(front, ports[2], tmp_path / "front.log")
        assert started[1].poll() is None
        for route, body in (("completions", TEXT), ("chat/completions", CHAT)):
            one, two = (
                post(f"http://localhost:{ports[1]}", body, route).json(),
                post(url, body, route).json(),
            )
            assert {**one, "id": 0, "created": 0} == {**two, "id": 0, "created": 0}
        front.send_signal(signal.SIGINT)
        assert front.wait(READY_S) == -signal.SIGINT


@pytest.mark.slow
def test_a_worker_without_heartbeats_is_forgotten(tmp_path):
    port = free_port()
    cluster = {
        "cluster_uri": f"http://localhost:{port}",
        "heartbeat_interval_sec": 1,
        "inactive_timeout_sec": 2,
    }
    cluster["minimal_instances"] = {"context_servers": 0, "generation_servers": 1}
    (tmp_path / "d.yaml").write_text(yaml.safe_dump({"port": port, "disagg_cluster": cluster}))
    (tmp_path / "w.yaml").write_text(yaml.safe_dump({"disagg_cluster": cluster}))
    with ExitStack() as stack:
        argv = ["disaggregated", "-c", str(tmp_path / "d.yaml")]
        front = stack.enter_context(running(argv, tmp_path / "front.log"))
        url = f"http://localhost:{port}"
        _until(lambda: HTTP.get(f"{url}/health").status_code == 500)
        argv = [
            "M",
            "--port",
            "0",
            "--server_role",
            "generation",
            "--config",
            str(tmp_path / "w.yaml"),
        ]
        env = environment(faults={"silent_discovery": True, "when": {"role": "generation"}})
        worker = stack.enter_context(running(argv, tmp_path / "log", env))
        _until(lambda: HTTP.get(f"{url}/health").status_code == 200)
        _until(lambda: HTTP.get(f"{url}/health").status_code == 500)
        assert (front.poll(), worker.poll()) == (None, None)


def _until(condition):
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError("not in time")


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
