"""Uses of conversations: showing, exporting, judging, repeating and hiding them."""

import json
import re
from contextlib import ExitStack

import pytest
import yaml

from serve_eval.report.page.columns import AnswerColumns
from serve_eval.report.samples.samples import SampleSource, read_samples
from serve_eval.storage import journal
from tests.cli.command import serve_eval
from tests.scripted_server import ScriptedServer, answer, fail, json_reply, models, tool_call

TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
SAID = {"Capital of Japan?": "Tokyo", "And of Italy?": "Milan", "Thank you.": "Gladly."}
TRIP = {
    "scorer": "words",
    "cases": [
        {
            "case": "japan",
            "input": {
                "tools": TOOLS,
                "results": {"weather": {"degrees": 31}},
                "turns": [
                    {"say": "Capital of Japan?", "expect": {"answer": "Tokyo"}},
                    {"say": "How warm is it?", "expect": {"answer": "31"}},
                    "Thank you.",
                ],
            },
        },
        {
            "case": "italy",
            "input": {
                "turns": [
                    {"say": "Capital of Japan?", "expect": {"answer": "Tokyo"}},
                    {"say": "And of Italy?", "expect": {"answer": "Rome"}},
                ]
            },
        },
    ],
}


def _speak(changed=None):
    """Return the replies of a model that calls a tool; `changed` has functions by turn."""

    def reply(request):
        last = request.body["messages"][-1]
        tokens = 20 + len(json.dumps(request.body.get("tools", "")))
        if last["content"] == "How warm is it?":
            return tool_call("weather", {"city": "Tokyo"})
        if last["role"] == "tool":
            return answer(f"It has {json.loads(last['content'])['degrees']}.", usage=(tokens, 5))
        if changed and last["content"] in changed:
            return changed[last["content"]]()
        return answer(SAID.get(last["content"], "2"), usage=(tokens, 2))

    return reply


class Trip:
    """A served model with a file of two conversations about capitals."""

    def __init__(self, folder, url, server):
        self.folder, self.url, self.server = folder, url, server

    def run(self, name, *more, cases=None, exits=3, **environ):
        cases = cases or self.folder / "trip.yaml"
        where = ("--base-url", self.url, "--no-reference", "-o", str(self.folder / name))
        serve_eval("run", "--cases", str(cases), *where, *more, exits=exits, **environ)
        return self.folder / name

    def show(self, run, case, *more):
        return serve_eval("show", str(run), list_ids(run)[case], *more, exits=0).stdout


def list_ids(run):
    [file] = (run / "samples").iterdir()
    names = [json.loads(line)["id"] for line in file.read_text().splitlines()]
    return {name.split("#")[0]: name for name in names}


@pytest.fixture
def trip(tmp_path):
    (tmp_path / "trip.yaml").write_text(yaml.safe_dump({"trip": TRIP}))

    def serve(reply, **routes):
        server = ScriptedServer(reply, routes={"/v1/models": models("m"), **routes})
        url = stack.enter_context(server.serve_in_thread())
        return Trip(tmp_path, url, server)

    with ExitStack() as stack:
        yield serve


def test_show_prints_the_results_of_tools_between_the_answers(trip):
    one = trip(_speak())
    shown = one.show(one.run("out"), "japan")
    assert ' answer 2 weather({"city": "Tokyo"}) → {"degrees": 31}\n' in shown
    assert "          It has 31.\n" in shown
    assert "not there literally" not in shown


def test_show_against_prints_both_sides_of_the_turn_at_which_they_part(trip):
    one, other = trip(_speak()), trip(_speak({"Capital of Japan?": lambda: answer("Kyoto")}))
    a, b = one.run("a"), other.run("b")
    shown = other.show(b, "italy", "--against", str(a))
    for line in (" A turn 1 Tokyo", " B turn 1 Kyoto", " parts at turn 1, word 0, character 0:"):
        assert line in shown, shown
    same = other.show(b, "japan", "--against", str(a))
    assert ' answer 2 weather({"city": "Tokyo"}) → {"degrees": 31}' in same


def test_without_prompts_the_answers_of_all_turns_are_still_shown(trip):
    one = trip(_speak())
    run = one.run("out", "--set", "no_prompts=true")
    kept = [path for path in run.rglob("*") if path.is_file() and "Capital" in path.read_text()]
    assert kept == []
    shown = one.show(run, "japan")
    assert "not kept in this run folder" in shown
    assert shown.index("answer 1 Tokyo") < shown.index("answer 2 weather") < shown.index("Gladly")


