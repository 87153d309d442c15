"""Test which floors `serve-eval verify` measures by siblings, uses or refuses."""

import json
import re
from contextlib import ExitStack
from xml.etree import ElementTree

import pytest

from tests.cli.command import serve_eval
from tests.json_files import read_json
from tests.workflows.verify.model_server import ModelServer

NUMERICS = 0.02
LARGEST = 0.2
"""Nats that no floor of servers with these numerics reaches."""


def _run(servers, line="", *words):
    """Run verify on servers: "a" and "b" by position, others as options of their names."""
    with ExitStack() as stack:
        named = list[object]()
        for name, one in servers.items():
            url = stack.enter_context(one.server.serve_in_thread())
            named += [url] if name in "abc" else [f"--{name}", url]
        return serve_eval(f"verify --model m {line}", *words, *named)


def _ending(name="s", **options):
    return ModelServer(name=name, numerics=NUMERICS, ends=0.1, **options)


def _register(tmp_path, sibling, *words):
    file = tmp_path / "floor.json"
    servers = {"a": ModelServer(name="a"), "sibling": sibling}
    ran = _run(servers, f"--register {file} --probes 100", *words)
    assert ran.returncode == 0, ran.stderr
    return file, ran.stdout


def test_an_answer_without_tokens_sets_no_floor_of_a_file(tmp_path):
    file, told = _register(tmp_path, _ending())
    assert any(not one["sibling"]["text"] for one in read_json(file)["probes"]), (
        "no answer of the sibling ended at once"
    )
    assert 0 < read_json(file)["floor"] < LARGEST
    assert "of the sibling's 100 answers are left out of the floor" in " ".join(told.split())
    bad = _run({"b": ModelServer(name="b", numerics=0.5)}, f"--reference {file} -o {tmp_path}")
    assert bad.returncode == 1, bad.stdout
    alike = _run({"b": _ending("b")}, f"--reference {file} -o {tmp_path}/2")
    assert alike.returncode == 1, alike.stdout  # Such answers count against a candidate.


def test_an_answer_without_tokens_sets_no_floor_of_two_servers(tmp_path):
    servers = {
        "a": ModelServer(name="a"),
        "b": ModelServer(name="b", numerics=0.5),
        "sibling": _ending(),
    }
    ran = _run(servers, f"-o {tmp_path}")
    found = read_json(tmp_path / "verification.json")
    assert (ran.returncode, 0 < found["floor"] < LARGEST) == (1, True), found["floor"]
    assert any("left out of the floor" in line for line in found["warnings"])


def test_a_reference_that_ends_at_times_has_no_noise_of_a_placeholder(tmp_path):
    servers = {"a": ModelServer(name="a", stops=0.02), "b": ModelServer(name="b", numerics=0.5)}
    _run(servers, f"-o {tmp_path} --floor 0.08")
    found = read_json(tmp_path / "verification.json")
    assert (found["noise"], found["exit_code"]) == (0.0, 1)


def test_a_sibling_without_log_probabilities_measures_no_floor(tmp_path):
    servers = {"a": ModelServer(name="a"), "b": ModelServer(name="b")}
    servers["sibling"] = ModelServer(name="s", plain=True)
    ran = _run(servers, f"-o {tmp_path}")
    assert (ran.returncode, "the sibling reports no log-prob" in ran.stderr) == (3, True)


def test_a_sibling_that_answers_bit_for_bit_alike_measures_no_floor(tmp_path):
    _, told = _register(tmp_path, ModelServer(name="a"))
    assert "the floor is 0: the sibling answered bit for bit alike" in " ".join(told.split())


def test_a_fleet_takes_no_floor_from_answers_that_end_at_once(tmp_path):
    servers = {"a": _ending("a1"), "b": ModelServer(name="b1", numerics=NUMERICS)}
    servers["c"] = ModelServer(name="c1", numerics=0.6)
    ran = _run(servers, f"--fleet -o {tmp_path}")
    found = read_json(tmp_path / "verification.json")
    assert (ran.returncode, found["floor"] < LARGEST) == (1, True), ran.stdout


