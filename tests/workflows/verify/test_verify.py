"""Test `serve-eval verify` through real sockets: outcomes, files, parts of a deployment."""

import asyncio
import io
import json
import shlex
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from rich.console import Console

from serve_eval.cli._progress import LoggedProgress
from serve_eval.errors import EndpointError, NotComparableError, ReferenceFileError
from serve_eval.report.document import print_document
from serve_eval.schema import (
    Limits,
    Plan,
    ProbeRoute,
    Spec,
    VerificationOutcome,
)
from serve_eval.storage.story_results import read_reference, write_reference
from serve_eval.workflows.verify.document import CHUNK, make_document
from serve_eval.workflows.verify.legs import parse_worker
from serve_eval.workflows.verify.servers import NamedPlan, VerifyRules
from serve_eval.workflows.verify.verify import register, verify
from tests.cli.command import serve_eval
from tests.json_files import read_json
from tests.scripted_server import external, raw
from tests.workflows.verify.model_server import ModelServer

NUMERICS = 0.02
IDENTICAL, OTHER = VerificationOutcome.IDENTICAL, VerificationOutcome.OTHER_NUMERICS
ANOTHER, UNDECIDED = VerificationOutcome.ANOTHER, VerificationOutcome.UNDECIDED


def _plan(url):
    return Plan(
        model="m",
        launcher=external(url),
        tasks=(Spec(name="word_problems"),),
        limits=Limits(max_attempts=1),
        no_reference=True,
    )


def _verify(
    a,
    b,
    out,
    *,
    sibling=None,
    parts=None,
    progress=None,
    **rules,
):
    async def main():
        async with AsyncExitStack() as stack:
            named = {}
            for server in (a, b, *([sibling] if sibling else []), *(parts or {}).values()):
                url = await stack.enter_async_context(server.server.serve())
                named[id(server)] = NamedPlan(name=server.name, plan=_plan(url))
            workers = [
                parse_worker(
                    f"{role.partition('_')[0]}={named[id(one)].plan.launcher.options['base_url']}",
                    named[id(b)],
                )
                for role, one in (parts or {}).items()
            ]
            found, used = await verify(
                named[id(a)],
                [named[id(b)]],
                [] if sibling is None else [named[id(sibling)]],
                VerifyRules(**rules),
                out,
                workers=workers,
                environ={},
                progress=progress,
            )
            write_reference(out / "reference.json", used)
            return found

    return asyncio.run(main())


def _outcome(found):
    return found.sides[0].outcome


def test_a_server_with_the_same_numbers_is_identical(tmp_path):
    found = _verify(ModelServer(name="a"), ModelServer(name="b"), tmp_path, floor=0.08)
    [side] = found.sides
    assert (side.outcome, found.exit_code, side.beyond_noise) == (IDENTICAL, 0, 0)
    assert side.excluded_share < 0.1
    assert side.asked <= 60
    lengths = [
        one.reading.prompt_tokens for one in read_reference(tmp_path / "reference.json").probes
    ]
    assert found.prompt_lengths == (min(lengths), max(lengths))
    assert max(lengths) > 256


def test_a_log_shows_how_many_probes_each_server_has_answered(tmp_path):
    file = io.StringIO()
    shown = LoggedProgress(Console(file=file, width=80))
    servers = ModelServer(name="old"), ModelServer(name="new")
    found = _verify(*servers, tmp_path, floor=0.08, progress=shown)
    lines = file.getvalue().splitlines()
    assert sorted(line.partition(":")[0] for line in lines) == ["new", "old"]
    counts = {int(line.split()[1].partition("/")[0]) for line in lines}
    assert min(counts) >= found.sides[0].asked
    assert all("/200 done, 0 failed" in line for line in lines)


