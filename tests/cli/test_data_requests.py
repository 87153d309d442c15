"""`serve-eval data requests` says what a log holds, and which of its fields a server refuses."""

from __future__ import annotations

import json

from tests.cli.command import serve_eval
from tests.scripted_server import ScriptedServer, answer, fail, models

TURNS = [{"role": "user", "content": "Hi ann@example.org"}]
ROWS = [
    {"messages": TURNS, "max_tokens": 9, "top_k": 5, "user": "ann"},
    {"messages": TURNS, "max_tokens": 9, "top_k": 5, "user": "ann"},
    {"timestamp": 5, "body": {"prompt": "A", "max_tokens": 3, "seed": 1}, "response": "B"},
    {"timestamp": 7, "body": {"prompt": "B", "max_tokens": 3, "stream": True}},
]


def write_log(folder, *rows):
    file = folder / "log.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_what_a_log_holds_is_said_and_nothing_is_sent(tmp_path):
    told = serve_eval(f"data requests {write_log(tmp_path, *ROWS)}", exits=0).stdout
    for line in (
        "4 requests; nothing was sent",
        "routes: chat/completions 2, completions 2",
        "streamed: 1 of 4",
        "duplicates: 1 have the body of an earlier one",
        "answers: 1 of 4 have a recorded answer",
        "arrivals: 2 of 4 have a time: 2.0 s in all",
        "sampled: 4 of 4 not at temperature 0",
    ):
        assert line in told
    assert "ann" not in told


def test_a_refused_field_and_a_broken_line_are_named_and_end_with_1(tmp_path):
    def reply(asked):
        return fail(400, "top_k: extra") if "top_k" in asked.body else answer("Yes")

    server = ScriptedServer(reply, routes={"/v1/models": models("m")})
    log = write_log(tmp_path, *ROWS, {"model": "m"})
    with server.serve_in_thread() as url:
        done = serve_eval(f"data requests {log} --base-url {url} --json", exits=1)
    found = json.loads(done.stdout)["result"]
    assert [(one["field"], one["requests"]) for one in found["refused"]] == [("top_k", 2)]
    assert [one["line"] for one in found["broken"]] == [5]
    assert all(asked.body["max_tokens"] == 1 for asked in server.asked)
    assert all(asked.body.get("user", "***") == "***" for asked in server.asked)
    assert len(server.asked) == 6
