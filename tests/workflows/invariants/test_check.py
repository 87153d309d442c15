"""An endpoint under changes that should change no answer: only the change that breaks it fails."""

import asyncio
import io
import json
import shlex
from collections import Counter, deque
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import pytest
from rich.console import Console

from serve_eval.errors import RunFolderError
from serve_eval.evaluation.launch import _write_answers
from serve_eval.evaluation.prepare import prepare
from serve_eval.launchers._http.server import serve_app
from serve_eval.launchers._simulated.simulator import SimulatorConfig, _Simulator, create_app
from serve_eval.launchers._standin import model
from serve_eval.launchers.simulated import probability
from serve_eval.report.document import print_document
from serve_eval.schema import Limits, Plan, Spec
from serve_eval.schema.media import prompt_sha256
from serve_eval.verdicts.exit_code import FAIL, PASS
from serve_eval.workflows.invariants.check import ALPHA, check
from serve_eval.workflows.invariants.document import make_document
from tests.cli.command import serve_eval
from tests.json_files import read_json
from tests.scripted_server import ScriptedServer, after, answer, external, hand_over

N = 40


@pytest.fixture(scope="module")
def plan(data_root):
    return Plan(
        model="simulated",
        launcher=external("http://127.0.0.1:1/v1"),
        tasks=(Spec(name="gsm8k"),),
        dataset_roots=(str(data_root),),
        limit=N,
        limits=Limits(concurrency=8),
    )


@pytest.fixture(scope="module")
def sound(plan, tmp_path_factory):
    """Return an endpoint that judges 3 % of the prompts differently each time."""
    path = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    _write_answers(path, prepare(replace(plan, no_reference=True)), probability(0.8, 0.03, 0))
    return SimulatorConfig(answers=path, varied=True)


def _check(
    plan,
    config,
    wrong,
    out,
    chunk_tokens=(),
    instead=None,
):
    """Check an endpoint that answers some requests as a damaged one or as `instead`.

    Return the result and the number of requests.
    """
    good, bad = _Simulator(config), _Simulator(instead or replace(config, damage=0.8, varied=False))
    seen = Counter()
    flying = Counter()

    async def reply(request):
        prompt = request.prompt
        flying[prompt] += 1
        try:
            faulty = wrong(request.body, seen[prompt], flying)
            seen[prompt] += 1
            said = _passkey(prompt, faulty) or hand_over((bad if faulty else good).completions)
            return await after(0.001, said)(request)
        finally:
            flying[prompt] -= 1

    async def run():
        async with ScriptedServer(reply, paths=["/v1/completions"]).serve() as url:
            at = replace(plan, launcher=external(url))
            first = await check(at, out, environ={}, chunk_tokens=chunk_tokens)
            asked = seen.total()
            second = await check(at, out, environ={}, chunk_tokens=chunk_tokens)
            assert replace(second, started_at="", wall_s=0.0) == replace(
                first, started_at="", wall_s=0.0
            )
            assert seen.total() == asked
            return first

    return asyncio.run(run()), seen.total()


class _InCompany:
    """True if any of the last ten requests was in flight with others.

    A busy machine does not always keep several in flight.
    """

    def __init__(self):
        self.lately = deque(maxlen=10)

    def __call__(self, body, before, flying):
        self.lately.append(flying.total())
        return max(self.lately) > 1


@pytest.mark.parametrize(
    ("wrong", "broken"),
    [
        (lambda body, before, flying: False, []),
        (lambda body, before, flying: bool(body.get("stream")), ["streamed"]),
        (lambda body, before, flying: before == 0, ["cold"]),
        (_InCompany(), ["alone"]),
        (lambda body, before, flying: flying[body["prompt"]] > 1, ["repeated"]),
    ],
    ids=["sound", "streams", "first-time", "batches", "copies"],
)
def test_what_breaks_is_named(plan, sound, tmp_path, wrong, broken):
    found, asked = _check(plan, sound, wrong, tmp_path / "out")
    assert [one.arm for one in found.results] == [
        "cold",
        "shuffled",
        "streamed",
        "repeated",
        "alone",
    ]
    assert [one.arm for one in found.results if one.broken] == broken
    assert found.exit_code == (FAIL if broken else PASS)
    assert set(found.skipped) == {"rendered"}
    assert asked >= (7 + 8) * N
    assert read_json(tmp_path / "out" / "invariants.json")["exit_code"] == found.exit_code