def test_a_sibling_measures_what_sound_numerics_differ_by(tmp_path):
    a, sibling = ModelServer(name="a"), ModelServer(name="s", numerics=NUMERICS)
    sound = _verify(a, ModelServer(name="b", numerics=NUMERICS), tmp_path / "1", sibling=sibling)
    assert _outcome(sound) is OTHER
    assert sound.exit_code == 0
    assert sound.floor is not None
    assert sound.sibling_median is not None
    assert sound.sides[0].effect == pytest.approx(1.0, abs=0.5)
    bad = _verify(a, ModelServer(name="b", numerics=10 * NUMERICS), tmp_path / "2", sibling=sibling)
    assert (_outcome(bad), bad.exit_code) == (ANOTHER, 1)
    assert bad.sides[0].asked <= 40
    assert bad.sides[0].effect == pytest.approx(10.0, rel=0.6)


def test_noise_of_the_server_itself_is_not_a_difference(tmp_path):
    a, b = (ModelServer(name=name, noise=0.02) for name in "ab")
    found = _verify(a, b, tmp_path, floor=0.01)
    assert found.noise > 0.02
    assert _outcome(found) in (IDENTICAL, OTHER)


def test_without_a_floor_there_is_no_third_outcome(tmp_path):
    found = _verify(ModelServer(name="a"), ModelServer(name="b", numerics=1.0), tmp_path)
    assert (_outcome(found), found.exit_code) == (UNDECIDED, 3)
    assert any("no floor is known" in line for line in found.warnings)


def test_a_fault_of_few_requests_is_found_by_far_hits(tmp_path):
    b = ModelServer(name="b", foreign=0.1)
    found = _verify(ModelServer(name="a"), b, tmp_path, floor=0.08)
    [side] = found.sides
    assert side.outcome is ANOTHER
    assert side.far > 0
    repeated = [one for one in side.distances if one.repeats]
    assert len(repeated) == min(3, side.far)
    assert all(min(one.repeats) > 0.08 for one in repeated)  # this fault depends on the prompt


@pytest.mark.parametrize("short", [False, True])
def test_second_tokens_are_aligned_where_the_first_is_not_listed(short, tmp_path):
    a = ModelServer(name="a")
    b = ModelServer(name="b", numerics=0.3, second_only=True, short=short)
    found = _verify(a, b, tmp_path, floor=0.08)
    assert _outcome(found) is ANOTHER
    assert {one.token for one in found.sides[0].distances if one.nats > 0} == {1}
    sound = _verify(a, ModelServer(name="c", short=short), tmp_path / "c", floor=0.08)
    assert _outcome(sound) is IDENTICAL


def test_flips_count_where_there_are_no_log_probabilities(tmp_path):
    a, b = ModelServer(name="a"), ModelServer(name="b", plain=True)
    sound = _verify(a, b, tmp_path / "1", floor=0.08)
    assert _outcome(sound) is OTHER
    assert sound.sides[0].why.startswith("0 of ")
    assert "finer differences were not seen" in sound.sides[0].why
    bad = ModelServer(name="b", plain=True, numerics=1.0)
    assert _outcome(_verify(a, bad, tmp_path / "2", floor=0.08)) is ANOTHER


def test_a_server_that_samples_is_told_of_and_needs_log_probabilities(tmp_path):
    a = ModelServer(name="a")
    found = _verify(a, ModelServer(name="b", samples=True), tmp_path / "1", floor=0.08)
    assert _outcome(found) is IDENTICAL
    assert any("temperature of 0 is ignored" in line for line in found.warnings)
    greedy = _verify(a, ModelServer(name="b"), tmp_path / "2", floor=0.08)
    assert not any("temperature of 0" in line for line in greedy.warnings)
    with pytest.raises(NotComparableError, match="UNSUPPORTED: it reports no log-probabilities"):
        _verify(a, ModelServer(name="b", samples=True, plain=True), tmp_path / "3", floor=0.08)


def test_one_probe_is_longer_than_a_chunk(tmp_path):
    a = ModelServer(name="a")
    found = _verify(a, ModelServer(name="b", wrong_from=1000), tmp_path, floor=0.08)
    [side] = found.sides
    [far] = [one for one in side.distances if one.nats > 0.08]
    assert far.prompt_tokens > CHUNK
    assert len(far.repeats) == 3
    told = io.StringIO()
    print_document(make_document(found, tmp_path, {}), Console(file=told, width=200))
    assert "it is the only one longer than 2,048: a fault of long prompts" in told.getvalue()


