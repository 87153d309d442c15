"""Test that commands accuse no sound model that thinks, in every form of thoughts."""

import asyncio
import json
import logging

import pytest

from serve_eval.client.client import Client
from serve_eval.evaluation.engine.send import QUESTION, send_to_thinker
from serve_eval.launchers._standin.generation import ThoughtsForm
from serve_eval.schema import Endpoint, Limits, Message, Request, Response, SamplingParams
from tests.cli.command import serve_eval
from tests.json_files import read_json
from tests.scripted_server import ScriptedServer, answer, json_reply, stream
from tests.thinking.commands import (
    ENOUGH,
    FEW,
    FLAVOURS,
    LONG,
    CopyingModel,
    canaries_once,
    flavour_in_thread,
    invariants_once,
    lm_eval_once,
    load_once,
    probes_once,
    write_sums,
)
from tests.thinking.trials import UNJUDGED, smoke_once, watch_once

ANSWER, THOUGHTS = "The answer is 7.", "I think of 8. Question: or 9?"
FORMS = {
    "plain": {"content": ANSWER},
    "reasoning_content": {"content": ANSWER, "reasoning_content": THOUGHTS},
    "reasoning": {"content": ANSWER, "reasoning": THOUGHTS},
    "inline": {"content": f"<think>{THOUGHTS}</think>{ANSWER}"},
    "opened": {"content": f"{THOUGHTS}</think>{ANSWER}"},
}
CUT = {
    "reasoning_content": {"content": "", "reasoning_content": THOUGHTS},
    "reasoning": {"content": "", "reasoning": THOUGHTS},
    "inline": {"content": f"<think>{THOUGHTS}"},
    "opened": {"content": THOUGHTS},
}


class Thinker:
    """Answers in one form; cuts answers at max_tokens, and all that it writes at stop strings."""

    def __init__(self, form, *, cut=False):
        self.form, self.cut = form, cut
        self.server = ScriptedServer(self.reply)

    def reply(self, request):
        body = request.body
        easy = body["messages"][-1]["content"] == QUESTION
        message = FORMS[self.form]
        finish = "stop"
        if self.cut and not easy:
            message, finish = CUT[self.form], "length"
        elif body.get("stop") and self.form != "plain":
            message = {name: _before(text, body["stop"]) for name, text in CUT[self.form].items()}
        usage = {"prompt_tokens": 9, "completion_tokens": 20}
        if body.get("stream"):
            return stream([*_list_events(message, finish, usage), "[DONE]"])
        said = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
        return json_reply({"choices": [said], "usage": usage})


def _list_events(message, finish, usage):
    """Return a message as the events of a stream, thoughts first, in pieces that cut tags."""
    pieces = [
        {name: text[at : at + 5]}
        for name, text in sorted(message.items(), reverse=True)
        for at in range(0, len(text), 5)
    ]
    events = [
        {"choices": [{"index": 0, "delta": piece, "finish_reason": None}]} for piece in pieces
    ]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    return [*events, {"choices": [], "usage": usage}]


def _before(text, stops):
    return text.partition(stops[0])[0]


def _ask(thinker, *stop, times=1, streamed=False):
    request = Request(
        sample_id="a",
        prompt=(Message(role="user", content="How many?"),),
        sampling=SamplingParams(max_tokens=64, stop=stop),
    )

    async def main():
        async with (
            thinker.server.serve() as url,
            Client(
                Endpoint(base_url=url, model="m"), Limits(max_attempts=1, stream=streamed)
            ) as client,
        ):
            found = [await send_to_thinker(client, request) for _ in range(times)]
        assert all(isinstance(one, Response) for one in found)
        return [one for one in found if isinstance(one, Response)], client

    return asyncio.run(main())


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_answers_hold_no_thoughts(form, streamed):
    [said], _ = _ask(Thinker(form), streamed=streamed)
    assert said.text == ANSWER
    assert said.reasoning == (None if form == "plain" else THOUGHTS)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("form", CUT)
def test_an_answer_that_was_cut_within_its_thoughts_has_no_text(form, streamed):
    [said], _ = _ask(Thinker(form, cut=True), streamed=streamed)
    assert said.text == ""
    assert said.truncated
    assert THOUGHTS in (said.reasoning or "")


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_stop_string_within_thoughts_ends_no_answer(form, streamed):
    thinker = Thinker(form)
    said, client = _ask(thinker, "Question:", "is 7", times=3, streamed=streamed)
    assert {one.text for one in said} == {"The answer "}
    seen = client.thoughts.seen
    asked = [one.body for one in thinker.server.requests if "messages" in one.body]
    if form == "plain":
        assert (seen.stopped, seen.withheld) == (0, 0)
        assert all("stop" in body for body in asked if body["messages"][-1]["content"] != QUESTION)
        return
    assert {one.stop_reason for one in said} == {"is 7"}
    assert (seen.stopped, seen.withheld) == (1, 2)
    assert [("stop" in body) for body in asked if body["messages"][-1]["content"] != QUESTION] == [
        *(True, False, False, False)
    ]