def test_a_page_has_the_answers_of_all_turns(trip):
    run = trip(_speak()).run("out")
    source = SampleSource(run=run, task="cases:trip")
    [found] = read_samples(source, [list_ids(run)["japan"]]).values()
    columns = AnswerColumns(["A"], None)
    columns.add(0, "A", found)
    said = json.dumps(columns.to_json(), ensure_ascii=False)
    assert "turn 1: Tokyo" in said
    assert "turn 3: Gladly." in said


def test_an_export_has_the_history_that_the_last_answer_followed(trip):
    one = trip(_speak())
    run = one.run("out")
    serve_eval("runs", "export", str(run), "-o", str(one.folder / "lm"), exits=0)
    [file] = (one.folder / "lm").rglob("samples_*.jsonl")
    found = map(json.loads, file.read_text().splitlines())
    rows = {row["doc"]["case"]: row for row in found}
    asked = json.loads(rows["japan"]["arguments"]["gen_args_0"]["arg_0"][0])
    sent = next(
        one.body["messages"]
        for one in one.server.asked
        if one.prompt == "Thank you." and len(one.body["messages"]) > 2
    )
    assert asked == sent
    assert rows["japan"]["resps"] == [["Gladly."]]


def test_scoring_again_sends_nothing_and_changes_nothing(trip):
    one = trip(_speak())
    run, asked = one.run("out"), len(one.server.asked)
    serve_eval("judge", str(run), "--rescore", exits=0, prints="none of 2 changed")
    assert len(one.server.asked) == asked


def test_each_repeat_holds_a_conversation_of_its_own(trip):
    said = iter(["Tokyo", "Kyoto", "Nara"] * 9)
    one = trip(_speak({"Capital of Japan?": lambda: answer(next(said))}))
    run = one.run("out", "--repeats", "3")
    [file] = (run / "samples").iterdir()
    records = [json.loads(line) for line in file.read_text().splitlines()]
    done = {r["id"]: r["response"]["exchanges"] for r in records if "response" in r}
    assert len(done) == 6
    first = {turns[0]["response"]["text"] for turns in done.values()}
    assert first == {"Tokyo", "Kyoto", "Nara"}
    sent = [r.body["messages"] for r in one.server.asked if r.prompt == "And of Italy?"]
    assert {turns[1]["content"] for turns in sent} <= first


def test_a_judge_sees_the_conversation_before_the_answer(trip):
    judged = []

    def reply(request):
        if "Verdict" in request.prompt:
            judged.append(request.prompt)
            return answer("Fine.\nVerdict: yes", usage=(9, 3))
        return _speak()(request)

    one = trip(reply)
    cases = one.folder / "judged.yaml"
    judge = {"judge": {"judges": [{"base_url": one.url, "model": "m"}]}}
    asked = {"case": "a", "input": {"turns": ["Capital of Japan?", "Thank you."]}}
    cases.write_text(
        yaml.safe_dump({"talk": {"scorer": judge, "cases": [{**asked, "expected": "polite"}]}})
    )
    run = one.run("out", cases=cases)
    [prompt] = judged
    assert "user: Capital of Japan?\nassistant: Tokyo\nuser: Thank you.\n" in prompt
    assert len(list((run / "judgements").rglob("*.jsonl"))) == 1
    one.run("out", cases=cases)
    assert len(judged) == 1


