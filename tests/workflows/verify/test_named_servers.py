"""Test servers from a file and from the pods of a mock cluster, and the names of both."""

from contextlib import ExitStack

import pytest

from serve_eval.launchers.kubernetes import IN_A_POD
from tests.cli.command import in_a_process, serve_eval
from tests.json_files import read_json
from tests.launchers.kubernetes.mock_cluster import MockCluster, pod
from tests.workflows.verify.model_server import ModelServer

LABELS = "app=llama"


MODEL = "--model m --floor 0.08"
"""The model, and the floor that equal servers of a fleet do not show."""


@pytest.fixture(scope="module")
def urls():
    """Yield the addresses of two equal servers and a third one of another model."""
    with ExitStack() as stack:
        servers = [ModelServer(name="a"), ModelServer(name="b"), ModelServer(numerics=0.5)]
        yield [stack.enter_context(one.server.serve_in_thread()) for one in servers]


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Yield a mock cluster, with its kubeconfig as that of the user."""
    monkeypatch.delenv(IN_A_POD, raising=False)
    with MockCluster() as mock:
        monkeypatch.setenv("KUBECONFIG", str(mock.kubeconfig(tmp_path)))
        yield mock


def _result(folder):
    """Return the reference of a verification, and the first word of each outcome by name."""
    found = read_json(folder / "verification.json")
    return found["reference"], {one["name"]: one["outcome"].split()[0] for one in found["sides"]}


def test_a_file_has_servers_with_and_without_names(urls, tmp_path):
    file = tmp_path / "fleet.txt"
    file.write_text(f"# a comment\n\n{urls[1]}  # another\npod-17\t{urls[2]}\n")
    ran = serve_eval(
        f"verify {urls[0]} --servers {file} --model m --floor 0.08 -o {tmp_path}", exits=1
    )
    assert _result(tmp_path) == (urls[0], {urls[1]: "IDENTICAL", "pod-17": "ANOTHER"})
    assert ran.stdout.startswith(" ANOTHER MODEL, PRECISION OR CACHE   2 servers: 1 ANOTHER")
    assert " why      pod-17: 20 of 20 probes differ by more than" in ran.stdout
    assert f"serve-eval compare {urls[0]} {urls[2]} --model m --tasks word_problems" in ran.stdout


def test_a_fleet_is_named_by_standard_input(urls, tmp_path):
    (file := tmp_path / "fleet.txt").write_text(
        "".join(f"s{i} {url}\n" for i, url in enumerate(urls))
    )
    ran = in_a_process(
        f"verify --fleet --servers - -o {tmp_path} {MODEL}", shell=f"< {file}", exits=1
    )
    assert ran.stdout.startswith(" ANOTHER MODEL, PRECISION OR CACHE   2 servers: 1 ANOTHER")
    assert " why      s2: " in ran.stdout


def test_a_reference_file_is_for_the_servers_of_a_file(urls, tmp_path):
    words = "--model m --probes 60"
    serve_eval(
        f"verify {urls[0]} --register {tmp_path}/m.json --floor 0.08 -o {tmp_path}/out {words}"
    )
    (file := tmp_path / "fleet.txt").write_text(f"good {urls[1]}\nbad {urls[2]}\n")
    ran = serve_eval(f"verify --servers {file} --reference {tmp_path}/m.json -o {tmp_path} {words}")
    assert _result(tmp_path)[1] == {"good": "IDENTICAL", "bad": "ANOTHER"}, ran.stderr
    assert " next " not in ran.stdout  # the reference's server may be gone


def test_a_plan_file_may_have_an_absolute_path(urls, tmp_path):
    plan = tmp_path / "plan.yaml"
    plan.write_text(f"launcher: {{name: external, base_url: '{urls[1]}'}}\nmodel: m\n")
    (file := tmp_path / "fleet.txt").write_text(f"{plan}\n")
    serve_eval(f"verify {urls[0]} --servers {file} --model m -o {tmp_path}/out", exits=0)
    assert "IDENTICAL" in (tmp_path / "out/report.html").read_text()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("h:1 h:2\n", "fleet.txt:1: expected an address, or a name and an address"),
        ("h:1\n\na b c\n", "fleet.txt:3: expected an address"),
        ("../x h:1\n", "fleet.txt:1: expected an address"),
        ("# none\n", "names no server"),
        ("a h:1\na h:2\n", "a server is named twice: a and a"),
        ("a h:1\nb http://h:1/v1\n", "a server is named twice: a and b"),
    ],
)
def test_a_file_that_names_no_servers_is_refused(text, told, tmp_path):
    (file := tmp_path / "fleet.txt").write_text(text)
    serve_eval(f"verify h:9 h:8 --servers {file} --model m", exits=2, tells=told)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--servers", "/none"], "--servers /none: No such file"),
        (["--set", "verify.port=80"], "give --pods SELECTOR too"),
        (["--pods", " "], "expected a label selector"),
        (["--pods", LABELS, "--set", "verify.port=0"], "verify.port: 0 is no port"),
    ],
)
def test_options_that_name_no_servers_are_refused(words, told):
    serve_eval("verify", *words, "h:1", "h:2", "--model", "m", exits=2, tells=told)


def _add_pods(cluster, urls):
    for number, url in enumerate(urls):
        cluster.add(pod(f"llama-{number}"))
        cluster.lead(f"llama-{number}", url)


def test_all_ready_pods_with_some_labels_are_a_fleet(cluster, urls, tmp_path):
    _add_pods(cluster, urls)
    cluster.add(pod("llama-3", ready=False))
    ran = serve_eval(f"verify --fleet -o {tmp_path} {MODEL} --pods", LABELS, exits=1)
    reference, outcomes = _result(tmp_path)
    assert reference.removeprefix("the majority, as ") in ("llama-0", "llama-1")
    assert outcomes.pop("llama-2") == "ANOTHER"
    assert set(outcomes.values()) == {"IDENTICAL"}
    assert "left out: llama-3 is Running" in ran.stderr
    assert set(cluster.tunnels) == {"llama-0", "llama-1", "llama-2"}
    assert " next " not in ran.stdout  # the addresses of tunnels are gone
    assert any("labelSelector=app%3Dllama" in one or LABELS in one for one in cluster.asked())


def test_pods_are_compared_with_a_server_of_the_command_line(cluster, urls, tmp_path):
    _add_pods(cluster, urls[1:])
    words = "--set verify.namespace=serving --set verify.port=8000 --floor 0.08 --model m"
    serve_eval(f"verify {urls[0]} -o {tmp_path} {words} --pods", LABELS, exits=1)
    assert _result(tmp_path) == (urls[0], {"llama-0": "IDENTICAL", "llama-1": "ANOTHER"})


def test_in_the_cluster_pods_are_asked_at_their_own_addresses(cluster, urls, tmp_path, monkeypatch):
    for number, url in enumerate(urls):
        port = int(url.split(":")[2].partition("/")[0])
        cluster.add(pod(f"llama-{number}", port=port))
    monkeypatch.setenv(IN_A_POD, "10.0.0.1")
    ran = serve_eval(f"verify --fleet -o {tmp_path} {MODEL} --pods", LABELS, exits=1)
    assert not cluster.tunnels
    assert "serve-eval compare http://127.0.0.1:" in ran.stdout


PORTS = [{"containerPort": 9090, "name": "metrics"}, {"containerPort": 8000}]


@pytest.mark.parametrize(
    ("container", "words", "told"),
    [
        ({"ports": PORTS}, "", "pod llama-0 has the ports 9090 (metrics), 8000\n"),
        ({"ports": []}, "", "pod llama-0 declares no port\n"),
        (
            {},
            "--set verify.namespace=none",
            "there is no pod with the labels app=llama in namespace none",
        ),
    ],
)
def test_pods_that_cannot_be_chosen_are_an_error_with_a_way_out(container, words, told, cluster):
    cluster.add(pod("llama-0", container=container))
    ran = serve_eval(f"verify h:1 --model m {words} --pods", LABELS, exits=4, tells=told)
    assert "verify.port=N" in ran.stderr or "kubectl get pods -n none --show-labels" in ran.stderr


def test_a_port_with_the_name_http_or_serve_is_the_one_of_the_servers(cluster, urls, tmp_path):
    for name in ("http", "serve"):
        ports = [PORTS[0], {"containerPort": 7, "name": name}]
        cluster.add(pod("llama-0", container={"ports": ports}))
        cluster.lead("llama-0", urls[1])
        serve_eval(f"verify {urls[0]} --model m -o {tmp_path} --pods", LABELS, exits=0)


def test_pods_that_are_not_ready_or_not_to_be_seen_are_an_error(cluster):
    cluster.add(pod("llama-0", ready=False))
    words = ["verify", "h:1", "--pods", LABELS, "--model", "m"]
    serve_eval(*words, exits=4, tells="is Ready: llama-0 is Running (server: not ready)")
    cluster.forbidden = "pods"
    ran = serve_eval(
        *words,
        exits=4,
        tells="list the pods app=llama of namespace serving: the API server refuses it",
    )
    assert "list pods" in ran.stderr


def test_without_credentials_for_a_cluster_the_error_says_so(tmp_path):
    ran = serve_eval(
        "verify h:1 --model m --pods",
        LABELS,
        KUBECONFIG=str(tmp_path / "none"),
        exits=4,
        tells="there are no credentials for a cluster",
    )
    assert "KUBECONFIG" in ran.stderr