@pytest.mark.parametrize(("field", "told"), [("floor", "measure 0."), ("noise", "repeats its")])
def test_a_file_whose_limits_no_distance_exceeds_is_refused(field, told, tmp_path):
    file, _ = _register(tmp_path, _ending())
    file.write_text(json.dumps(read_json(file) | {field: 20.0}))
    b = ModelServer(name="b", numerics=0.5)
    ran = _run({"b": b}, f"--reference {file} -o {tmp_path}/1")
    said = " ".join(ran.stderr.split())
    assert (ran.returncode, f"a {field} of 20 nat" in said, told in said) == (3, True, True), said
    assert not b.server.requests
    given = _run({"b": b}, f"--reference {file} -o {tmp_path}/2 --floor 0.1")
    assert given.returncode == (1 if field == "floor" else 3)


def test_a_server_far_beyond_its_sibling_is_not_passed_without_a_word(tmp_path):
    file, _ = _register(tmp_path, ModelServer(name="s", numerics=NUMERICS))
    b = ModelServer(name="b", numerics=0.3)
    ran = _run({"b": b}, f"--reference {file} -o {tmp_path}/1 --floor 1.5")
    said = " ".join(ran.stdout.split())
    assert ran.returncode == 0
    assert "times the sibling's, though the floor allows it" in said
    assert "the floor of 1.5 nat is high" in said
    assert "a fault of more than 4.5 nat in " in said
    usual = _run({"b": ModelServer(numerics=NUMERICS)}, f"--reference {file} -o {tmp_path}/2")
    assert "though the floor allows it" not in " ".join(usual.stdout.split())


def test_without_a_floor_a_clear_difference_ends_the_command(tmp_path):
    b = ModelServer(name="b", numerics=0.5)
    line = tmp_path / "line.txt"
    servers = {"a": ModelServer(name="a"), "b": b}
    ran = _run(servers, f"-o {tmp_path} --notify-text", line)
    assert ran.returncode == 3
    assert "No floor is known, so no server can be called another model" in " ".join(
        ran.stderr.split()
    )
    assert len(b.server.asked) < 35
    assert "name a sibling or a floor" in line.read_text()
    assert "AS FAR APART AS FOUR-BIT WEIGHTS ARE (0." in line.read_text()
    asked = r"serve-eval verify http://\S+ --sibling HEALTHY --register floor\.json"
    assert re.search(asked, (tmp_path / "summary.md").read_text())
    same = _run({"a": ModelServer(name="a"), "b": ModelServer(name="b")}, f"-o {tmp_path}/2")
    assert same.returncode == 0
    servers = {"a": ModelServer(name="a"), "b": ModelServer(name="b", numerics=NUMERICS)}
    near = _run(servers, f"-o {tmp_path}/3 --notify-text", line)
    assert near.returncode == 3
    assert "FOUR-BIT" not in line.read_text() + near.stdout


MODEL = "--model m"


def _run_siblings(servers, siblings, line="", *words):
    with ExitStack() as stack:
        urls = [stack.enter_context(one.server.serve_in_thread()) for one in servers]
        for one in siblings:
            urls += ["--sibling", stack.enter_context(one.server.serve_in_thread())]
        return serve_eval(f"verify {MODEL} {line}", *words, *urls)


def _read(folder):
    return read_json(folder / "verification.json")


def test_a_replica_as_sibling_accuses_no_healthy_server(tmp_path):
    a, b = ModelServer(name="a"), ModelServer(name="b", numerics=0.01)
    ran = _run_siblings([a, b], [ModelServer(name="s")], f"-v -o {tmp_path}")
    told = " ".join((ran.stdout + ran.stderr).split())
    assert ran.returncode == 3, told
    assert _read(tmp_path)["sides"][0]["outcome"] == "UNDECIDED"
    assert "the sibling differs by at most 0 nat, as replicas do" in told
    assert "a sibling on other hardware or with another batch size or engine version" in told
    assert "raise --probes" not in told
    assert len(b.server.asked) < 30
    assert "limits: noise 0, floor 0 nat" in told


