"""Test what is read from pods and Services, and what tunnels carry."""

import asyncio
import hashlib
import json

import kubernetes_validate
import pytest
import yaml

from serve_eval.errors import LaunchError
from serve_eval.launchers._kubernetes import watch
from serve_eval.launchers._kubernetes.cluster import connect
from serve_eval.launchers._kubernetes.services import find_end, mask_words, read_pod, read_service
from serve_eval.launchers._kubernetes.tunnels import open_tunnels
from tests.cli.command import serve_eval
from tests.launchers.kubernetes.mock_cluster import (
    NAMESPACE,
    container_status,
    pod,
    service,
)

KILLED = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
CRASHED = {"terminated": {"reason": "Error", "exitCode": 1}}


def _gone(name):
    raw = pod(name)
    raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return raw


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (pod("a"), None),
        (pod("a", ready=False), None),  # a probe that fails is no end
        (
            pod("a", status={"restarts": 1, "lastState": KILLED}),
            "pod a: container server restarted: OOMKilled, exit code 137",
        ),
        (
            pod("a", status={"restarts": 3, "lastState": CRASHED}),
            "pod a: container server restarted: Error, exit code 1",
        ),
        (
            pod("a", status={"restarts": 1, "lastState": {"terminated": {"exitCode": 137}}}),
            "pod a: container server restarted: exit code 137, SIGKILL",
        ),
        (
            pod("a", status={"restarts": 1}),
            "pod a: container server restarted: its cause is not reported",
        ),
        (
            pod("a", ready=False, status={"state": CRASHED}),
            "pod a: container server ended: Error, exit code 1",
        ),
        (None, "pod a is gone"),
        (pod("a", uid="another"), "pod a was replaced by another of the same name"),
        (_gone("a"), "pod a is being deleted"),
        (
            {**pod("a"), "status": {"phase": "Failed", "reason": "Evicted"}},
            "pod a ended: Evicted",
        ),
    ],
)
def test_an_end_is_told_from_a_pod_that_runs_on(now, told):
    ended = find_end(read_pod(pod("a")), None if now is None else read_pod(now))
    assert (ended and ended[0]) == told


def test_restarts_from_before_the_run_are_no_end():
    before = pod("a", status={"restarts": 4, "lastState": CRASHED})
    assert find_end(read_pod(before), read_pod(before)) is None


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (pod("a", ready=False), "a is Running (server: not ready)"),
        (
            pod(
                "a",
                ready=False,
                phase="Pending",
                status={"state": {"waiting": {"reason": "ErrImagePull"}}},
            ),
            "a is Pending (server: ErrImagePull)",
        ),
        (_gone("a"), "a is being deleted"),
        (
            {
                "metadata": {"name": "a"},
                "status": {
                    "phase": "Pending",
                    "conditions": [
                        {"type": "PodScheduled", "status": "False", "message": "0/3 nodes: no GPU"}
                    ],
                },
            },
            "a is not scheduled: 0/3 nodes: no GPU",
        ),
    ],
)
def test_what_is_waited_for_is_told(raw, told):
    assert read_pod(raw).describe() == told


def test_sidecars_count_and_finished_init_containers_do_not():
    raw = pod("a")
    raw["spec"]["initContainers"] = [{"name": "fetch"}, {"name": "mesh", "restartPolicy": "Always"}]
    raw["status"]["initContainerStatuses"] = [
        container_status("fetch", state=CRASHED),
        container_status("mesh"),
    ]
    assert [one.name for one in read_pod(raw).containers] == ["mesh", "server"]


PORTS = [{"name": "http", "port": 80, "targetPort": 8000}, {"name": "metrics", "port": 9000}]


@pytest.mark.parametrize(
    ("spec", "port", "found"),
    [
        ({}, None, (80, "http")),
        ({"ports": PORTS}, 80, (80, 8000)),
        ({"ports": PORTS}, "80", (80, 8000)),
        ({"ports": PORTS}, "metrics", (9000, 9000)),
        ({"ports": PORTS, "clusterIP": "None"}, "http", (8000, 8000)),
    ],
)
def test_the_port_is_chosen_by_number_or_name(spec, port, found):
    one = read_service(service(**spec), port, NAMESPACE)
    assert (one.port, one.target) == found
    assert one.selector == "app=llama"
    assert one.address() == f"http://llama.serving.svc:{found[0]}/v1"


