"""Codes of other requests in a reply are found, wherever they are, and nothing else is."""

import asyncio
import io
import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from serve_eval.errors import EndpointError, RunFolderError
from serve_eval.report.document import print_document
from serve_eval.schema import (
    AnsweringServers,
    Attempt,
    CanaryRecord,
    Failure,
    FailureKind,
    Limits,
    Plan,
    Response,
    Spec,
    ToolCall,
)
from serve_eval.storage.story_results import read_canary_log
from serve_eval.verdicts.exit_code import FAIL, NOTHING_SCORED, PASS
from serve_eval.workflows.invariants.canaries import check_canaries
from serve_eval.workflows.invariants.canary_codes import (
    ALPHABET,
    KINDS,
    LENGTH,
    CanaryPlan,
    make_canaries,
    make_code,
    search_codes,
)
from serve_eval.workflows.invariants.canary_document import make_document
from tests.cli.command import serve_eval
from tests.json_files import read_json
from tests.scripted_server import ScriptedServer, answer, external, fail, stream
from tests.workflows.invariants.faulty_servers import Exchange, copier

N = 84


def plan_of(**more):
    made = CanaryPlan(
        seed="s",
        requests=N,
        in_flight=8,
        model="m",
        endpoint="e",
        base_url="u",
        chat=True,
        texts=True,
        tools=True,
    )
    return msgspec.structs.replace(made, **more)


def check(server, out, between=None):
    """Run a pass. With `between`, call it after the pass and give it as many requests again."""

    async def run():
        async with server.serve() as url:
            plan = Plan(
                model="m",
                launcher=external(url),
                tasks=(Spec(name="word_problems"),),
                limit=N,
                limits=Limits(concurrency=8, max_attempts=2),
            )
            found = await check_canaries(plan, out, seed="s", environ={})
            if between is None:
                return found
            plan = replace(plan, limit=between())
            return await check_canaries(plan, out, environ={})

    return asyncio.run(run())


def printed(found, out=Path("OUT")):
    console = Console(file=io.StringIO(), width=80, color_system=None)
    print_document(make_document(found, out), console, verbose=True)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


# Prompts


def text_of(canary):
    return canary.prompt if isinstance(canary.prompt, str) else canary.prompt[0].text


def test_each_prompt_has_its_own_code_and_no_other():
    canaries = make_canaries(plan_of(requests=400))
    codes = {one.code for one in canaries}
    assert len(codes) == len({one.id for one in canaries}) == 400
    for one in canaries:
        plain = text_of(one).replace("-", "")
        assert one.code in plain
        assert not [code for code in codes - {one.code} if code in plain]


def test_codes_are_sixty_even_bits():
    counts = Counter("".join(make_code("x", i) for i in range(4000)))
    assert counts.keys() == set(ALPHABET)
    assert len(ALPHABET) ** LENGTH == 2**60
    # 1500 of each are expected, and five standard deviations are 190.
    assert max(abs(count - 1500) for count in counts.values()) < 190


def test_forms_prefixes_routes_and_streams_are_mixed():
    canaries = make_canaries(plan_of())
    assert {one.kind for one in canaries} == set(KINDS)
    assert len({(one.chat, one.streamed) for one in canaries}) == 4
    starts = Counter(text_of(one)[:2000] for one in canaries if one.kind == "shared_prefix")
    assert max(starts.values()) > 1
    twins = Counter(
        text_of(one).replace("-", "").replace(one.code, "")
        for one in canaries
        if one.chat and one.kind == "twin"
    )
    assert max(twins.values()) > 1
    assert {one.kind for one in make_canaries(plan_of(tools=False))} == set(KINDS) - {"tool"}
    assert all(one.chat for one in make_canaries(plan_of(texts=False)))
    assert not any(one.chat for one in make_canaries(plan_of(chat=False, tools=False)))


def test_another_seed_gives_other_codes_and_other_long_texts():
    one, other = make_canaries(plan_of()), make_canaries(plan_of(seed="t"))
    assert not {a.code for a in one} & {b.code for b in other}
    assert not {text_of(a) for a in one} & {text_of(b) for b in other}