CASES = """
sums:
  scorer: words
  sampling: {max_tokens: 4000, stop: ["Question:"]}
  prompt: What is ${a} + ${b}?
  cases:
    - {case: one, input: {a: 12, b: 30}, expected: {answer: "42"}}
    - {case: two, input: {a: 20, b: 7}, expected: {answer: "27"}}
    - {case: three, input: {a: 31, b: 44}, expected: {answer: "75"}}
"""
RIGHT = " 42 or 27 or 75 "
"""All expected answers, which thoughts name without meaning them."""
THINKING = ("field", "inline", "opened")


def _shaped(name, **changed):
    """Return the thoughts of a flavour, changed."""
    form = FLAVOURS[name][1].get("thoughts", ThoughtsForm())
    given = {field: getattr(form, field) for field in ("opened", "words", "holds", "unclosed")}
    return {"thoughts": ThoughtsForm(**{**given, **changed})}


def _run(folder, name, cases, **changed):
    """Return the report of the cases at a flavour whose thoughts are changed."""
    (folder / "cases.yaml").write_text(cases)

    with flavour_in_thread(name, **_shaped(name, **changed)) as url:
        words = f"--base-url {url} --model M --no-reference -o {folder}/out"
        ran = serve_eval(f"run --cases {folder}/cases.yaml {words}")
    assert ran.returncode == 3, ran.stderr  # no reference
    return read_json(folder / "out/report.json")


def _responses(folder):
    [file] = (folder / "out/samples").glob("*.jsonl")
    return [json.loads(line)["response"] for line in file.read_text().splitlines()]


@pytest.mark.parametrize("name", ["never", *THINKING])
def test_stop_strings_apply_behind_the_thoughts(name, tmp_path):
    report = _run(tmp_path, name, CASES, holds=" Question: no, that is another one. ")
    result = report["tasks"][0]["result"]
    assert (result["value"], result["outcomes"]) == (100.0, {"correct": 3})
    assert all("Question:" not in one["text"] for one in _responses(tmp_path))
    told = [line for line in report["warnings"] if "within the model's thoughts" in line]
    assert bool(told) is (name != "never")
    stop = report["tasks"][0]["fingerprint"]["stop"]
    assert stop == '["Question:"]'


@pytest.mark.parametrize("name", THINKING)
def test_an_answer_that_is_cut_in_its_thoughts_is_no_answer(name, tmp_path):
    cases = CASES.replace("4000", "40").replace(', stop: ["Question:"]', "")
    report = _run(tmp_path, name, cases, holds=RIGHT, words=LONG)
    result = report["tasks"][0]["result"]
    assert (result["value"], result["outcomes"]) == (0.0, {"reasoning_only": 3})
    assert all(one["text"] == "" and one["reasoning"] for one in _responses(tmp_path))


@pytest.mark.parametrize("name", THINKING)
def test_scorers_see_no_thoughts(name, tmp_path):
    """The thoughts name the expected answers; the answer is another."""
    cases = CASES.replace(', stop: ["Question:"]', "").replace("What is", "Guess")
    report = _run(tmp_path, name, cases, holds=RIGHT)
    assert report["tasks"][0]["result"]["outcomes"] == {"wrong": 3}
    assert all(RIGHT in one["reasoning"] for one in _responses(tmp_path))


def _attribute(folder, forms, max_tokens, **faults):
    """Return the exit code of attribute for a server of each form; the faults are the second's."""
    cases = write_sums(folder, max_tokens)
    with flavour_in_thread(forms[0]) as one, flavour_in_thread(forms[1], **faults) as other:
        words = f"--model M --no-reference -o {folder}/run"
        serve_eval(f"run --base-url {one} --cases {cases} {words}")
        workers = f"--worker {one} --worker {other}"
        done = serve_eval(f"check workers {folder}/run --samples 20 {workers}")
    return done.returncode


def _warnings(folder):
    return "; ".join(read_json(folder / "run/attribution.json")["warnings"])


@pytest.mark.parametrize("forms", [("field_long", "opened_long"), ("inline", "inline")])
def test_attribute_judges_no_worker_whose_answers_ended_within_thoughts(forms, tmp_path):
    """Two replicas, of which one has a reasoning parser, differ in the form of thoughts alone."""
    assert _attribute(tmp_path, forms, FEW) == 5
    assert "40 of 40 answers were cut within the model's thoughts" in _warnings(tmp_path)