def test_a_server_that_is_busy_at_first_does_not_refuse_salts(tmp_path):
    found = _verify(ModelServer(name="a"), ModelServer(name="b", busy=2), tmp_path, floor=0.08)
    assert (_outcome(found), found.sides[0].salted) == (IDENTICAL, True)


@pytest.mark.parametrize(("more", "told"), [(0, None), (1, "1 token more"), (9, "9 tokens more")])
def test_other_counts_of_prompt_tokens_are_told(tmp_path, more, told):
    b = ModelServer(name="b", counts_more=more)
    [side] = _verify(ModelServer(name="a"), b, tmp_path, floor=0.08).sides
    found = [line for line in side.prompts if line.startswith("prompts: the server counts")]
    assert len(found) == (told is not None)
    assert all(told in line for line in found if told)


def test_answers_that_end_at_once_are_another_model(tmp_path):
    b = ModelServer(name="b", ends_at_once=True)
    found = _verify(ModelServer(name="a"), b, tmp_path, floor=0.08)
    assert _outcome(found) is ANOTHER


def test_failures_are_no_evidence_and_too_many_are_an_error(tmp_path):
    b = ModelServer(name="b", failing=0.02)
    found = _verify(ModelServer(name="a"), b, tmp_path / "1", floor=0.08)
    assert _outcome(found) is IDENTICAL
    [side] = found.sides
    assert side.unanswered
    assert side.asked > 80, "more questions make up for those without an answer"
    with pytest.raises(EndpointError, match="got no answer: HTTP 400: out of order"):
        _verify(
            ModelServer(name="a"), ModelServer(name="c", failing=0.9), tmp_path / "2", floor=0.08
        )


def test_a_server_that_is_certain_or_lists_nothing_cannot_be_a_reference(tmp_path):
    with pytest.raises(NotComparableError, match="only 0 have an uncertain next token"):
        _verify(ModelServer(name="a", certain=True), ModelServer(name="b"), tmp_path / "1")
    with pytest.raises(NotComparableError, match="reports no log-probabilities"):
        _verify(ModelServer(name="a", plain=True), ModelServer(name="b"), tmp_path / "2")


def test_servers_that_refuse_salts_are_asked_with_their_cache(tmp_path):
    a, b = (ModelServer(name=name, salts=False) for name in "ab")
    found = _verify(a, b, tmp_path, floor=0.08)
    assert (_outcome(found), found.salted) == (IDENTICAL, False)
    asked = [one.prompt for one in b.server.requests if one.body.get("logprobs")]
    probes = read_reference(tmp_path / "reference.json").probes
    assert {asked.count(probe.prompt) for probe in probes} == {2}
    mixed = _verify(a, ModelServer(name="c"), tmp_path / "c", floor=0.08)
    assert any("prefix cache may change" in line for line in mixed.warnings)


def test_salted_questions_have_a_salt_each(tmp_path):
    b = ModelServer(name="b")
    _verify(ModelServer(name="a"), b, tmp_path, floor=0.08)
    salts = [one.body["cache_salt"] for one in b.server.asked if one.path.endswith("completions")]
    assert len(set(salts)) == len(salts) > 40


def test_chats_are_asked_where_there_are_no_completions(tmp_path):
    a, b = (ModelServer(name=name, chat_only=True) for name in "ab")
    assert _outcome(_verify(a, b, tmp_path / "1", floor=0.08)) is IDENTICAL
    bad = ModelServer(name="b", chat_only=True, numerics=0.5)
    assert _outcome(_verify(a, bad, tmp_path / "2", floor=0.08)) is ANOTHER