def test_judges_score_each_turn_by_the_history_before_it(trip):
    judged = []

    def reply(request):
        if "Verdict" in request.prompt:
            judged.append(request.prompt)
            good = "\nMilan\n" not in request.prompt
            return answer(f"Verdict: {'yes' if good else 'no'}", usage=(9, 3))
        return _speak({"Thank you.": lambda: answer("")})(request)

    one = trip(reply)
    judge = {"judge": {"judges": [{"base_url": one.url, "model": "m"}]}}
    turns = [
        {"say": "Capital of Japan?", "expect": "a city"},
        {"say": "And of Italy?", "expect": "Rome"},
        {"say": "Capital of Japan?", "expect": {"answer": "Tokyo"}, "scorer": "words"},
        {"say": "Thank you.", "expect": "polite"},
    ]
    cases = one.folder / "judged.yaml"
    talk = {"scorer": judge, "cases": [{"case": "a", "input": {"turns": turns}}]}
    cases.write_text(yaml.safe_dump({"talk": talk}))
    run = one.run("out", cases=cases)
    result = json.loads((run / "report.json").read_text())["tasks"][0]["result"]
    values = {f"turn {i}": value for i, value in enumerate([100.0, 0.0, 100.0, 0.0], 1)}
    assert (result["value"], result["secondary"]) == (50.0, values)
    assert result["modes"] == {"turn 2: low correctness": 1}
    assert len(judged) == 2  # nobody judges an empty answer, nor one that has another scorer
    first, last = sorted(judged, key=len)
    assert ("And of Italy?" in first, "Thank you." in last) == (False, False)
    assert "user: Capital of Japan?\nassistant: Tokyo\nuser: And of Italy?\n" in last
    one.run("out", cases=cases)
    assert len(judged) == 2


def test_a_held_out_conversation_leaves_no_text_of_its_own_behind(trip, monkeypatch):
    fernet = pytest.importorskip("cryptography.fernet", reason="the extra holdout is missing")
    key = fernet.Fernet.generate_key().decode()
    one = trip(_speak())
    serve_eval(
        "data", "cases", "encrypt", str(one.folder / "trip.yaml"), SERVE_EVAL_HOLDOUT_KEY=key
    )
    run = one.run("out", cases=one.folder / "trip.yaml.enc", SERVE_EVAL_HOLDOUT_KEY=key)
    texts = re.compile("Capital|How warm|Italy|Rome|degrees|Thank you")
    found = [path for path in run.rglob("*") if path.is_file() and texts.search(path.read_text())]
    assert found == []
    shown = one.show(run, "japan")
    assert "part of a hold-out set" in shown
    assert "Gladly" not in shown


def test_a_refusal_at_a_turn_is_named(trip):
    message = {"role": "assistant", "content": None, "refusal": "I cannot."}
    refusal = answer("", choice={"message": message})
    one = trip(_speak({"And of Italy?": lambda: refusal}))
    run = one.run("out")
    report = json.loads((run / "report.json").read_text())
    assert report["tasks"][0]["result"]["modes"] == {"turn 2: refused": 1}
    assert "refusal  I cannot." in one.show(run, "italy")


def test_every_attempt_is_listed_once_after_a_conversation_went_on(trip):
    down = [True]
    ends = {"And of Italy?": lambda: fail(500, "no") if down[0] else answer("Rome")}
    one = trip(_speak(ends))
    limits = ("--set", "limits.max_attempts=1")
    run = one.run("out", *limits)
    records = list(journal.read(run / "samples/cases-trip.jsonl"))
    tried = [len(record.failure.attempts) for record in records if record.failure is not None]
    assert tried == [2, 1]  # the second time, its first turn was there already
    down[0] = False
    one.run("out", *limits)
    shown = one.show(run, "italy", "-v")
    # The first turn, its end twice in the first session, and once in the second.
    assert shown.count("answered after") == 2
    assert shown.count("HTTP 500 after") == 2


def _write_items(text):
    shown = {"type": "output_text", "text": text, "annotations": []}
    thought = {"type": "reasoning_text", "text": "Hm."}
    return [
        {"type": "reasoning", "id": "rs_9", "summary": [], "content": [thought]},
        {"type": "message", "id": "m", "role": "assistant", "content": [shown]},
    ]


@pytest.mark.parametrize(("policy", "kept"), [("drop", []), ("keep", ["Hm.", "Hm."])])
def test_thoughts_go_back_as_reasoning_items_by_the_responses_route(trip, policy, kept):
    bodies = []

    def reply(request):
        bodies.append(request.body)
        output = _write_items("Tokyo Rome")
        usage = {"input_tokens": 9, "output_tokens": 5}
        body = {"id": "r", "object": "response", "status": "completed", "output": output}
        return json_reply({**body, "usage": usage})

    one = trip(_speak(), **{"/v1/responses": reply})
    cases = one.folder / "plain.yaml"
    cases.write_text(
        yaml.safe_dump({"t": [{"case": "a", "input": {"turns": ["a", "b", "c"]}, "expected": "c"}]})
    )
    thoughts = f"cases:t.history_thoughts={policy}"
    one.run("out", "--route", "responses", "--set", thoughts, cases=cases)
    items = bodies[-1]["input"]
    thought = [part["text"] for i in items if i["type"] == "reasoning" for part in i["content"]]
    assert thought == kept
    said = [one["type"] for one in items if one.get("role") != "user"]
    assert said == (["message"] * 2 if not kept else ["reasoning", "message"] * 2)