def test_attribute_finds_a_damaged_worker_that_thinks(tmp_path):
    assert _attribute(tmp_path, ("field", "opened"), ENOUGH, corrupt_after=0) == 1


def test_attribute_calls_workers_with_whole_thoughts_sound(tmp_path):
    assert _attribute(tmp_path, ("field", "opened"), ENOUGH) == 0
    assert _warnings(tmp_path) == ""


@pytest.mark.parametrize("name", ["field_long", "opened_long"])
def test_probes_leave_room_for_thoughts(name):
    """Abilities that a short answer hides are found, and their lack is too."""
    assert probes_once(name, False, 0) == ""
    assert "the schema was ignored" in (told := probes_once(name, True, 0))
    assert "tool calls" in told


@pytest.mark.parametrize("trial", [invariants_once, load_once])
def test_answers_that_ended_within_thoughts_show_nothing(trial):
    """An odd number asks with few tokens."""
    assert trial("opened", False, 1) == UNJUDGED
    assert trial("opened", False, 0) == ""


def test_lm_evals_model_warns_of_answers_that_ended_within_thoughts(
    caplog,
):
    pytest.importorskip("lm_eval")
    with caplog.at_level(logging.WARNING, "lm_eval"):
        assert lm_eval_once("opened", False, 1) == UNJUDGED
    assert "8 of 8 answers were cut within the model's thoughts" in caplog.text


@pytest.mark.parametrize("name", ["field_long", "hybrid_opened"])
def test_chats_of_canaries_repeat_their_codes_behind_thoughts(name, tmp_path):
    out = tmp_path / "out"
    with flavour_in_thread(name, CopyingModel()) as url:
        words = f"--model M --canaries --limit 14 --concurrency 2 -o {out}"
        serve_eval(f"check invariants {url} {words}", exits=0)
    found = read_json(out / "canaries.json")
    assert (found["answers"], found["own"]) == (14, 14)


def test_a_leak_of_a_thinker_is_found():
    assert "received the code of" in canaries_once("opened_long", True, 0)


@pytest.mark.parametrize(("policy", "sent"), [("neutral", True), ("keep", False)])
def test_lm_evals_model_sends_neutral_values_that_are_heeded(policy, sent):
    pytest.importorskip("lm_eval")
    from lm_eval.api.instance import Instance  # slow to import

    from serve_eval.lm_eval_model.model import ServeEvalLM

    server = ScriptedServer(_answer_by_penalty, probed=True)
    with server.serve_in_thread() as url:
        model = ServeEvalLM(base_url=url, model="m", server_defaults=policy)
        given = {"until": ["Question:"], "max_gen_toks": 77}
        asked = Instance(request_type="generate_until", doc={}, arguments=("2+3=", given), idx=0)
        model.generate_until([asked])
    [body] = [body for body in server.bodies if body["max_tokens"] == 77]
    assert ("repetition_penalty" in body) is sent


def _answer_by_penalty(request):
    return answer(f"text {request.body.get('repetition_penalty', 1)}")


@pytest.mark.parametrize("name", ["opened_long", "hybrid_field"])
def test_smoke_accuses_a_damaged_thinker_alone(name):
    assert smoke_once(name, False, 0) == ""
    assert "questions" in smoke_once(name, True, 0)


@pytest.mark.parametrize("name", ["opened_long", "hybrid_opened"])
def test_a_watch_accuses_a_damaged_thinker_alone(name):
    assert watch_once(name, False, 1) == ""
    assert watch_once(name, True, 1) != ""


def test_verify_asks_a_thinker_without_thoughts_where_it_continues_no_message(
    tmp_path,
):
    file = tmp_path / "reference.json"
    words = f"--model M --floor 0.08 --probes 40 -o {tmp_path}/out"
    with flavour_in_thread("hybrid_field") as url:
        serve_eval(
            f"verify {url} --set protocol.apply_chat_template=true --register {file} {words}",
            exits=0,
        )
    assert '"route":"plain"' in file.read_text()


@pytest.mark.parametrize("name", ["field", "opened", "hybrid_field"])
def test_smoke_names_thoughts_that_loop(name):
    form = FLAVOURS[name][1]["thoughts"]
    looping = ThoughtsForm(opened=form.opened, words=20, repeats=" Wait, let me think again.")
    told = smoke_once(name, False, 0, thoughts=looping)
    assert "reasoning: the thoughts loop: 'Wait, let me think again.' comes again" in told
    assert "questions" not in told


def test_smoke_accuses_no_model_whose_thoughts_are_longer_than_its_limit():
    """They repeat nothing, and whether they would end is not known."""
    assert smoke_once("opened", False, 0, thoughts=ThoughtsForm(opened=True, words=9000)) == ""