def test_a_model_that_thinks_first_continues_its_own_message(tmp_path):
    a, b = (ModelServer(name=name, chat_only=True, thinks=True) for name in "ab")
    found = _verify(a, b, tmp_path / "1", floor=0.08)
    assert _outcome(found) is IDENTICAL
    known = read_reference(tmp_path / "1/reference.json")
    assert (known.route, known.protocol["route"]) == (ProbeRoute.PREFIX, "prefix")
    asked = [one.body for one in b.server.requests if one.body.get("max_tokens") == 2]
    assert {one["messages"][-1]["role"] for one in asked} == {"assistant"}
    assert all(one["continue_final_message"] for one in asked)
    bad = ModelServer(name="b", chat_only=True, thinks=True, numerics=0.6)
    assert _outcome(_verify(a, bad, tmp_path / "2", floor=0.08)) is ANOTHER


def test_tokens_of_thoughts_are_compared_last_and_with_a_warning(tmp_path):
    a, b = (ModelServer(name=name, chat_only=True, opened=True) for name in "ab")
    found = _verify(a, b, tmp_path / "1", floor=0.08)
    assert _outcome(found) is IDENTICAL
    known = read_reference(tmp_path / "1/reference.json")
    assert (known.route, known.protocol["probed_tokens"]) == (ProbeRoute.CHAT, "thoughts")
    assert any("the first of the model's thoughts" in line for line in found.warnings)
    bad = ModelServer(name="b", chat_only=True, opened=True, numerics=0.6)
    assert _outcome(_verify(a, bad, tmp_path / "2", floor=0.08)) is not IDENTICAL


def test_a_chat_is_never_compared_with_a_text(tmp_path):
    """The answers differ although the model is the same, so they are no evidence."""
    with pytest.raises(EndpointError, match="no completions"):
        _verify(ModelServer(name="a"), ModelServer(name="b", chat_only=True), tmp_path, floor=0.08)


def test_the_user_chooses_between_chats_and_texts(tmp_path):
    server, file = ModelServer(name="a"), tmp_path / "reference.json"
    how = f"--model m --floor 0.08 --probes 60 -o {tmp_path}/out"
    with server.server.serve_in_thread() as url:
        ran = [
            serve_eval(f"verify {url} {how}", *more)
            for more in (
                ["--set", "protocol.apply_chat_template=true", "--register", file],
                ["--reference", file],
                ["--set", "protocol.apply_chat_template=true", "--reference", file],
                ["--set", "protocol.apply_chat_template=false", "--reference", file],
            )
        ]
    assert read_reference(file).route is ProbeRoute.CHAT
    assert {one.path for one in server.server.requests if one.body} == {"/v1/chat/completions"}
    assert [one.returncode for one in ran] == [0, 0, 0, 3]
    assert "was asked with chat requests" in ran[3].stderr
    assert "Leave out --set protocol.apply_chat_template=false, or" in ran[3].stderr


def test_the_seed_of_the_command_chooses_the_texts(tmp_path):
    server, file = ModelServer(name="a"), tmp_path / "reference.json"
    how = f"--model m --floor 0.08 --probes 60 -o {tmp_path}/out"
    with server.server.serve_in_thread() as url:
        serve_eval(f"verify {url} --set seed=3 --register {file} {how}", exits=0)
    assert read_reference(file).seed == 3


def test_rounded_log_probabilities_do_not_look_like_a_difference(tmp_path):
    a = ModelServer(name="a", decimals=2)
    found = _verify(a, ModelServer(name="b"), tmp_path, floor=0.001)
    assert found.step == pytest.approx(0.01)
    assert _outcome(found) is IDENTICAL


@pytest.mark.parametrize(
    ("context", "generation", "named"),
    [
        (0.0, 0.0, "the transfer of the KV cache"),
        (0.5, 0.0, "found in http"),
        (0.0, 0.5, "found in http"),
    ],
)
def test_the_part_that_differs_is_named(context, generation, named, tmp_path):
    parts = {
        "context_0": ModelServer(name="c", numerics=context),
        "generation_0": ModelServer(name="g", numerics=generation),
    }
    b = ModelServer(name="b", numerics=0.5)
    found = _verify(ModelServer(name="a"), b, tmp_path, parts=parts, floor=0.08)
    assert len(found.sides) == 3
    [told] = found.named
    assert named in told
    bad = {one.role for one in found.sides[1:] if one.outcome is ANOTHER}
    assert bad == {
        role for role, size in (("context", context), ("generation", generation)) if size
    }


