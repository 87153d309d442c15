"""Attack verdicts with a server that loses its wrong answers, through the commands that users type.

The server answers half of the questions right. Its wrong answers meet an error at first; a retry
gets a right answer. Without the losses it fails, with them it would pass.
"""

import asyncio
import json
import threading
from collections import Counter
from contextlib import contextmanager

import pytest

from serve_eval.storage.file_names import PAGE_FILE
from tests.cli.command import in_a_process, serve_eval
from tests.client.faulty_server import FaultyServer, http
from tests.client.faulty_server import answer as as_answer
from tests.json_files import read_json
from tests.scripted_server import (
    ScriptedServer,
    answer,
    fail,
    json_reply,
    models,
    raw,
)

QUESTIONS, RIGHT = 100, 50
LOST = {
    "500": fail(500),
    "503": fail(503),
    "504": fail(504),
    "HTML": raw(b"<html>oh</html>", content_type="text/html"),
    "no choices": json_reply({"choices": []}),
    "cancelled": answer("7", finish="cancelled"),
    "error in a 200": json_reply({"error": {"message": "engine"}}),
}
CASES = "double:\n  scorer: numeric\n  cases:\n" + "".join(
    f"    - {{case: q{i}, input: {{prompt: 'Double item {i}.'}}, expected: {2 * i}}}\n"
    for i in range(1, QUESTIONS + 1)
)


class LossyServer:
    """Answers item I right if I is at most `right`; `lossy` items get `fault` the first time.

    Later attempts at a lossy item are right.
    """

    def __init__(self, right, lossy, fault, times=1):
        self._right, self._lossy, self._fault, self._times = right, lossy, fault, times
        self._asked = Counter()
        self._lock = threading.Lock()

    def __call__(self, request):
        text = json.dumps(request.body)
        if "Double item " not in text:
            return answer("1", usage=(5, 1))
        item = int(text.partition("Double item ")[2].partition(".")[0])
        with self._lock:
            self._asked[item] += 1
            number = self._asked[item]
        if item in self._lossy and number <= self._times:
            return self._fault
        right = item <= self._right or item in self._lossy
        return answer(str(2 * item if right else 2 * item + 1), usage=(5, 1))