# Search


def record(name, text="", start_s=0.0, end_s=1.0, **more):
    tried = Attempt(start_s=start_s, end_s=end_s, failure=None, status=200, request_id=f"x-{name}")
    reply = Response(text=text, finish_reason="stop", attempts=(tried,))
    return CanaryRecord(
        id=name,
        kind="repeat",
        code=CODES[name],
        chat=True,
        streamed=False,
        response=msgspec.structs.replace(reply, **more),
    )


CODES = {f"canary-{i}": make_code("s", i) for i in range(100)}
FIRST, SECOND = "canary-0", "canary-1"
OTHER = CODES[SECOND]


def leaks_of(*records):
    found = search_codes({one.id: one for one in records}, CODES)
    return [(one.source, one.into, one.where, one.own) for one in found.leaks]


@pytest.mark.parametrize(
    "written",
    [
        OTHER,
        OTHER.upper(),
        " ".join(OTHER),
        f"{OTHER[:5]}\n{OTHER[5:]}",
        "-".join((OTHER[:4], OTHER[4:8], OTHER[8:])),
        f"**{OTHER[:6]}** _{OTHER[6:]}_",
        f"{OTHER[:3]}\\n{OTHER[3:]}",
        f"é{OTHER}İ",
    ],
)
def test_a_code_is_found_however_it_is_split(written):
    assert leaks_of(record(FIRST, f"So it is {written}.")) == [(SECOND, FIRST, "text", False)]


def test_places_of_a_reply_are_all_searched():
    own = CODES[FIRST]
    cases = [
        ("thoughts", {"reasoning": f"hm {OTHER}"}),
        ("refusal", {"refusal": OTHER}),
        ("tool call", {"tool_calls": (ToolCall("keep", json.dumps({"code": OTHER})),)}),
        ("tool name", {"tool_calls": (ToolCall(OTHER),)}),
        ("stop_reason", {"stop_reason": OTHER}),
        ("id", {"answer_id": OTHER}),
    ]
    for where, fields in cases:
        assert leaks_of(record(FIRST, own, **fields)) == [(SECOND, FIRST, where, True)]


def test_a_code_in_an_error_message_is_found():
    refused = Failure(kind=FailureKind.HTTP_ERROR, message=f"HTTP 400: cannot read {OTHER}")
    bad = CanaryRecord(
        id=FIRST, kind="tool", code=CODES[FIRST], chat=True, streamed=False, failures=(refused,)
    )
    assert leaks_of(bad) == [(SECOND, FIRST, "error message", False)]


def test_own_codes_unknown_codes_and_parts_are_no_leak():
    own = CODES[FIRST]
    strange = make_code("another pass", 7)
    assert leaks_of(record(FIRST, f"{own} {strange} {OTHER[:11]} {OTHER[1:]}")) == []


def test_a_leak_says_how_long_both_were_in_flight():
    into, source = record(FIRST, OTHER, 1.0, 4.0), record(SECOND, OTHER, 2.5, 6.0)
    [leak] = search_codes({FIRST: into, SECOND: source}, CODES).leaks
    assert leak.together_s == pytest.approx(1.5)
    assert leak.request_ids == ("x-canary-1", "x-canary-0")
    later = record(FIRST, OTHER, 8.0, 9.0)
    [leak] = search_codes({FIRST: later, SECOND: source}, CODES).leaks
    assert leak.together_s == pytest.approx(-2.0)


def test_servers_that_a_router_names_are_told():
    named = Attempt(
        start_s=0.0,
        end_s=1.0,
        failure=None,
        status=200,
        request_id="r",
        servers=AnsweringServers(context="ctx:1", generation="gen:2"),
    )
    into = record(FIRST, OTHER, attempts=(named,))
    found = search_codes({FIRST: into, SECOND: record(SECOND, OTHER)}, CODES)
    assert found.leaks[0].servers == (None, "ctx:1 + gen:2")