def _metrics(tokens, moved):
    labels = 'model_name="m",source="external_kv_transfer"'
    return (
        f'vllm:prompt_tokens_total{{model_name="m"}} {tokens}\n'
        f"vllm:prompt_tokens_by_source_total{{{labels}}} {moved}\n"
    ).encode()


@pytest.mark.parametrize(("moves", "warned"), [(True, False), (False, True)])
def test_counters_of_the_named_workers_are_read_before_and_after(tmp_path, moves, warned):
    """The front door answers; the named generation server counts a prompt at each reading."""
    readings = 0

    def count(request):
        nonlocal readings
        readings += 1
        return raw(_metrics(100 * readings, 100 * readings * moves), content_type="text/plain")

    a, b = ModelServer(name="a"), ModelServer(name="b")
    parts = {
        "context": ModelServer(name="c", metrics=lambda request: raw(_metrics(5, 0))),
        "generation": ModelServer(name="g", metrics=count),
    }
    found = _verify(a, b, tmp_path, parts=parts, floor=0.08)
    [side] = [one for one in found.sides if one.part_of is None]
    counts = {one.role: one.counts for one in side.engines}
    assert (counts["generation"].prompt_tokens, counts["generation"].moved_tokens) == (
        100,
        100 * moves,
    )
    assert any("no KV cache crossed the wire" in line for line in found.warnings) is warned


def test_a_front_without_answers_says_whose_transfers_failed(tmp_path):
    readings = 0

    def count(request):
        nonlocal readings
        readings += 1
        failed = f'vllm:nixl_num_failed_transfers_total{{model_name="m"}} {41 * readings}\n'
        return raw(_metrics(5, 5) + failed.encode(), content_type="text/plain")

    parts = {
        "context": ModelServer(name="c", metrics=lambda request: raw(_metrics(5, 0))),
        "generation": ModelServer(name="g", metrics=count),
    }
    with pytest.raises(EndpointError, match="got no answer") as raised:
        _verify(
            ModelServer(name="a"),
            ModelServer(name="b", failing=0.9),
            tmp_path,
            parts=parts,
            floor=0.08,
        )
    assert "the KV transfer of generation_1 (http://" in raised.value.hint
    assert "failed in part: failed transfers 41" in raised.value.hint


@pytest.mark.parametrize(
    ("context", "generation", "named"),
    [
        ({}, {"failing": 1.0}, None),
        ({"numerics": 0.6}, {"failing": 1.0}, "found in "),
        ({}, {}, "the transfer"),
    ],
    ids=["one is lost", "one is lost and one is bad", "all are sound"],
)
def test_a_part_that_is_lost_acquits_no_other(context, generation, named, tmp_path):
    parts = {
        "context": ModelServer(name="c", **context),
        "generation": ModelServer(name="g", **generation),
    }
    b = ModelServer(name="b", numerics=0.6)
    found = _verify(ModelServer(name="a"), b, tmp_path, parts=parts, floor=0.08)
    assert found.exit_code == 1
    assert len(found.lost) == bool(generation)
    assert all(one.part_of == "b" for one in found.lost)
    assert [named in line for line in found.named if named] == ([True] if named else [])
    assert bool(found.named) is (named is not None)