def test_a_tiny_floor_is_printed_with_its_size(tmp_path):
    """Compiled against eager on vLLM, with a replica as sibling, was ANOTHER at 6e-06 nat."""
    a, b = ModelServer(name="a"), ModelServer(name="b", numerics=2e-5)
    ran = _run_siblings([a, b], [ModelServer(name="s", numerics=2e-6)], f"-o {tmp_path}")
    assert ran.returncode == 3
    floor = _read(tmp_path)["floor"]
    assert 1e-6 < floor < 2e-5
    assert f"floor of {floor:.2g} nat" in " ".join(ran.stdout.split())
    assert "e-06" in ran.stdout
    assert "0.0000" not in ran.stdout


def test_one_outlier_of_the_sibling_does_not_hide_four_bit_weights(tmp_path):
    sibling = ModelServer(name="s", numerics=NUMERICS, foreign=0.04)
    ran = _run_siblings(
        [ModelServer(name="a"), ModelServer(name="b", numerics=0.3)], [sibling], f"-o {tmp_path}"
    )
    assert ran.returncode == 1, ran.stdout
    [side] = _read(tmp_path)["sides"]
    assert side["outcome"].startswith("ANOTHER")
    assert side["further"] > 0.7 * side["compared"]
    assert "probes are more than 2 times as far away as the sibling" in " ".join(ran.stdout.split())


def test_siblings_may_be_several(tmp_path):
    siblings = [ModelServer(name=name, numerics=NUMERICS) for name in "st"]
    a, b = ModelServer(name="a"), ModelServer(name="b", numerics=NUMERICS)
    file = tmp_path / "floor.json"
    made = _run_siblings([a], siblings, f"--register {file} --probes 60")
    assert made.returncode == 0, made.stderr
    assert "of 2 siblings" in " ".join(made.stdout.split())
    first = read_json(file)["probes"][0]
    assert first["sibling"]["tokens"] != first["siblings"][0]["tokens"]
    sound = _run_siblings([b], [], f"--reference {file} -o {tmp_path}/1")
    assert sound.returncode == 0, sound.stdout
    assert _read(tmp_path / "1")["siblings"] == 2
    bad = _run_siblings(
        [ModelServer(name="b", numerics=0.3)], [], f"--reference {file} -o {tmp_path}/2"
    )
    assert bad.returncode == 1, bad.stdout
    assert "as each sibling" in " ".join(bad.stdout.split())


def test_a_sound_outcome_beside_siblings_takes_the_budget(tmp_path):
    """Few probes miss a fault of few requests."""
    a, b = ModelServer(name="a"), ModelServer(name="b", numerics=NUMERICS)
    ran = _run_siblings(
        [a, b], [ModelServer(name="s", numerics=NUMERICS)], f"--probes 80 -o {tmp_path}"
    )
    assert ran.returncode == 0, ran.stdout
    assert _read(tmp_path)["sides"][0]["asked"] == 80


@pytest.mark.parametrize("alias", [False, True])
def test_a_server_is_not_its_own_sibling(alias):
    with ModelServer(name="a").server.serve_in_thread() as url:
        named = url.replace("127.0.0.1", "localhost") if alias else url
        ran = serve_eval(f"verify {url} h:2 --sibling {named} {MODEL}")
        registered = serve_eval(f"verify {url} --sibling {named} --register f {MODEL}")
        other = serve_eval(f"verify h:2 {url} --sibling {named} {MODEL}")
    for one in (ran, registered, other):
        assert one.returncode == 2
        assert "itself, which says nothing about other healthy servers" in " ".join(
            one.stderr.split()
        )
    serve_eval(f"verify h:1 h:2 --sibling h:3 --sibling h:3 {MODEL}", exits=2, tells="named twice")