@contextmanager
def serve(
    right=RIGHT,
    lossy=range(RIGHT + 1, RIGHT + 21),
    fault=None,
    times=1,
):
    script = LossyServer(right, lossy, fault or fail(500), times)
    server = ScriptedServer(script, routes={"/v1/models": lambda request: models("m")})
    with server.serve_in_thread() as url:
        yield url


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with the cases and a reference of 60, whose threshold is 48.4."""
    monkeypatch.setattr("serve_eval.client.attempts.outcome.BASE_S", 0.001)
    (tmp_path / "cases.yaml").write_text(CASES)
    (tmp_path / "refs").mkdir()
    (tmp_path / "refs/cases-double.yaml").write_text("m:\n- accuracy: 68.0\n")
    return tmp_path


def flags(folder, url, *more):
    cases = ["--cases", str(folder / "cases.yaml"), "--model", "m", "--base-url", url]
    return [*cases, "--references-dir", str(folder / "refs"), "--concurrency", "8", *more]


def report_of(out):
    return read_json(out / "report.json")["tasks"][0]


def test_without_losses_the_server_fails(folder):
    with serve(lossy=range(0)) as url:
        serve_eval(
            f"run -o {folder}/out",
            *flags(folder, url),
            exits=1,
            prints="100 samples: 0 failed, 0 repaired, ",
        )


@pytest.mark.parametrize("name", LOST)
def test_what_errors_hide_makes_a_pass_undecided_and_every_face_says_so(folder, name):
    out = folder / "out"
    summary = folder / "github.md"
    with serve(fault=LOST[name]) as url:
        done = serve_eval(
            f"run -o {out}",
            *flags(folder, url),
            GITHUB_ACTIONS="true",
            GITHUB_STEP_SUMMARY=str(summary),
            exits=3,
        )
    task = report_of(out)
    assert task["verdict"]["outcome"] == "INCONCLUSIVE"
    assert (task["result"]["repaired"], task["result"]["failed"]) == (20, 0)
    assert task["result"]["doubted_bounds"] == [50.0, 70.0]
    assert "100 samples: 0 failed, 20 repaired, " in done.stdout
    told = "the first answers to 20 of 100 samples are unknown"
    why = [line for line in done.stdout.splitlines() if line.startswith(" why")]
    assert told in why[0]
    assert "if the lost answers were wrong, the value is 50.00" in why[0]
    assert "--set verdict.repaired=trust" in why[0]
    for face in ("summary.md", "junit.xml", PAGE_FILE):
        assert "20 repaired" in (out / face).read_text().replace("\\", ""), face
    assert "20 repaired" in summary.read_text()
    annotations = [line for line in (done.stdout + done.stderr).splitlines() if "::" in line]
    assert any("20 repaired" in line for line in annotations)
    diagnosis = serve_eval(f"diagnose {out} -v")
    assert "20 of 100 samples lost an answer before the one that counts" in diagnosis.stdout


@pytest.mark.parametrize(
    ("fault", "more"),
    [
        (fail(429), []),
        (fail(503, headers={"Retry-After": "0"}), []),
        (fail(500), ["--set", "verdict.repaired=trust"]),
        (fail(500), ["--set", "verdict.max_repaired=0.2"]),
    ],
)
def test_refusals_and_trust_leave_the_pass(folder, fault, more):
    with serve(fault=fault) as url:
        done = serve_eval(f"run -o {folder}/out", *flags(folder, url, *more), exits=0)
    trusted = "repaired=trust" in " ".join(more)
    assert ("repaired_trusted: the first answers to 20 of 100" in done.stdout) == trusted


def test_a_few_transient_errors_stay_a_pass_unless_the_plan_trusts_none(folder):
    """Two of 100 samples move the value by less than a quarter of the margin of 11.6 points."""
    few = {"right": 58, "lossy": range(59, 61)}
    for more, code in (([], 0), (["--set", "verdict.max_repaired=0"], 3)):
        (folder / "refs/cases-double.yaml").write_text("m:\n- accuracy: 70.9\n")
        with serve(**few) as url:
            out = folder / f"out{code}"
            serve_eval(f"run -o {out}", *flags(folder, url, *more), exits=code, prints="2 repaired")


def test_a_fail_that_the_best_case_passes_is_undecided_and_one_that_it_fails_stays(
    folder,
):
    """The lossy items stay wrong here: their first answers may have been right."""

    def wrong(request):
        return answer("0", usage=(5, 1))

    for right, code in ((50, 3), (20, 1)):
        lossy = LossyServer(right, range(71, 91), fail(500))

        def script(request, lossy=lossy):
            reply = lossy(request)
            item = json.dumps(request.body).partition("Double item ")[2].partition(".")[0]
            late = item and int(item) in range(71, 91) and reply is not lossy._fault
            return wrong(request) if late else reply

        server = ScriptedServer(script, routes={"/v1/models": lambda request: models("m")})
        with server.serve_in_thread() as url:
            out = folder / f"out{code}"
            done = serve_eval(f"run -o {out}", *flags(folder, url), exits=code)
        assert ("if the lost answers were right, the value is 70.00" in done.stdout) == (code == 3)


def test_a_sample_stays_repaired_when_a_later_session_gets_its_answer(folder):
    out = folder / "out"
    once = ["--set", "limits.max_attempts=1", "--set", "limits.max_error_rate=1"]
    with serve(times=2) as url:
        serve_eval(f"run -o {out}", *flags(folder, url, *once), exits=3)
        assert report_of(out)["result"]["failed"] == 20
        serve_eval(f"run -o {out}", *flags(folder, url, *once), exits=3)
    assert report_of(out)["result"]["repaired"] == 20
    serve_eval(f"judge {out}", exits=3, prints="20 repaired")


def test_an_early_stop_decides_nothing_that_the_lost_answers_could_change(folder):
    (folder / "refs/cases-double.yaml").write_text("m:\n- accuracy: 60.0\n")
    with serve(right=40, lossy=range(41, 96)) as url:
        serve_eval(f"run -o {folder}/out", *flags(folder, url, "--early-stop"), exits=3)
    assert report_of(folder / "out")["verdict"]["early"]["decision"] is None


def test_a_suite_is_undecided_too_and_names_the_repaired_samples(folder):
    with serve() as url:
        (folder / "suite.yaml").write_text(
            f"plans:\n- name: one\n  model: m\n  base_url: {url}\n  cases: [{folder}/cases.yaml]\n"
            f"  references_dir: {folder}/refs\n"
        )
        serve_eval(
            f"run {folder}/suite.yaml -o {folder}/out",
            exits=3,
            prints=" repaired one/cases:double: 20 samples\n",
        )
    assert 'name="repaired" value="20"' in (folder / "out/junit.xml").read_text()


def test_a_reference_from_repaired_answers_carries_a_warning(folder):
    with serve() as url:
        serve_eval(f"run -o {folder}/r", *flags(folder, url, "--no-reference"))
        serve_eval(
            f"references register {folder}/r --references-dir {folder}/own",
            exits=0,
            prints="the first answers to 20 of 100 samples are unknown",
        )


def test_the_paired_rule_is_undecided_and_warns_that_the_lost_answers_are_no_random_part(
    folder,
):
    """The reference has the first 80 items right; half of what the server loses is beyond them."""
    own = folder / "own"
    with serve(right=80, lossy=range(0)) as url:
        serve_eval(f"run -o {folder}/r", *flags(folder, url, "--no-reference"))
    serve_eval(f"references register {folder}/r --references-dir {own}", exits=0)
    with serve(right=60, lossy=range(66, 96)) as url:
        given = flags(folder, url, "--references-dir", str(own), "--verdict", "paired")
        serve_eval(f"run -o {folder}/out", *given, exits=3)
    verdict = report_of(folder / "out")["verdict"]
    assert verdict["other"] == {"rule": "classic", "outcome": "INCONCLUSIVE"}
    assert verdict["warnings"][0].startswith("repaired_depend: ")


@pytest.mark.parametrize("rule", ["paired", "noninferiority", "tokens"])
def test_a_comparison_is_undecided_when_either_side_lost_answers(folder, rule):
    cases = f"--cases {folder}/cases.yaml --model m --self 0"
    more = ["--verdict", rule, *(["--margin", "10"] if rule == "noninferiority" else [])]
    lossy = range(61, 101)
    for a, b in ((range(0), lossy), (lossy, range(0))):
        out = folder / f"out{a.start}"
        with serve(right=60 if a else 100, lossy=a) as one, serve(right=60, lossy=b) as other:
            done = serve_eval(
                f"compare {one} {other} -o {out} {cases}",
                *more,
                exits=3,
                prints="samples are unknown",
            )
        assert ("A: 100 samples: 0 failed, 40 repaired" in done.stdout) == bool(a)


def test_what_was_in_flight_when_the_server_ended_the_run_is_counted_apart(folder):
    out, ended, over, waiting = folder / "out", False, asyncio.Event(), set[int]()

    async def answer_or_end(turn):
        nonlocal ended
        if turn.request.method == "GET":
            await turn.write(http(b'{"object": "list", "data": [{"id": "m"}]}'))
            return
        text = turn.request.question
        item = int(text.partition("item ")[2].partition(".")[0]) if "item " in text else 0
        waiting.add(item)
        if not ended and len([one for one in waiting if one > 40]) == 8:
            ended = True
            over.set()
            server.stop_listening()
            server.shut_idle_connections()
            return
        if item > 40 and not ended:
            await over.wait()  # in flight until the server ends
            return
        await turn.write(http(as_answer(turn.request, str(2 * item))))

    server = FaultyServer(lambda request: answer_or_end)

    async def main():
        async with server:
            more = [
                "--set",
                "limits.order=natural",
                "--set",
                "limits.outage_timeout_s=0",
                "--set",
                "limits.stall_timeout_s=60",
            ]
            given = ["run", *flags(folder, server.base_url, *more), "-o", str(out)]
            first = await asyncio.to_thread(in_a_process, *given)
            await server.listen()
            again = await asyncio.to_thread(in_a_process, *given)
            return [first, again]

    first, again = asyncio.run(main())
    assert first.returncode == 4, first.stderr
    assert again.returncode == 0, again.stderr
    result = report_of(out)["result"]
    assert result["repaired"] == 0
    assert 1 <= result["restarted"] <= 8
    lost = result["restarted"]
    said = f"{lost} repaired ({lost} of them lost with their server)"
    assert said in serve_eval(f"judge {out}").stdout


def test_an_outage_is_told_with_the_answers_that_it_cost(folder):
    out, asked, over = folder / "out", 0, asyncio.Event()

    async def answer_until_it_ends(turn):
        nonlocal asked
        if turn.request.method == "GET":
            await turn.write(http(b'{"object": "list", "data": [{"id": "m"}]}'))
            return
        text = turn.request.question
        item = int(text.partition("item ")[2].partition(".")[0]) if "item " in text else 0
        asked += item > 0
        if asked >= 60 and not over.is_set():
            over.set()
            server.stop_listening()
            server.shut_idle_connections()
            turn.writer.transport.abort()
            return
        await turn.write(http(as_answer(turn.request, str(2 * item))))

    server = FaultyServer(lambda request: answer_until_it_ends)

    async def main():
        async with server:
            given = ["run", *flags(folder, server.base_url, "--set", "limits.outage_timeout_s=60")]
            ended = asyncio.create_task(asyncio.to_thread(in_a_process, *given, "-o", str(out)))
            await over.wait()
            await asyncio.sleep(1.0)
            await server.listen()
            return await ended

    done = asyncio.run(main())
    assert done.returncode == 0, done.stderr
    report = read_json(out / "report.json")
    [line] = [one for one in report["warnings"] if "away" in one]
    assert line.startswith("the endpoint was away once, for ")
    assert "the endpoint was away once, for " in " ".join(done.stdout.split())
    assert line in (out / "summary.md").read_text()
    assert "the endpoint was away once" in (out / PAGE_FILE).read_text()
    [load] = report["loads"]
    assert load["outages"] == 1
    assert load["away_s"] > 0


def test_a_finish_reason_of_no_known_server_is_unknown_until_the_plan_lists_it(
    folder,
):
    odd = answer("7", finish="odd_end", usage=(5, 1))
    for more, code in (([], 3), (["--set", "limits.known_finish_reasons=odd_end"], 1)):
        out = folder / f"out{code}"
        with serve(fault=odd) as url:
            done = serve_eval(f"run -o {out}", *flags(folder, url, *more), exits=code)
        assert report_of(out)["result"]["unlisted"] == (20 if code == 3 else 0)
        assert ("20 ended with an unknown finish_reason" in done.stdout) == (code == 3)