def test_a_reference_file_replaces_the_server(tmp_path):
    a, sibling = ModelServer(name="a"), ModelServer(name="s", numerics=NUMERICS)

    async def main():
        async with a.server.serve() as url, sibling.server.serve() as other:
            return await register(
                NamedPlan(name="a", plan=_plan(url)),
                [NamedPlan(name="s", plan=_plan(other))],
                VerifyRules(probes=80),
                tmp_path,
                environ={},
            )

    made, file = asyncio.run(main()), tmp_path / "m.json"
    write_reference(file, made)
    assert read_reference(file) == made
    assert len(file.read_text().splitlines()) == len(made.probes) + 2 == 82
    repeats = [[(one.in_flight, one.times) for one in probe.again] for probe in made.probes]
    assert repeats[:20] == [[(1, 10), (16, 10)]] * 20
    assert repeats[20:] == [[(16, 1)]] * 60
    assert made.protocol["texts"] == "word_problems"
    for b, code in ((ModelServer(numerics=NUMERICS), 0), (ModelServer(numerics=0.5), 1)):
        with b.server.serve_in_thread() as url:
            ran = serve_eval(
                f"verify {url} --model m --reference {file} -o {tmp_path}/out", exits=code
            )
    assert "not that it is worse: measure that" in ran.stdout
    result = read_json(tmp_path / "out/verification.json")
    assert result["sides"][0]["outcome"] == ANOTHER.value


def test_a_file_that_is_no_reference_is_refused(tmp_path):
    file = tmp_path / "x.json"
    for content, message in (
        ("{}", "is no reference"),
        ('{"version": 99}', "newer serve-eval"),
        ("\x00", "is no reference"),
    ):
        file.write_text(content)
        with pytest.raises(ReferenceFileError, match=message):
            read_reference(file)
    with pytest.raises(ReferenceFileError, match="No such file"):
        read_reference(tmp_path / "none.json")


def test_several_servers_are_judged_at_once(tmp_path):
    a, servers = ModelServer(name="a"), [ModelServer(name=f"b{i}") for i in range(4)]
    servers[2] = replace(servers[2], numerics=0.5)
    with a.server.serve_in_thread() as url:

        async def main():
            async with AsyncExitStack() as stack:
                plans = [
                    NamedPlan(
                        name=one.name,
                        plan=_plan(await stack.enter_async_context(one.server.serve())),
                    )
                    for one in servers
                ]
                rules = VerifyRules(floor=0.08)
                first = NamedPlan(name="a", plan=_plan(url))
                found, _ = await verify(first, plans, (), rules, tmp_path, environ={})
                return found

        found = asyncio.run(main())
    assert [one.outcome is ANOTHER for one in found.sides] == [False, False, True, False]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("h:1", "name a reference and a server"),
        ("h:1 h:1", "named twice"),
        ("h:1 --register f --reference g", "give one of them"),
        ("h:1 h:2 --register f", "--register takes one server"),
        ("h:1 --reference f --sibling h:2", "already has"),
        ("h:1 h:2 --probes 0", "--probes must be 1 or more"),
        ("h:1 h:2 --floor -1", "--floor must be"),
        ("h:1 h:2 --floor 0", "measures no floor"),
        ("h:1 h:2 --worker prefill=h:3", "is not a role"),
        ("h:1 h:2 --set verify.text=/none", "verify.text /none"),
    ],
)
def test_commands_that_cannot_mean_anything_are_refused(words, told):
    serve_eval(f"verify --model m {words}", exits=2, tells=told)


def test_the_commands_that_come_next_run_as_they_stand(tmp_path):
    file, words = tmp_path / "m.json", ("--model", "m", "--floor", 0.08, "--json", "--probes", 40)
    a, b = ModelServer(name="a"), ModelServer(name="b", numerics=0.5)
    with a.server.serve_in_thread() as one, b.server.serve_in_thread() as other:
        made = serve_eval(f"verify {one} --register {file}", *words)
        [again] = json.loads(made.stdout)["commands"]
        ran = serve_eval(*shlex.split(again)[1:], "-o", tmp_path / "again")
        assert ran.returncode in (0, 3), ran.stderr
        found = serve_eval(f"verify {one} {other} -o {tmp_path}/found", *words)
        [compare] = json.loads(found.stdout)["commands"]
        ran = serve_eval(*shlex.split(compare)[1:], "--limit", 4, "-o", tmp_path / "both")
        assert ran.returncode in (0, 1, 3), ran.stderr
        assert (tmp_path / "both/comparison.json").exists()