MORE = 160
"""Prompts of the checks that distinguish other numerics from damage."""


@pytest.fixture(scope="module")
def settled(plan, tmp_path_factory):
    """Return an endpoint with one answer to each prompt.

    With another `run`, 20 % of the answers differ, as often better as worse.
    """
    path = tmp_path_factory.mktemp("settled") / "answers.jsonl"
    _write_answers(
        path, prepare(replace(plan, limit=MORE, no_reference=True)), probability(0.7, 0.2, 0)
    )
    return SimulatorConfig(answers=path, run=1)


def test_batches_that_only_change_the_numerics_are_not_called_broken(plan, settled, tmp_path):
    """All passes under load give the same answers, so `again` does not differ from `base`."""
    other = replace(settled, run=2)
    found, _ = _check(
        replace(plan, limit=MORE), settled, _InCompany(), tmp_path / "out", instead=other
    )
    [alone] = [one for one in found.results if one.arm == "alone"]
    assert alone.changed.more
    assert alone.changed.p * len(found.results) < ALPHA
    assert alone.fell
    assert alone.rose
    assert (alone.broken, found.exit_code) == (False, PASS)
    assert "batch size changes numerics, so a sound server may differ here" in (
        said := _said(found)
    )
    assert f"worse scores and {alone.rose} better" in said
    assert [line.split()[0] for line in said.splitlines() if " alone  " in line] == ["DIFFERS"]


@pytest.mark.parametrize("worse", ["many", "one"])
def test_a_tenth_of_the_answers_damaged_at_one_batch_size_is_found(plan, sound, tmp_path, worse):
    """Of 160 prompts, 5 scored better and 20 worse by chance once, which is not enough."""
    more = replace(plan, limit=2 * MORE)
    path = tmp_path / "answers.jsonl"
    _write_answers(path, prepare(replace(more, no_reference=True)), probability(0.8, 0.03, 0))
    good = replace(sound, answers=path)
    bad = replace(good, damage=0.1)
    first, second = (good, bad) if worse == "many" else (bad, good)
    found, _ = _check(more, first, _InCompany(), tmp_path / "out", instead=second)
    assert [one.arm for one in found.results if one.broken] == ["alone"]
    alone = found.results[-1]
    assert alone.fell is not None
    assert alone.rose is not None
    assert (alone.fell > 2 * alone.rose) if worse == "many" else (alone.rose > 2 * alone.fell)
    assert "sound server may differ" not in _said(found)


ANSWERED_S = 0.02
"""Time of an answer: long enough that requests overlap on a busy machine too."""


def _checked(plan, sound, changed, out):
    """Check an endpoint with one answer to each prompt, worded as the request decides."""
    simulator = _Simulator(replace(sound, varied=False))
    seen = Counter()
    flying = Counter()

    async def reply(request):
        prompt = request.prompt
        known = simulator.answers.by_hash.get(prompt_sha256(prompt))
        if known is None:
            return hand_over(simulator.completions)
        flying[prompt] += 1
        try:
            text = changed(request.body, seen[prompt], flying, known.text or "")
            seen[prompt] += 1
            await asyncio.sleep(ANSWERED_S)
        finally:
            flying[prompt] -= 1
        return answer(text)

    async def run():
        async with ScriptedServer(reply, paths=["/v1/completions"]).serve() as url:
            at = replace(plan, launcher=external(url))
            return await check(at, out, environ={}, chunk_tokens=())

    return asyncio.run(run())