@pytest.mark.parametrize(
    ("spec", "port", "told"),
    [
        ({"ports": PORTS}, None, r"llama has 2 ports; choose one of 80 \(http\), 9000 \(metrics\)"),
        ({"ports": PORTS}, 8000, r"has no port 8000; it has 80 \(http\), 9000 \(metrics\)"),
        ({"selector": None}, None, "llama selects no pods itself"),
        ({"selector": None, "type": "ExternalName"}, None, "type ExternalName"),
    ],
)
def test_a_service_that_cannot_be_used_says_so(spec, port, told):
    with pytest.raises(LaunchError, match=told):
        read_service(service(**spec), port, NAMESPACE)


def test_a_named_port_that_the_pod_lacks_is_named():
    found = read_service(service(ports=[{"port": 80, "targetPort": "grpc"}]), None, NAMESPACE)
    with pytest.raises(LaunchError, match="pod a has no port named grpc"):
        found.target_port(read_pod(pod("a")))


@pytest.mark.parametrize(
    ("words", "masked"),
    [
        (["serve", "--tp_size", "2"], ["serve", "--tp_size", "2"]),
        (["--api-key", "abc", "--port", "1"], ["--api-key", "***", "--port", "1"]),
        (["--api-key=abc", "HF_TOKEN=x"], ["--api-key=***", "HF_TOKEN=***"]),
        (["--api-key", "--port"], ["--api-key", "--port"]),
        (["--max-num-batched-tokens", "8192"], ["--max-num-batched-tokens", "8192"]),
        (["hf_0123456789abcdef0123"], ["***"]),
        (["--url=http://me:pass@host/"], ["--url=***"]),
        (["-c", "export HF_TOKEN=x;\n exec serve --api-key  y"],
         ["-c", "export HF_TOKEN=***\n exec serve --api-key  ***"]),
        (['{"api_key": "abc", "model": "m"}'], ['{"api_key": "***", "model": "m"}']),
    ],
)  # fmt: skip
def test_words_that_look_like_a_secret_are_masked(words, masked):
    assert mask_words(words) == masked


VERSIONS = ("1.29", "1.34", "1.37")
"""Versions of Kubernetes whose schemas the manifest must satisfy."""