def test_half_a_code_is_a_suspicion_and_no_proof():
    found = search_codes({FIRST: record(FIRST, f"I read {OTHER[2:9]} there")}, CODES)
    assert found.leaks == ()
    assert (found.suspicion.length, found.suspicion.codes) == (7, 1)
    assert (found.suspicion.source, found.suspicion.into) == (SECOND, FIRST)
    assert found.suspicion.p < 1e-3
    assert search_codes({FIRST: record(FIRST, f"I read {OTHER[2:6]}")}, CODES).suspicion is None


def test_many_short_parts_are_a_suspicion():
    """A model that copies only five characters of a code never shows a whole one."""
    names = list(CODES)
    swapped = {
        name: record(name, f"it is {CODES[other][:5]}")
        for name, other in zip(names, (*names[1:], names[0]), strict=True)
    }
    found = search_codes(swapped, CODES)
    assert found.leaks == ()
    assert found.suspicion.codes == 100
    right = {name: record(name, f"it is {CODES[name][:5]}") for name in names}
    assert search_codes(right, CODES).suspicion is None


def test_sound_replies_are_hardly_ever_suspicious():
    """All lengths together have a level of .001, so of 100 passes hardly one is reported."""
    draw = random.Random(5)
    suspected = 0
    for trial in range(100):
        codes = {f"canary-{i}": make_code(f"trial {trial}", i) for i in range(40)}
        records = {}
        for name, code in codes.items():
            garbled = "".join(draw.choice(ALPHABET) if draw.random() < 0.2 else c for c in code)
            noise = "".join(draw.choice(ALPHABET) for _ in range(20))
            one = Response(text=f"{garbled} {noise}", finish_reason="stop")
            records[name] = CanaryRecord(
                id=name, kind="repeat", code=code, chat=True, streamed=False, response=one
            )
        found = search_codes(records, codes)
        assert not found.leaks
        suspected += found.suspicion is not None
    assert suspected <= 1


# The pass, over sockets


def test_a_sound_server_passes_and_the_power_is_said(tmp_path):
    server = copier()
    found = check(server, tmp_path / "out")
    assert (found.exit_code, found.leaks, found.suspicion) == (PASS, (), None)
    assert (found.requests, found.answers, found.own) == (N, N, N)
    assert found.in_flight > 1
    assert found.chance < 1e-9
    text = printed(found)
    assert f"{N} of {N} answers repeat their own code" in text
    assert "an exchange of 6.9% of the answers or more would show with a chance of 95%" in text
    assert "no leak found" in text


def test_a_model_that_copies_nothing_tests_little_and_says_so(tmp_path):
    found = check(copier(copies=False), tmp_path / "out")
    assert (found.exit_code, found.own) == (PASS, 0)
    assert "an exchange of whole answers was not tested" in printed(found)


def test_cached_tokens_are_told_if_the_server_counts_them(tmp_path):
    usage = {"prompt_tokens": 100, "completion_tokens": 5}
    counted = {"usage": {**usage, "prompt_tokens_details": {"cached_tokens": 64}}}
    server = copier(lambda _request, code, _before: answer(code, body=counted))
    found = check(server, tmp_path / "out")
    assert found.cached_tokens is not None
    assert found.cached_tokens % 64 == 0
    assert f"prefix cache: {found.cached_tokens:,} of " in printed(found)


def test_exchanged_answers_are_proof(tmp_path):
    exchange = Exchange(share=0.2, seed=3)

    async def swap(code):
        return answer(await exchange.pass_on(f"The code is {code}."))

    found = check(copier(lambda _request, code, _before: swap(code)), tmp_path / "out")
    assert exchange.swapped
    assert found.exit_code == FAIL
    assert found.leaking == exchange.swapped
    pairs = {(one.source, one.into) for one in found.leaks}
    assert all((into, source) in pairs for source, into in pairs)
    assert all(one.together_s > 0.0 and not one.own for one in found.leaks)
    text = printed(found)
    assert (
        f"FAIL   canaries  {exchange.swapped} of {N} requests received codes of other requests"
        in text
    )
    assert "a breach of privacy, whatever the accuracy" in text