@pytest.mark.parametrize(("at_a_time", "broken"), [(1, ["streamed"]), (8, [])])
def test_streams_that_lose_a_character_are_found_by_their_texts_where_there_are_no_batches(
    plan, sound, tmp_path, at_a_time, broken
):
    """The extracted figure comes last and is right."""

    def changed(body, before, flying, text):
        return text[:2] + text[3:] if body.get("stream") else text

    plan = replace(plan, limits=replace(plan.limits, concurrency=at_a_time))
    found = _checked(plan, sound, changed, tmp_path / "out")
    assert [one.arm for one in found.results if one.broken] == broken
    [streamed] = [one for one in found.results if one.arm == "streamed"]
    assert (streamed.changed.own, streamed.changed.other, streamed.agreement.identical) == (0, 0, 0)
    if broken:
        assert (streamed.changed.measure, streamed.changed.other_texts) == ("text", N)


def test_other_words_out_of_the_cache_or_in_another_batch_are_not_called_broken(
    plan, sound, tmp_path
):
    """Each way of computing has its own wording and the same answers."""
    in_company = _InCompany()

    def changed(body, before, flying, text):
        return (
            f" {before == 0} {flying[body['prompt']] > 1} {in_company(body, before, flying)}{text}"
        )

    found = _checked(plan, sound, changed, tmp_path / "out")
    same = {one.arm: one.agreement.identical for one in found.results}
    assert same["cold"] == 0
    assert max(same["repeated"], same["alone"]) < N // 2
    assert (found.exit_code, [one.arm for one in found.results if one.changed.more]) == (PASS, [])


def _said(found):
    console = Console(file=io.StringIO(), width=200)
    print_document(make_document(found, Path("out")), console, verbose=True)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def _passkey(prompt, faulty):
    """Answer a long text, counting one token per word; None for other prompts.

    If `faulty`, everything before the last words is lost.
    """
    if "pass key" not in prompt:
        return None
    return answer(
        " 00000" if faulty else model.answer(prompt) or "", usage=(len(prompt.split()), 1)
    )


def _long(body):
    return len(body["prompt"].split()) > 1024


@pytest.mark.parametrize(
    ("wrong", "broken"),
    [
        (
            lambda body, before, flying: (
                _long(body) and "max_tokens" in body and body["max_tokens"] > 1
            ),
            ["chunked_1024"],
        ),
        (lambda body, before, flying: False, []),
        # Random answers to long texts are not blamed on a boundary.
        (
            lambda body, before, flying: (
                "pass key" in body["prompt"] and crc32(body["prompt"].encode()) % 2 > 0
            ),
            [],
        ),
    ],
    ids=["chunks", "sound", "random"],
)
def test_texts_beyond_a_boundary_are_compared_with_those_just_before_it(
    plan, sound, tmp_path, wrong, broken
):
    found, _ = _check(plan, sound, wrong, tmp_path / "out", chunk_tokens=(1024, 2048, 30))
    assert [one.arm for one in found.results if one.broken] == broken
    rows = {one.arm: one for one in found.results if one.task == "passkey_lines"}
    assert set(rows) == {"chunked_1024", "chunked_2048"}
    assert rows["chunked_1024"].changed.prompts == N
    assert "too few" in found.skipped["chunked_30"]
    told = [
        int(word) for word in rows["chunked_1024"].what.replace(",", "").split() if word.isdecimal()
    ]
    assert told[1] <= 1024 < told[0]
    assert told[0] - told[1] < 100


def test_other_boundaries_are_tried_when_the_checks_go_on(plan, sound, tmp_path):
    async def run():
        async with serve_app(create_app(sound)) as url:
            at = replace(plan, limit=4, launcher=external(url))
            found = [
                await check(at, tmp_path / "out", environ={}, chunk_tokens=chunks)
                for chunks in tried
            ]
            return [
                [one.arm for one in done.results if one.arm.startswith("chunked")] for done in found
            ]

    tried = ((512,), (1024, 30), (), (1024, 512))
    assert asyncio.run(run()) == [
        ["chunked_512"],
        ["chunked_1024"],
        [],
        ["chunked_1024", "chunked_512"],
    ]