def manifest(data, *options):
    """Return the text of job.yaml, as the dry run prints it."""
    settings = [
        word for one in ("service=llama", *options) for word in ("--set", f"launcher.{one}")
    ]
    done = serve_eval(
        "run", "--launcher", "kubernetes", "--model", "org/model", "--tasks", "gsm8k",
        "--dataset-root", data, "--no-reference", *settings, "--dry-run", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [(path, text)] = json.loads(done.stdout)["files"].items()
    assert path == "logs/job.yaml"
    return str(text)


def objects(text):
    return {one["kind"]: one for one in yaml.safe_load_all(text)}


MORE = ("namespace=serving", "job_claim=runs", "job_data_claim=data", "job_secret=key",
        "job_shards=4", "port=http")  # fmt: skip


@pytest.mark.parametrize("options", [(), MORE], ids=["least", "most"])
def test_the_manifest_is_valid_by_the_schemas(options, data_root):
    found = objects(manifest(data_root, *options))
    assert list(found) == ["ServiceAccount", "Role", "RoleBinding", "ConfigMap", "Job"]
    for version in VERSIONS:
        for one in found.values():
            assert kubernetes_validate.validate(one, version, strict=True) == version


def test_the_job_runs_the_plan_at_the_address_in_the_cluster(data_root):
    text = manifest(data_root, "kubeconfig=~/.kube/x", "context=prod", "job_image=reg/serve-eval:1")
    found = objects(text)
    plan = yaml.safe_load(found["ConfigMap"]["data"]["plan.yaml"])
    assert plan["launcher"] == {"name": "kubernetes", "service": "llama", "address": "cluster"}
    assert plan["dataset_root"] == [str(data_root)]
    assert f"# dataset_root: {data_root} is of this machine" in text
    assert "# The run folder goes with the pod" in text
    [container] = found["Job"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "reg/serve-eval:1"
    assert container["args"] == ["run", "/etc/serve-eval/plan.yaml", "-o", "/runs/serve-eval-llama"]
    assert "env" not in container
    assert found["Job"]["spec"]["backoffLimit"] == 0


def test_shards_share_an_order_and_each_has_its_folder(data_root):
    found = objects(manifest(data_root, *MORE))
    spec = found["Job"]["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 4, 4)
    [container] = spec["template"]["spec"]["containers"]
    assert container["args"][2:] == [
        "--shard",
        "auto/4",
        "-o",
        "/runs/shard-$(JOB_COMPLETION_INDEX)",
    ]
    group, key = container["env"]
    assert group == {
        "name": "SERVE_EVAL_SHARD_GROUP",
        "valueFrom": {
            "fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/controller-uid']"}
        },
    }
    assert key["valueFrom"] == {"secretKeyRef": {"name": "key", "key": "OPENAI_API_KEY"}}
    plan = yaml.safe_load(found["ConfigMap"]["data"]["plan.yaml"])
    assert plan["dataset_root"] == ["/data"]
    assert plan["launcher"] == {
        "name": "kubernetes", "service": "llama", "namespace": "serving", "port": "http",
        "address": "cluster",
    }  # fmt: skip


def test_the_account_may_only_read(data_root):
    rules = objects(manifest(data_root))["Role"]["rules"]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"get", "list"}
    assert {one for rule in rules for one in rule["resources"]} == {"pods", "services", "pods/log"}


def test_the_plan_of_the_manifest_is_read_back(data_root, tmp_path):
    """The pod runs this file, so that it must be a plan that serve-eval accepts."""
    found = objects(manifest(data_root, "port=8000"))
    (path := tmp_path / "plan.yaml").write_text(found["ConfigMap"]["data"]["plan.yaml"])
    done = serve_eval("run", path, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["plan"]["launcher"]["address"] == "cluster"


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("job_shards=0", "launcher.job_shards: 0 is not 1 or more"),
        ("job_shards=4", "without launcher.job_claim the folders of the shards go with their pods"),
        ("service=../x", "launcher.service: '../x' is not a name of Kubernetes"),
        ("address=nodeport", "address"),
    ],
)
def test_impossible_options_are_refused(option, told, data_root):
    done = serve_eval(
        "run", "--launcher", "kubernetes", "--model", "m", "--tasks", "gsm8k", "--no-reference",
        "--dataset-root", data_root, "--set", "launcher.service=x", "--set", f"launcher.{option}",
        "--dry-run",
    )  # fmt: skip
    assert done.returncode == 2
    assert told in done.stderr


MANY = bytes(range(256)) * 16384  # 4 MiB