@pytest.mark.parametrize("where", ["text", "error message", "thoughts", "stream"])
def test_one_leak_is_enough(tmp_path, where):
    done = []

    def once(request, code, before):
        streamed = bool(request.body.get("stream"))
        fits = request.chat and streamed == (where == "stream")
        if done or len(before) < 20 or not fits:
            return None
        done.append(code)
        if where == "text":
            return answer(f"{code} {before[-1]}")
        if where == "error message":
            return fail(400, f"cannot read {before[-1]!r}")
        if where == "thoughts":
            told = {"message": {"content": code, "reasoning_content": before[-1]}}
            return answer("", choice=told)
        pieces = [before[-1][:5], before[-1][5:]]
        deltas = [{"choices": [{"index": 0, "delta": {"content": one}}]} for one in pieces]
        last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        return stream([*deltas, last, "[DONE]"])

    found = check(copier(once), tmp_path / "out")
    assert done
    [leak] = found.leaks
    assert leak.where == ("text" if where == "stream" else where)
    assert found.exit_code == FAIL


def test_a_quoted_prompt_in_an_error_that_a_retry_hides_is_found(tmp_path):
    done = []

    def once(_request, code, before):
        if done or not before:
            return None
        done.append(code)
        return fail(503, f"busy with {before[-1]}")

    found = check(copier(once), tmp_path / "out")
    assert [one.where for one in found.leaks] == ["error message"]
    assert found.failures == 0


@pytest.mark.parametrize(("kept", "asked"), [(N, 0), (50, N - 50)])
def test_a_pass_goes_on_where_it_ended_with_the_same_codes(tmp_path, kept, asked):
    out, server = tmp_path / "out", copier()
    before = []

    def interrupt():
        log = out / "canaries.jsonl"
        lines = log.read_bytes().splitlines(keepends=True)
        log.write_bytes(b"".join(lines[:kept]) + b"".join(lines[kept : kept + 1])[:20])
        (out / "canaries.json").unlink()
        before.append(len(server.asked))
        return N

    found = check(server, out, interrupt)
    assert len(server.asked) - before[0] == asked
    assert (found.answers, found.own, len(read_canary_log(out))) == (N, N, N)
    assert read_json(out / "canaries.json")["answers"] == N


def test_a_folder_of_another_pass_is_refused(tmp_path):
    with pytest.raises(RunFolderError, match=f"holds a canary pass with requests {N}, not 9"):
        check(copier(), tmp_path / "out", lambda: 9)


def test_servers_that_answer_nothing(tmp_path):
    silent = ScriptedServer(lambda _request: fail(400, "no"), paths=["/v1/completions"])
    with pytest.raises(EndpointError, match="neither chats nor texts"):
        check(silent, tmp_path / "a")
    busy = copier(lambda _request, _code, _before: fail(400, "no"))
    found = check(busy, tmp_path / "b")
    assert (found.exit_code, found.answers) == (NOTHING_SCORED, 0)
    assert "nothing was tested" in printed(found)


def test_the_command_runs_the_pass_alone(tmp_path):
    with copier().serve_in_thread() as url:
        done = serve_eval(
            f"check invariants {url} --canaries --limit 28 -o {tmp_path}/out --concurrency 8",
            exits=PASS,
        )
        assert "28 of 28 answers repeat their own code" in " ".join(done.stdout.split())
        again = serve_eval(
            f"check invariants {url} --canaries --limit 28 -o {tmp_path}/out --concurrency 8 --json"
        )
        assert json.loads(again.stdout)["result"]["own"] == 28
        for name in ("report.html", "junit.xml", "summary.md"):
            assert (tmp_path / "out" / name).exists()
        wrong = serve_eval(
            f"check invariants {url} --canaries --tasks gsm8k",
            exits=2,
            tells="--canaries sends prompts of its own: leave out --tasks",
        )
    chat = ("--set", "protocol.apply_chat_template=true")
    wrong = serve_eval("check invariants 127.0.0.1:9 --canaries", *chat, exits=2)
    assert f"leave out {' '.join(chat)}\n" in wrong.stderr