def test_answers_to_something_else_are_not_taken_for_these(plan, sound, tmp_path):
    async def run():
        told = []
        async with serve_app(create_app(sound)) as url, serve_app(create_app(sound)) as elsewhere:
            at = replace(plan, limit=4, launcher=external(url))
            await check(at, tmp_path / "out", environ={}, chunk_tokens=())
            await check(
                replace(at, limits=replace(at.limits, max_attempts=2)),
                tmp_path / "out",
                chunk_tokens=(),
            )
            for other in (
                replace(at, launcher=external(elsewhere)),
                replace(at, limit=5),
                replace(at, limits=replace(at.limits, concurrency=3)),
            ):
                with pytest.raises(RunFolderError, match="holds checks of something else") as error:
                    await check(other, tmp_path / "out", environ={}, chunk_tokens=())
                told.append(str(error.value).splitlines()[1].split(":")[0].strip())
        return told

    assert asyncio.run(run()) == ["launcher.options.base_url", "limit", "limits.concurrency"]


def test_a_server_that_refuses_long_texts_or_counts_none_has_no_rows_for_them(
    plan, sound, tmp_path
):
    async def run():
        app = create_app(replace(sound, context_tokens=1500))
        async with serve_app(app) as url:
            at = replace(plan, limit=4, launcher=external(url))
            return await check(at, tmp_path / "out", environ={}, chunk_tokens=(2048,))

    found = asyncio.run(run())
    assert "was not answered" in found.skipped["chunked_2048"]
    assert "chunked_2048" not in [one.arm for one in found.results]


def test_chat_is_also_rendered_here_where_a_template_is_given(data_root, tmp_path):
    (tmp_path / "tokenizer").mkdir()
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    (tmp_path / "tokenizer" / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": template})
    )
    (tmp_path / "plan.yaml").write_text(
        json.dumps(
            {
                "launcher": {"name": "simulated", "accuracy": 1.0},
                "tasks": [{"gsm8k": {"apply_chat_template": True}}],
                "dataset_root": str(data_root),
            }
        )
    )
    flags = [
        "--limit",
        "10",
        "--set",
        f"invariants.tokenizer={tmp_path / 'tokenizer'}",
        "--set",
        "invariants.chunk_tokens=0",
    ]
    out = tmp_path / "out"
    said = serve_eval(f"check invariants {tmp_path}/plan.yaml -o {out} --json", *flags, exits=FAIL)
    # The simulated endpoint knows only chat prompts, so it takes a rendered prompt for another
    # question.
    shown = json.loads(said.stdout)
    assert shown["result"] == read_json(out / "invariants.json")
    assert {one["name"]: one["outcome"] for one in shown["conclusions"]} == {
        "rendered": "FAIL",
        "cold": "NOT TESTED",  # it reports no cached tokens
        **dict.fromkeys(("shuffled", "streamed", "repeated", "alone"), "PASS"),
    }
    assert all((out / name).exists() for name in ("report.html", "junit.xml", "summary.md"))
    [command] = shown["commands"]
    changed = serve_eval(*shlex.split(command)[1:], exits=0)
    assert "from A to B: " in changed.stdout.partition("\n")[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "compare host:1",
            "To compare an endpoint with itself: serve-eval check invariants host:1",
        ),
        (
            "compare host:1 host:2 --invariants",
            "is now a separate command: serve-eval check invariants",
        ),
        (
            "compare host:1 --invariants --chunk-tokens 0",
            "is now a separate command: serve-eval check invariants",
        ),
        ("compare host:1 host:2 --tokenizer x", "--tokenizer is for serve-eval check invariants"),
        (
            "compare host:1 host:2 --chunk-tokens 512",
            "--chunk-tokens is for serve-eval check invariants",
        ),
        (
            "check invariants host:1 --set invariants.chunk_tokens=-1",
            "invariants.chunk_tokens must be 0 or more",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments, message):
    serve_eval(arguments, exits=2, tells=message)