def talk(cluster, serving, story, count=1):
    """Let a story talk with a pod's server, over `count` tunnels at once. Return what was said."""
    cluster.add(pod("llama-0"))
    cluster.serve_raw("llama-0", serving)
    said = []

    async def one(port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            await asyncio.wait_for(story(reader, writer), 20)
        finally:
            writer.close()

    async def all_of_them():
        async with (
            connect(None, None, None) as api,
            open_tunnels(api, {"llama-0": 8000}, frozenset, said.append) as (port, _),
        ):
            await asyncio.gather(*(one(port) for _ in range(count)))

    asyncio.run(all_of_them())
    return said


async def _echo_digest(reader, writer):
    """Read slowly, answer with the digest and then with many bytes, and close."""
    received = bytearray()
    while len(received) < len(MANY):
        received += await reader.read(100_000)
        await asyncio.sleep(0)
    writer.write(hashlib.sha256(received).digest() + MANY)
    await writer.drain()
    writer.close()


def test_many_bytes_arrive_whole_both_ways_and_the_end_is_seen(cluster):
    async def story(reader, writer):
        writer.write(MANY)
        await writer.drain()
        assert await reader.readexactly(32) == hashlib.sha256(MANY).digest()
        received = bytearray()
        while piece := await reader.read(50_000):
            received += piece
            await asyncio.sleep(0)
        assert received == MANY

    assert talk(cluster, _echo_digest, story, count=3) == []


def test_a_slow_client_slows_the_server(cluster):
    """A response of any length needs a bounded amount of memory on its way."""
    written = 0

    async def pour(reader, writer):
        nonlocal written
        await reader.read(1)
        for _ in range(64):
            writer.write(MANY)
            await writer.drain()
            written += len(MANY)

    async def story(reader, writer):
        writer.write(b"x")
        await reader.read(10)
        await asyncio.sleep(0.7)
        assert 0 < written < 16 * len(MANY)

    talk(cluster, pour, story)


def test_a_tunnel_that_breaks_resets_the_connection(cluster):
    """A body that ends with its connection would look complete after an orderly end."""

    async def half(reader, writer):
        await reader.read(1)
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nthe first half")
        await asyncio.sleep(10)

    async def story(reader, writer):
        writer.write(b"x")
        assert (await reader.read(100)).endswith(b"the first half")
        await asyncio.to_thread(cluster.break_tunnels)
        try:
            ended = await reader.read(100)
        except ConnectionResetError:
            return
        raise AssertionError(f"it looks like the end of the body: {ended!r}")

    said = talk(cluster, half, story)
    assert said == [
        "warning: a connection to pod llama-0 broke: the connection to the API server ended"
    ]


def test_an_error_of_the_cluster_resets_the_connection(cluster):
    cluster.error_of["llama-0"] = "error forwarding port 8000: lost connection to pod"

    async def story(reader, writer):
        try:
            ended = await reader.read(100)
        except ConnectionResetError:
            return
        raise AssertionError(f"it looks like the end of the body: {ended!r}")

    [said] = talk(cluster, _echo_digest, story)
    assert said.endswith("broke: error forwarding port 8000: lost connection to pod")


def test_a_client_that_goes_away_ends_the_connection_of_the_server(cluster):
    """The server then stops computing an answer that nobody reads."""
    ended = asyncio.Event()

    async def notice(reader, writer):
        while await reader.read(100):
            pass
        ended.set()

    async def story(reader, writer):
        writer.write(b"x")
        await writer.drain()
        writer.close()
        for _ in range(200):
            if ended.is_set():
                return
            await asyncio.sleep(0.01)
        raise AssertionError("the server still waits")

    assert talk(cluster, notice, story) == []


DAY = "2026-11-25T18:00:"


def follow(cluster, folder, seconds=0.3):
    """Follow the log of a pod for some seconds, and return what was said."""
    said = []

    async def story():
        async with (
            connect(None, None, None) as api,
            watch.follow_logs(api, [read_pod(pod("llama-0"))], folder, said.append),
        ):
            await asyncio.sleep(seconds)

    asyncio.run(story())
    return said


def test_lines_are_written_once_when_the_log_breaks_off(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "AGAIN_S", 0.05)
    cluster.add(pod("llama-0"))
    lines = cluster.logs["llama-0"] = [f"{DAY}00.000000000Z one", f"{DAY}00.000000001Z two"]
    cluster.later(0.1, cluster.break_streams)
    cluster.later(0.15, lambda: lines.append(f"{DAY}00.000000002Z three"))
    assert follow(cluster, tmp_path, 0.5) == []
    path = tmp_path / "llama-0-server.log"
    assert path.read_text().splitlines() == lines
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_log_that_may_not_be_read_is_told_once(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "AGAIN_S", 0.05)
    cluster.add(pod("llama-0"))
    cluster.forbidden = "log"
    [said] = follow(cluster, tmp_path)
    assert said.startswith("warning: the log of llama-0 cannot be read: log is forbidden")


def test_a_log_that_grows_too_large_ends_with_a_line_that_says_so(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "MOST_BYTES", 100)
    cluster.add(pod("llama-0"))
    cluster.logs["llama-0"] = [f"{DAY}{i:02}.000000000Z a line of the log" for i in range(60)]
    follow(cluster, tmp_path)
    text = (tmp_path / "llama-0-server.log").read_text()
    assert len(text) < 10_000
    assert text.endswith("(serve-eval: the log is too large to follow it any further)\n")


def test_no_link_is_followed(cluster, tmp_path):
    (folder := tmp_path / "logs").mkdir()
    (folder / "llama-0-server.log").symlink_to(tmp_path / "elsewhere")
    cluster.add(pod("llama-0"))
    [said] = follow(cluster, folder, 0.1)
    assert said.startswith("warning: a log could not be written: ")
    assert not (tmp_path / "elsewhere").exists()