def test_a_registered_floor_of_replicas_is_warned_of(tmp_path):
    for name, numerics, told in (
        ("1", 0.0, "the floor is 0: the sib"),
        ("2", 1e-6, "e-06 nat, as"),
    ):
        sibling = ModelServer(name="s", numerics=numerics)
        file = tmp_path / f"{name}.json"
        ran = _run_siblings([ModelServer(name="a")], [sibling], f"--register {file} --probes 60")
        said = " ".join(ran.stdout.split())
        assert ran.returncode == 0
        assert told in said
        assert "so it is unknown, and no server can be called another model" in said
        serve_eval(
            f"watch h:1 --verify-reference {file} -o {tmp_path}/w {MODEL}",
            exits=2,
            tells="is unknown",
        )


@pytest.mark.parametrize("sibling", [False, True])
def test_a_fault_of_single_requests_is_red_everywhere(sibling, tmp_path):
    """Without a floor the other probes are bit for bit alike; else no sibling has such answers."""
    numerics = NUMERICS if sibling else 0.0
    a, b = ModelServer(name="a"), ModelServer(name="b", numerics=numerics, foreign=0.07)
    line = tmp_path / "line.txt"
    siblings = [ModelServer(name="s", numerics=NUMERICS)] * sibling
    ran = _run_siblings([a, b], siblings, f"-o {tmp_path} --set seed=3 --notify-text", line)
    told = " ".join(ran.stdout.split())
    assert ran.returncode == 1, told
    found = _read(tmp_path)
    [side] = found["sides"]
    assert (side["outcome"], found["exit_code"]) == ("FAULT OF SINGLE REQUESTS", 1)
    assert "of them did so each time they were asked again: a fault of single requests" in told
    assert line.read_text().startswith("FAULT OF SINGLE REQUESTS")
    [case] = ElementTree.parse(tmp_path / "junit.xml").iter("testcase")
    assert case.find("failure") is not None
    assert "FAULT OF SINGLE REQUESTS" in (tmp_path / "summary.md").read_text()
    assert "FAULT OF SINGLE REQUESTS" in (tmp_path / "report.html").read_text()
    diagnosed = serve_eval(f"diagnose {tmp_path}", exits=0)
    first, why, *_ = diagnosed.stdout.splitlines()
    assert first.startswith(f" FAULT OF SINGLE REQUESTS   {side['name']}")
    assert why.startswith(" why      ")
    compared = f"serve-eval compare {found['reference']} {side['name']} --tasks word_problems"
    assert f" next     {compared}\n" in diagnosed.stdout
    if sibling:
        asked = len({one.prompt for one in b.server.requests})
        assert asked <= 202  # the siblings answer more probes, the server does not


def test_unlike_types_of_a_fleet_are_groups_and_not_accused(tmp_path):
    servers = [ModelServer(name=f"s{i}") for i in range(3)]
    servers += [ModelServer(name="other", numerics=0.01) for _ in range(2)]
    with ExitStack() as stack:
        urls = [stack.enter_context(one.server.serve_in_thread()) for one in servers]
        ran = serve_eval(f"verify -o {tmp_path} {MODEL} --fleet", *urls, exits=3)
    found = _read(tmp_path)
    assert found["groups"] == [urls[:3], urls[3:]]
    assert {one["outcome"] for one in found["sides"]} == {"IDENTICAL", "UNDECIDED"}
    told = " ".join(ran.stdout.split())
    assert f"groups 3 servers answer alike: {', '.join(urls[:3])}; 2 servers answer alike: " in told
    assert f"2 servers answer alike: {', '.join(urls[3:])}" in (
        tmp_path / "summary.md"
    ).read_text().replace("\\", "")