def _find_ids(one, place):
    """Return the ids of conversations by the number of messages of their requests."""
    found = {}
    for request in one.server.asked:
        if "How warm" in json.dumps(request.body) or request.prompt in SAID:
            told = request.headers.get("X-Talk") if place == "header" else request.body.get("own")
            found.setdefault(str(told), []).append(len(request.body["messages"]))
    return found


@pytest.mark.parametrize(
    ("place", "form"),
    [("header:X-Talk", r"[0-9a-f]{32}"), ("body:own.id", r"{'id': '[0-9a-f]{32}'}")],
)
def test_each_conversation_is_sent_with_an_id_of_its_own_that_lasts(trip, place, form):
    one = trip(_speak())
    asked = f"connection.conversation_id={place}"
    one.run("out", "--set", asked)
    first = _find_ids(one, place.split(":")[0])
    named = {name: counts for name, counts in first.items() if re.fullmatch(form, name)}
    assert sorted(map(sorted, named.values())) == [[1, 3], [1, 3, 5, 7]]
    one.run("other", "--set", asked)
    assert set(_find_ids(one, place.split(":")[0])) == set(first)


@pytest.mark.parametrize("place", ["x-id", "header:Authorization", "body:messages", "body:model.x"])
def test_a_place_that_a_request_needs_is_refused_for_the_id(trip, place):
    one = trip(_speak())
    with pytest.raises(AssertionError, match=r"neither header:X-... nor body:FIELD.FIELD"):
        one.run("out", "--set", f"connection.conversation_id={place}")


def test_a_dry_run_counts_the_requests_and_tokens_of_all_turns(trip):
    one = trip(_speak())
    where = ("--base-url", one.url, "--no-reference", "--set", "cases:trip.max_tokens=10")
    told = serve_eval("run", "--cases", str(one.folder / "trip.yaml"), *where, "--dry-run", exits=0)
    assert "task cases:trip: 5 requests\n" in told.stdout
    most = 3 * 9 + 2  # each turn with tools takes up to 8 rounds
    assert f"conversations: 2, of at most {most} requests in all" in told.stdout
    assert f"generated tokens: at most {10 * most} " in told.stdout
    # Answers are sent again with every later request.
    resent = 10 * (27 * 26 + 2 * 1) // 2
    words = (
        4 * len("Capital of Japan?") + 2 * len("How warm is it?") + len("Thank you.And of Italy?")
    )
    words += len("Capital of Japan?")
    assert f"prompt tokens: about {resent + round(words / 4):,} " in told.stdout
    assert len(one.server.asked) == 0


def test_a_run_of_conversations_stops_early_against_a_reference(trip):
    wrong = [0]

    def reply(request):
        number = int(re.search(r"\d+", request.prompt + " 0")[0])
        is_wrong = request.prompt.startswith("Then") and wrong[0]
        return answer(str(number + 7 if is_wrong else number), usage=(9, 1))

    one = trip(reply)
    cases = [
        {
            "case": f"n{i}",
            "input": {
                "turns": [{"say": f"Say {i}.", "expect": i}, {"say": f"Then {i}.", "expect": i}]
            },
        }
        for i in range(200)
    ]
    path = one.folder / "numbers.yaml"
    path.write_text(json.dumps({"numbers": {"scorer": "numeric", "cases": cases}}))
    asked = ("--cases", str(path), "--references-dir", str(one.folder / "refs"))
    taken = ("references", "take", one.url, "--runs", "2", "-t", "cases:numbers", *asked)
    serve_eval(*taken, "-o", str(one.folder / "taken"), exits=0, prints="REGISTERED")
    for exits, wrong[0] in ((0, 0), (1, 1)):
        before, run = len(one.server.asked), one.folder / f"out{exits}"
        where = ("--base-url", one.url, "--early-stop", "--concurrency", "8", "-o", str(run))
        told = serve_eval("run", *asked, *where, exits=exits, prints=" stopped  after ")
        samples = len(list_ids(run))
        assert samples < 200, told.stdout
        assert len(one.server.asked) - before < 2 * 200
