"""Test how the launcher finds the servers, waits for them, and says what is wrong."""

import asyncio
import json
import socket
import time

import pytest

from serve_eval.errors import LaunchError
from serve_eval.launchers import kubernetes
from serve_eval.launchers._kubernetes import watch
from serve_eval.schema import LaunchContext
from tests.cli.command import serve_eval
from tests.launchers.kubernetes.mock_cluster import (
    DIGEST,
    NAMESPACE,
    SERVICE,
    pod,
    service,
)

BACK_OFF = {"state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}}}
CRASHED = {"lastState": {"terminated": {"reason": "Error", "exitCode": 1}}}
PULLING = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling x"}}}


async def _nothing(endpoint):
    pass


def attach(
    folder,
    during=_nothing,
    *,
    at_first=lambda: None,
    **options,
):
    """Attach to the Service for the length of a story, and return what was said.

    `at_first` is called once, after the first line.
    """
    said = []

    def take(line):
        said.append(line)
        if len(said) == 1:
            at_first()

    context = LaunchContext(model="org/model", log_dir=folder / "logs", notify=take)
    chosen = kubernetes.KubernetesOptions(**{"service": SERVICE, **options})

    async def story():
        async with kubernetes.launch(context, chosen) as endpoint:
            await during(endpoint)

    asyncio.run(story())
    return said


def test_pods_are_waited_for(cluster, tmp_path):
    cluster.add(service())
    cluster.add(pod("llama-0", ready=False), any_model=True)
    said = attach(tmp_path, at_first=lambda: cluster.add(pod("llama-0")))
    assert said[0] == "waiting for pods: llama-0 is Running (server: not ready)"
    assert said[-2:][0].startswith("service serving/llama: Ready: llama-0; asked through the API")
    assert said[-1].startswith("pod llama-0: the first completion took ")


def test_a_pod_that_is_not_ready_in_time_is_named(cluster, tmp_path):
    cluster.add_served("llama-0")
    cluster.add(pod("llama-1", ready=False))
    told = r"not ready after 0\.2 s: llama-1 is Running \(server: not ready\)"
    with pytest.raises(LaunchError, match=told):
        attach(tmp_path, ready_timeout_s=0.2)


def test_a_service_without_pods_is_waited_for(cluster, tmp_path):
    cluster.add(service())
    with pytest.raises(LaunchError, match="not ready after 0 s: no pod has the labels app=llama"):
        attach(tmp_path, ready_timeout_s=0.0)


def test_a_crash_loop_ends_the_wait_with_its_last_lines(cluster, tmp_path):
    cluster.add(service())
    cluster.add(pod("llama-0", ready=False, status={"restarts": 3, **BACK_OFF, **CRASHED}))
    cluster.previous["llama-0"] = "loading\nunrecognized arguments: --tp\n"
    with pytest.raises(LaunchError) as caught:
        attach(tmp_path)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith(
        "pod llama-0: container server: CrashLoopBackOff; its last process ended with Error, exit"
        " code 1: back-off 40s"
    )
    assert lines[1:] == ["  loading", "  unrecognized arguments: --tp"]
    assert "kubectl describe pod llama-0 -n serving" in caught.value.hint


def test_an_image_that_is_not_there_ends_the_wait(cluster, tmp_path):
    cluster.add(service())
    cluster.add(pod("llama-0", ready=False, phase="Pending", status=PULLING))
    with pytest.raises(LaunchError, match="container server: ImagePullBackOff: Back-off pulling x"):
        attach(tmp_path)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"service": "lama"}, "no service 'lama' in namespace serving; it has llama"),
        ({"namespace": "servin"}, "no namespace servin; the cluster has serving"),
        ({"context": "other"}, "no namespace elsewhere; the cluster has serving"),
        ({"context": "prod"}, "no context 'prod'; the kubeconfig has mock, other"),
        ({"port": 8080}, r"service llama has no port 8080; it has 80 \(http\)"),
        ({"kubeconfig": "/nowhere/config"}, "launcher.kubeconfig: /nowhere/config is not a file"),
    ],
)
def test_a_wrong_name_is_answered_with_those_that_exist(options, told, cluster, tmp_path):
    cluster.add(service())
    with pytest.raises(LaunchError, match=told):
        attach(tmp_path, **options)


@pytest.mark.parametrize(
    ("forbidden", "told"),
    [
        ("services", "read service llama: the API server refuses it: services is forbidden"),
        ("pods", "list the pods of namespace serving: the API server refuses it: pods is forbid"),
    ],
)
def test_a_missing_permission_is_named(forbidden, told, cluster, tmp_path):
    cluster.add_served("llama-0")
    cluster.forbidden = forbidden
    with pytest.raises(LaunchError, match=told) as caught:
        attach(tmp_path)
    assert "get and create pods/portforward" in caught.value.hint


