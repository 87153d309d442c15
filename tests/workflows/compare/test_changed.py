"""Recorded requests: B is judged by A's own differences, by one p for all measures."""

from __future__ import annotations

import json
import random

import pytest

from serve_eval.stats.multiplicity import acceptance_region
from serve_eval.workflows.compare import changed
from serve_eval.workflows.compare.changed import ALPHA, GivenAnswer
from tests.cli.command import serve_eval
from tests.json_files import read_json
from tests.scripted_server import ScriptedServer, answer, fail, models

PROMPTS = [f"p{number}" for number in range(60)]


def give(text="a b c", length=3, ending="stop", calls="", score=1.0):
    return GivenAnswer(text, hash(text), length, ending, calls, score)


def draw(rng, spread=0.5):
    """Return an answer to each prompt, of which some differ by chance, as at temperature .8."""
    found = {}
    for prompt in PROMPTS:
        words = ["a", "b", "c"]
        if rng.random() < spread:
            words[rng.randrange(3)] = rng.choice("xyz")
        cut = rng.random() < spread / 4
        found[prompt] = give(" ".join(words), 3 + cut, "length" if cut else "stop")
    return found


def judge(own, others, groups=None):
    return changed._test("A", own, others, groups or {}, ALPHA)


SAME = {prompt: give() for prompt in PROMPTS}


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("text", give("a b d")),
        ("length", give(length=9)),
        ("ending", give(ending="length")),
        ("calls", give(calls='add({"a": 1})')),
        ("score", give(score=0.0)),
    ],
)
def test_a_change_of_each_kind_in_a_sixth_of_the_answers_is_found_and_named(name, other):
    b = {prompt: other if number % 6 == 0 else give() for number, prompt in enumerate(PROMPTS)}
    found = judge([SAME, SAME], [b, b])
    assert found.more
    assert [(one.name, one.own, one.other) for one in found.measures] == [(name, 0, 40)]
    assert not judge([SAME, SAME], [SAME, SAME]).more


def test_sound_pairs_that_draw_their_answers_are_accused_as_rarely_as_promised():
    accused = 0
    for seed in range(20):
        rng = random.Random(seed)
        runs = [draw(rng) for _ in range(4)]
        accused += judge(runs[:2], runs[2:]).more
    assert accused <= acceptance_region(20, ALPHA)[1]


def test_a_fault_in_noisy_answers_is_found():
    rng = random.Random(1)
    a, b = [draw(rng), draw(rng)], [draw(rng), draw(rng)]
    for run in b:
        run |= {prompt: give("q r s") for prompt in PROMPTS[::2]}
    assert judge(a, b).more


def test_one_request_a_hundred_times_is_one_unit():
    b = {**SAME, **{prompt: give("a b d") for prompt in PROMPTS[::5]}}
    groups = dict.fromkeys(PROMPTS[::5], "request 1")
    assert judge([SAME, SAME], [b, b]).more
    found = judge([SAME, SAME], [b, b], groups)
    assert (found.units, found.more) == (49, False)


def draw_in_batches(rng):
    """Return an answer to each prompt, equal for all twelve of a batch."""
    states = [rng.choice("ab") for _ in range(5)]
    return {prompt: give(states[place // 12]) for place, prompt in enumerate(PROMPTS)}


def test_batches_whose_answers_flip_together_accuse_no_sound_pair():
    accused = 0
    for seed in range(30):
        rng = random.Random(seed)
        runs = [draw_in_batches(rng) for _ in range(4)]
        accused += judge(runs[:2], runs[2:]).more
    assert accused <= acceptance_region(30, ALPHA)[1]


def test_the_order_of_keys_of_a_call_is_no_difference():
    class Call:
        name, arguments = "add", '{"b": 2, "a":1}'

    class Other:
        name, arguments = "add", '{"a": 1, "b": 2}'

    assert changed._write_calls([Call]) == changed._write_calls([Other])


def compare(folder, reply_a, reply_b, exits, count=60, **more):
    """Compare two servers by requests, half of which ask for JSON."""
    rows = [
        {"messages": [{"role": "user", "content": f"Say {n}."}], "max_tokens": 9, "temperature": 0}
        for n in range(count)
    ]
    for row in rows[: count // 2]:
        row["response_format"] = {"type": "json_object"}
    log, out = folder / "log.jsonl", folder / "out"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    listed = {"/v1/models": models("m")}
    a, b = (ScriptedServer(reply, routes=listed) for reply in (reply_a, reply_b))
    with a.serve_in_thread() as url_a, b.serve_in_thread() as url_b:
        serve_eval(
            f"compare {url_a} {url_b} --requests {log} --set server_defaults=keep -o {out}",
            exits=exits,
            **more,
        )
    return read_json(out / "comparison.json")


def say(asked):
    return answer('{"a": 1}' if "response_format" in asked.body else "Yes", usage=(5, 3))


def test_broken_json_is_a_fail_with_its_measures(tmp_path):
    def broken(asked):
        return answer('{"a": ', usage=(5, 3)) if "response_format" in asked.body else say(asked)

    found = compare(tmp_path, say, broken, 1, prints="FAIL   requests")
    [task] = found["tasks"]
    assert task["verdict"]["rule"] == "answers"
    assert {one["name"] for one in task["changed"]["measures"]} == {"text", "score"}
    assert (task["a"]["value"], task["b"]["value"]) == (100.0, 50.0)


def test_a_difference_in_few_requests_may_be_that_of_two_batches(tmp_path):
    def other(asked):
        return answer("No", usage=(5, 3))

    compare(tmp_path, say, other, 3, count=40, prints="a FAIL needs at least 48 requests")


def test_a_sound_pair_passes(tmp_path):
    found = compare(tmp_path, say, say, 0, prints="PASS   requests")
    assert found["tasks"][0]["changed"]["p"] == 1.0


def test_requests_that_one_side_refuses_leave_the_verdict_open(tmp_path):
    def refuse(asked):
        return fail(400, "no JSON mode") if asked.prompt in ("Say 3.", "Say 4.") else say(asked)

    found = compare(tmp_path, say, refuse, 3, prints="too_many_missing: 2 of 60")
    assert found["tasks"][0]["b"]["failed"] == 2
