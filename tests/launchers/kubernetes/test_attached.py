"""Test runs attached to the servers of a mock cluster."""

import json
import time

import pytest

from serve_eval.launchers._kubernetes import watch
from tests.cli.command import serve_eval
from tests.launchers.kubernetes.mock_cluster import DIGEST, SERVICE, pod, service

RESTARTED = {
    "restarts": 1,
    "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}},
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(watch, "POLL_S", 0.05)
    monkeypatch.setattr(watch, "POLL_S", 0.05)
    monkeypatch.setattr(watch, "AGAIN_S", 0.05)


def run(out, data, *more, limit=40, concurrency=4, **options):
    """Run gsm8k against the Service. The servers know no answer, and the reference expects none."""
    (references := out.parent / "references").mkdir(exist_ok=True)
    (references / "gsm8k.yaml").write_text("org/model:\n  - accuracy: 0.0\n")
    chosen = {"service": SERVICE, **options}
    settings = [word for k, v in chosen.items() for word in ("--set", f"launcher.{k}={v}")]
    return serve_eval(
        "run", "--launcher", "kubernetes", "--model", "org/model", "--tasks", "gsm8k",
        "--dataset-root", data, "--references-dir", references, "--limit", str(limit),
        "--concurrency", str(concurrency), "-o", out, *settings, *more,
    )  # fmt: skip


def info_of(run_folder):
    """Return what the report has on the servers of the last session."""
    report = json.loads((run_folder / "report.json").read_text())
    return report["endpoint"]["info"]


def test_the_report_of_a_run_has_digests_and_arguments(cluster, tmp_path, data_root):
    cluster.add(service())
    cluster.add(pod("llama-0", args=("serve", "org/model", "--api-key", "to-hide")), any_model=True)
    cluster.logs["llama-0"] = ["2026-11-25T18:00:00.000000000Z it runs"]
    done = run(tmp_path / "run", data_root)
    assert done.returncode == 0, done.stderr
    info = info_of(tmp_path / "run")
    assert info["service"] == "serving/llama:80"
    assert info["pods"] == [
        {
            "name": "llama-0",
            "namespace": "serving",
            "uid": "uid-of-llama-0",
            "node": "node-a",
            "containers": [
                {
                    "name": "server",
                    "image": "registry.example/llm:1.2",
                    "digest": DIGEST,
                    "command": ["trtllm-serve"],
                    "args": ["serve", "org/model", "--api-key", "***"],
                }
            ],
        }
    ]
    assert "never-recorded" not in (tmp_path / "run/report.json").read_text()
    log = tmp_path / "run/logs/llama-0-server.log"
    assert info["logs"] == {"llama-0": str(log)}
    assert log.read_text() == "2026-11-25T18:00:00.000000000Z it runs\n"
    assert log.stat().st_mode & 0o777 == 0o600
    assert any("labelSelector=app%3Dllama" in path for path in cluster.asked())


def test_the_key_of_the_endpoint_does_not_stay_in_the_logs(
    cluster, tmp_path, data_root, monkeypatch
):
    key = "a-key-of-the-endpoint"
    cluster.add(service())
    cluster.add(pod("llama-0", args=("serve", "--x", key)), any_model=True)
    cluster.logs["llama-0"] = [f"2026-11-25T18:00:00.000000000Z got {key}"]
    monkeypatch.setenv("MOCK_ENDPOINT", key)
    done = run(tmp_path / "run", data_root, "--api-key-env", "MOCK_ENDPOINT", limit=4)
    assert done.returncode == 0, done.stderr
    log = (tmp_path / "run/logs/llama-0-server.log").read_text()
    assert log == f"2026-11-25T18:00:00.000000000Z got {'*' * len(key)}\n"
    holding = [
        p for p in (tmp_path / "run").rglob("*") if p.is_file() and key in p.read_text("latin-1")
    ]
    assert holding == []


def test_a_restart_midway_ends_the_run_which_can_be_resumed(cluster, tmp_path, data_root):
    cluster.add_served("llama-0", latency_s=0.02)
    cluster.previous["llama-0"] = "CUDA went away\n"
    thread = cluster.after(75, lambda: cluster.add(pod("llama-0", status=RESTARTED)))
    done = run(tmp_path / "run", data_root, limit=100)
    thread.join()
    assert done.returncode == 4
    assert "pod llama-0: container server restarted: OOMKilled, exit code 137" in done.stderr
    assert "Finished answers are kept." in done.stderr
    previous = tmp_path / "run/logs/llama-0-server.previous.log"
    assert f"The log from before the restart is {previous}." in done.stderr
    assert previous.read_text() == "CUDA went away\n"
    assert previous.stat().st_mode & 0o777 == 0o600
    before = cluster.answered["llama-0"]
    again = serve_eval("run", "--resume", tmp_path / "run")
    assert again.returncode == 0, again.stderr
    assert cluster.answered["llama-0"] - before < 100, "finished answers are asked again"
    [container] = info_of(tmp_path / "run")["pods"][0]["containers"]
    assert container["restarts"] == 1


def test_a_pod_that_is_replaced_ends_the_run(cluster, tmp_path, data_root):
    cluster.add_served("llama-0", latency_s=0.02)
    thread = cluster.after(10, lambda: cluster.add(pod("llama-0", uid="another")))
    done = run(tmp_path / "run", data_root, limit=100)
    thread.join()
    assert done.returncode == 4
    assert "error: pod llama-0 was replaced by another of the same name" in done.stderr
    assert f"Its log is {tmp_path / 'run/logs/llama-0-server.log'}." in done.stderr


def test_all_pods_get_requests_through_tunnels_of_their_own(cluster, tmp_path, data_root):
    # Connections are alike.
    cluster.add_served("llama-0", "llama-1", "llama-2", latency_s=0.05)
    done = run(tmp_path / "run", data_root, limit=60, concurrency=6)
    assert done.returncode == 0, done.stderr
    assert set(cluster.answered) == {"llama-0", "llama-1", "llama-2"}
    assert min(cluster.answered.values()) >= 10, cluster.answered
    assert "\nrequests per pod: llama-0 " in done.stderr
    assert set(info_of(tmp_path / "run")["servers"]) == set(cluster.answered)


def test_a_pod_with_few_requests_is_warned_about(cluster, tmp_path, data_root):
    cluster.add_served("llama-0", "llama-1")
    done = run(tmp_path / "run", data_root, limit=200, concurrency=1)  # 26 more precede them
    assert done.returncode == 0, done.stderr
    assert "warning: the pods got unequal shares of the requests: llama-0 " in done.stderr


def test_an_api_server_that_is_away_for_a_while_raises_no_alarm(cluster, tmp_path, data_root):
    cluster.add_served("llama-0", latency_s=0.02)
    cluster.logs["llama-0"] = ["2026-11-25T18:00:00.000000000Z first"]

    def go_away():
        cluster.away = True
        cluster.break_streams()
        time.sleep(0.3)
        cluster.logs["llama-0"].append("2026-11-25T18:00:00.500000000Z second")
        cluster.away = False

    thread = cluster.after(10, go_away)
    done = run(tmp_path / "run", data_root, limit=150)
    thread.join()
    assert done.returncode == 0, done.stderr
    assert "150/150 done, 0 failed" in done.stderr
    log = tmp_path / "run/logs/llama-0-server.log"
    assert [line.split()[1] for line in log.read_text().splitlines()] == ["first", "second"]


def test_broken_tunnels_cost_retries_and_no_answers(cluster, tmp_path, data_root):
    cluster.add_served("llama-0", latency_s=0.02)
    thread = cluster.after(10, cluster.break_tunnels)
    done = run(tmp_path / "run", data_root, limit=60)
    thread.join()
    assert done.returncode == 0, done.stderr
    assert "60/60 done, 0 failed" in done.stderr
    assert "warning: a connection to pod llama-0 broke: the connection to the API" in done.stderr


def test_credentials_that_expire_are_read_again(cluster, tmp_path, data_root):
    cluster.add_served("llama-0", latency_s=0.02)

    def expire():
        cluster.expired = 1

    cluster.after(10, expire).join(0)
    done = run(tmp_path / "run", data_root, limit=40)
    assert done.returncode == 0, done.stderr
    assert cluster.expired <= 0
    assert "warning" not in done.stderr