def test_a_refused_tunnel_says_so(cluster, tmp_path):
    cluster.add_served("llama-0")
    cluster.refuse_tunnels = True
    with pytest.raises(LaunchError) as caught:
        attach(tmp_path)
    assert str(caught.value) == "pod llama-0: the API server refuses the tunnel with HTTP 403"
    assert "pods/portforward" in caught.value.hint


def test_an_error_of_the_cluster_is_passed_on(cluster, tmp_path):
    cluster.add_served("llama-0")
    cluster.error_of["llama-0"] = "dial tcp 127.0.0.1:8000: connection refused"
    with pytest.raises(LaunchError, match="8000: connection refused"):
        attach(tmp_path, answer_timeout_s=3.0)


def test_a_cluster_that_is_not_there_is_an_error(cluster, tmp_path, monkeypatch):
    cluster.away = True
    with pytest.raises(LaunchError, match=r"read service llama: the API server .* not answer"):
        attach(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(LaunchError, match="there are no credentials for a cluster"):
        attach(tmp_path)


def test_a_worker_behind_the_service_is_watched_too(cluster, tmp_path):
    """The mock ignores label selectors, so both lists have both pods."""
    cluster.add_served("llama-0", "worker-0")

    async def lose_a_worker(endpoint):
        cluster.remove("worker-0")
        await asyncio.sleep(5)

    with pytest.raises(LaunchError, match="pod worker-0 is gone"):
        attach(tmp_path, lose_a_worker, also_watch="app=worker")
    assert any("labelSelector=app%3Dworker" in path for path in cluster.asked())


def test_a_pod_that_ends_with_the_run_is_noticed(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "POLL_S", 60.0)
    cluster.add_served("llama-0", "llama-1")

    async def lose_a_pod(endpoint):
        cluster.remove("llama-1")

    with pytest.raises(LaunchError, match="pod llama-1 is gone"):
        attach(tmp_path, lose_a_pod)


def test_a_pod_that_joins_gets_no_requests(cluster, tmp_path):
    cluster.add_served("llama-0")

    async def grow(endpoint):
        cluster.add(pod("llama-1"), any_model=True)
        await asyncio.sleep(0.3)

    said = attach(tmp_path, grow)
    assert said.count("pod llama-1 joined the service; this run sends it no requests") == 1
    assert "llama-1" not in cluster.tunnels


def test_a_pod_that_is_no_longer_ready_is_told(cluster, tmp_path):
    cluster.add_served("llama-0")

    async def fail_a_probe(endpoint):
        cluster.add(pod("llama-0", ready=False))
        await asyncio.sleep(0.2)
        cluster.add(pod("llama-0"))
        await asyncio.sleep(0.2)

    said = attach(tmp_path, fail_a_probe)
    assert said[-2:] == ["warning: pod llama-0 is no longer Ready", "pod llama-0 is Ready again"]


def test_the_address_in_the_cluster_is_that_of_the_service(cluster, tmp_path, monkeypatch):
    """Its name resolves only in the cluster, so that the test resolves it."""
    resolve = socket.getaddrinfo

    def resolved(host, *more, **named):
        inside = host in ("llama.serving.svc", b"llama.serving.svc")
        return resolve("127.0.0.1" if inside else host, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    monkeypatch.setenv(kubernetes.IN_A_POD, "10.0.0.1")
    cluster.add(pod("llama-0"), any_model=True)
    port = cluster.port_of("llama-0")
    cluster.add(service(ports=[{"port": port, "targetPort": port}]))
    found = []

    async def grow(endpoint):
        found.append(endpoint)
        cluster.add(pod("llama-1"))
        await asyncio.sleep(5)

    with pytest.raises(LaunchError, match="pod llama-1 joined the service during the run"):
        attach(tmp_path, grow)
    [endpoint] = found
    assert endpoint.base_url == f"http://llama.{NAMESPACE}.svc:{port}/v1"
    assert endpoint.info.servers == {"llama-0": f"http://127.0.0.1:{port}/v1"}
    assert not cluster.tunnels


def test_keys_that_kr8s_writes_to_files_are_removed(cluster, tmp_path, monkeypatch):
    (own := tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(own))
    monkeypatch.setattr("tempfile.tempdir", None)
    cluster.add_served("llama-0")
    path = cluster.kubeconfig(tmp_path, with_certificate=True)
    attach(tmp_path, kubeconfig=str(path))
    assert list(own.iterdir()) == []


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
    # The probes before the first sample have connections of their own, and ask about a dozen times.
    thread = cluster.after(40, cluster.break_tunnels)
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
