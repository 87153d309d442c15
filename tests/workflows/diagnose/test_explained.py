"""Test losses that cuts, lost answers, other prompts or another protocol explain."""

import asyncio
from dataclasses import replace

import pytest

from serve_eval.evaluation.evaluate import evaluate
from serve_eval.launchers._embedded.server import create_app
from serve_eval.launchers._http.server import serve_app
from serve_eval.launchers.embedded import WEIGHTS as OTHER_PROTOCOL_WEIGHTS
from serve_eval.schema import Limits, Plan, Spec, VerdictOutcome
from serve_eval.workflows.compare.compare import CompareRules, CompareSide, compare
from serve_eval.workflows.diagnose.finding import WEIGHTS
from serve_eval.workflows.diagnose.judged import read_folder
from serve_eval.workflows.diagnose.run_rules import RULE
from serve_eval.workflows.diagnose.story import diagnose, find_leads
from serve_eval.workflows.references import register
from tests.cli.command import serve_eval
from tests.evidence.prompt_audit.test_read import (
    TEMPLATE,
    local_side,
    make_folder,
    serve_folder,
)
from tests.scripted_server import ScriptedServer, answer, external, fail
from tests.workflows.diagnose.server import (
    Said,
    Server,
    answers_to,
    list_lines,
    plan_for,
    run,
    sound,
)

MAX_TOKENS = 512


def is_hit(asked):
    """Return True for the samples of two steps."""
    return asked.target.count("\n") == 2


def cut(asked):
    if not is_hit(asked):
        return sound(asked)
    return Said(text="First,", finish="length", tokens=MAX_TOKENS)


def refuse(asked):
    return Said(text="out of memory", status=400) if is_hit(asked) else sound(asked)


def cut_or_refuse(asked):
    return refuse(asked) if asked.chance("half") < 0.5 else cut(asked)


def leave_empty(asked):
    return Said(text="") if is_hit(asked) else sound(asked)


def lose(asked):
    return Said(text="0") if is_hit(asked) else sound(asked)


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """Return a plan whose reference is the run of a sound endpoint, and that run."""
    folder = tmp_path_factory.mktemp("judged")
    plan = replace(plan_for(folder, num_samples=250), no_reference=True, references_dir=None)
    run(plan, Server(act=sound, answers=answers_to(plan.tasks[0])), folder / "a")
    register([folder / "a"], folder / "own")
    return replace(plan, no_reference=False, references_dir=str(folder / "own")), folder / "a"


FAULTS = {
    "cut": (cut, ("m",), "truncated"),
    "refuse": (refuse, ("m",), "refused"),
    "cut_or_refuse": (cut_or_refuse, ("m",), "refused"),
    "leave_empty": (leave_empty, ("m",), "empty"),
    "other_model": (lose, ("n",), "other_model"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_run_names_the_fault_alone(name, judged, tmp_path):
    act, models, rule = FAULTS[name]
    plan, _ = judged
    answers = answers_to(plan.tasks[0])
    run(plan, Server(act=act, answers=answers, models=models), tmp_path / "b")
    [found] = diagnose(tmp_path / "b").runs
    rules = [one.rule for one in found.findings]
    assert rule in rules
    assert "slice" not in rules
    assert WEIGHTS not in " ".join(one.told for one in found.findings)


def test_a_comparison_names_the_cut_answers_alone(judged, tmp_path):
    plan, a = judged
    plan = replace(plan, no_reference=True, references_dir=None)
    run(plan, Server(act=cut, answers=answers_to(plan.tasks[0])), tmp_path / "b")
    sides = [CompareSide(plan=plan, folder=folder) for folder in (a, tmp_path / "b")]
    rules = CompareRules(rule=Spec(name="paired"), again=0)
    asyncio.run(compare(*sides, rules, tmp_path / "c", environ={}, show_flips=0))
    leads = find_leads(read_folder(tmp_path / "c"))
    assert leads.places == ()
    assert leads.causes["word_problems"].startswith("B cuts ")
    assert WEIGHTS not in "\n".join(list_lines(tmp_path / "c"))


def test_a_slice_that_nothing_explains_is_named(judged, tmp_path):
    plan, _ = judged
    run(plan, Server(act=lose, answers=answers_to(plan.tasks[0])), tmp_path / "b")
    assert "slice" in [one.rule for one in diagnose(tmp_path / "b").runs[0].findings]


def test_the_block_and_the_line_name_the_same_cause(tmp_path):
    """The embedded model needs more than 20 tokens for most problems."""
    cutting = "--set word_problems.max_tokens=20 --allow-mismatch max_tokens"
    done = serve_eval(
        f"run -t word_problems --limit 100 --launcher embedded -o {tmp_path}/run"
        f" --notify-text {tmp_path}/line {cutting}",
        exits=1,
    )
    cause = (tmp_path / "line").read_text().partition("likely: ")[2].rpartition("; ")[0]
    assert "wrong answers end at exactly max_tokens=20" in cause
    block = " ".join(done.stdout.split())
    assert f"likely {cause}" in block
    assert "one slice" not in block
    assert WEIGHTS not in block


THERE, HERE = 128, 100
"""The limits of the reference and of the run."""
DIFFERENT = "the reference was measured under a different protocol"


def _spoil(cut, wrong):
    """Return a server that cuts this share of the answers, and answers that of others wrongly."""

    def act(asked):
        if asked.chance("spoilt") < cut:
            limit = int(asked.body["max_tokens"])
            return Said(text="First,", finish="length", tokens=limit)
        return sound(asked, accuracy=0.0 if asked.chance("spoilt") < cut + wrong else 0.95)

    return act


def _measure(folder, before, after, **options):
    """Return the findings, and the likely cause, of a run with another limit than before."""
    plan = plan_for(folder, num_samples=250, max_tokens=THERE)
    answers = answers_to(plan.tasks[0])
    first = replace(plan, no_reference=True, references_dir=None)
    run(first, Server(act=before, answers=answers), folder / "a")
    register([folder / "a"], folder / "own")
    task = Spec(name="word_problems", options={"num_samples": 250, "max_tokens": HERE, **options})
    here = replace(
        plan,
        tasks=(task,),
        references_dir=str(folder / "own"),
        allow_mismatch=("max_tokens", *options),
    )
    run(here, Server(act=after, answers=answers), folder / "b")
    causes = find_leads(read_folder(folder / "b")).causes
    return list(diagnose(folder / "b").runs[0].findings), causes.get("word_problems", "")


@pytest.mark.parametrize(
    ("before", "cut", "wrong", "told"),
    [
        (0.0, 0.0, 0.4, "0 of 250 answers are cut, which explains at most 0.0 of the 40.8 points"),
        (
            0.0,
            0.05,
            0.4,
            "12 of 250 answers are cut, which explains at most 4.8 of the 45.6 points",
        ),
        (0.4, 0.4, 0.3, "in the reference's runs), which explains at most 0.0 of"),
    ],
)
def test_a_limit_that_cuts_too_few_answers_is_a_remark(before, cut, wrong, told, tmp_path):
    found, cause = _measure(tmp_path, _spoil(before, 0.0), _spoil(cut, wrong))
    [other] = [one for one in found if one.rule == "protocol"]
    assert all(one.rule in ("protocol", "truncated") for one in found[1:])
    assert (other.minor, other.leads) == (True, False)
    assert told in other.told
    assert found[0].rule == "even_loss"
    assert cause.startswith("weights, precision, chat template or sampling")


def test_a_limit_that_cuts_most_of_the_lost_answers_stays_likely(tmp_path):
    found, cause = _measure(tmp_path, sound, _spoil(0.4, 0.05))
    [other] = [one for one in found if one.rule == "protocol"]
    assert (other.minor, other.leads) == (False, True)
    assert "wrong answers end at exactly max_tokens=100" in cause
    assert "even_loss" not in [one.rule for one in found]


def test_another_field_stays_likely_whatever_the_limit_cuts(tmp_path):
    found, cause = _measure(tmp_path, sound, _spoil(0.0, 0.4), temperature=0.5)
    [other] = [one for one in found if one.rule == "protocol"]
    assert (other.minor, other.leads) == (False, True)
    assert cause.startswith(f"{DIFFERENT}: ")
    assert "temperature" in cause


def test_damaged_weights_are_named_where_the_limit_cuts_nothing(tmp_path):
    async def ask(damage, limit, folder, **options):
        async with serve_app(create_app(OTHER_PROTOCOL_WEIGHTS, {"m": damage})) as url:
            task = Spec(name="word_problems", options={"num_samples": 200, "max_tokens": limit})
            plan = Plan(
                model="m",
                launcher=external(url),
                tasks=(task,),
                limits=Limits(concurrency=32),
                **options,
            )
            return (await evaluate(plan, folder, environ={})).tasks[0].verdict.outcome

    asyncio.run(ask("none", THERE, tmp_path / "sound", no_reference=True))
    register([tmp_path / "sound"], tmp_path / "own")
    judged = {"references_dir": str(tmp_path / "own"), "allow_mismatch": ("max_tokens",)}
    outcome = asyncio.run(ask("int3", HERE, tmp_path / "damaged", **judged))
    assert outcome is VerdictOutcome.FAIL
    [cause] = find_leads(read_folder(tmp_path / "damaged")).causes.values()
    assert "weights, precision" in cause


PROMPTS = 100


def _run(out, references=None, *, lost, tokens=20):
    """Ask a server that refuses some prompts; it answers the others with so many tokens."""
    numbers = {}

    def reply(request):
        number = numbers.setdefault(request.prompt, len(numbers))
        if lost and request.prompt.startswith("Question:") and number % (PROMPTS // lost) == 1:
            return fail(500, "boom")
        return answer("so it is #### 7", usage=(9, min(tokens, request.body["max_tokens"])))

    async def ask():
        async with ScriptedServer(reply, paths=["/v1/completions"]).serve() as url:
            plan = Plan(
                model="m",
                launcher=external(url),
                tasks=(Spec(name="word_problems", options={"num_samples": PROMPTS}),),
                limits=Limits(max_attempts=1),
                no_reference=references is None,
                references_dir=None if references is None else str(references),
            )
            return await evaluate(plan, out, environ={})

    return asyncio.run(ask())


@pytest.mark.parametrize("lost", [10, 0])
def test_the_cause_of_an_open_verdict_is_the_lost_answers(lost, tmp_path):
    _run(tmp_path / "sound", lost=0)
    register([tmp_path / "sound"], tmp_path / "references")
    report = _run(tmp_path / "out", tmp_path / "references", lost=lost, tokens=12)
    causes = find_leads(read_folder(tmp_path / "out")).causes
    if not lost:
        assert (report.tasks[0].verdict.outcome, causes) == (VerdictOutcome.PASS, {})
        return
    assert report.tasks[0].verdict.outcome is VerdictOutcome.INCONCLUSIVE
    assert report.tasks[0].verdict.reasons[0].startswith("too_many_missing")
    assert "missing answers failed with http_error 500" in causes["word_problems"]


SYSTEM = "<|system|>\nBe nice.<|end|>\n" + TEMPLATE


def _told(tmp_path, served=TEMPLATE, files=TEMPLATE, *, more=0, n=20):
    server = serve_folder(make_folder(tmp_path / "served", served), counted_more=more)
    return [one.told for one in _diagnose(tmp_path, server, files, n) if one.rule == RULE]


def _diagnose(tmp_path, server, files=TEMPLATE, n=20):
    plan = plan_for(tmp_path, num_samples=n, apply_chat_template=True)
    plan = replace(plan, references_dir=None, no_reference=True)

    async def ask():
        async with server.serve() as url:
            here = replace(plan, launcher=external(url))
            await evaluate(here, tmp_path / "out", environ={})

    asyncio.run(ask())
    with local_side(make_folder(tmp_path / "files", files)) as local:
        [run] = diagnose(tmp_path / "out", local=local).runs
    return run.findings


def test_counts_that_agree_are_told(tmp_path):
    [told] = _told(tmp_path)
    assert told.startswith("the server counts as many tokens as the folder ")
    assert told.endswith(" in 20 of 20 prompts")


@pytest.mark.parametrize(
    ("served", "more", "told"),
    [
        (TEMPLATE, 1, "1 token more than the folder F in 20 of 20 prompts: it adds the first"),
        (TEMPLATE, -1, "1 token fewer than the folder F in 20 of 20 prompts: the first token"),
        (SYSTEM, 0, "more than the folder F in 20 of 20 prompts: another chat template, such as"),
    ],
)
def test_a_constant_difference_has_one_cause(tmp_path, served, more, told):
    [found] = _told(tmp_path, served, more=more)
    assert told in found.replace(str(tmp_path / "files"), "F")


def test_a_template_that_writes_a_date_is_named(tmp_path):
    dated = "{{ strftime_now('%d %b %Y') }} " + TEMPLATE
    assert any("writes a date" in one for one in _told(tmp_path, files=dated))


@pytest.mark.parametrize(("tokens", "reported"), [(1, False), (4, False), (9, True)])
def test_generated_tokens_that_no_text_has_are_told(tmp_path, tokens, reported):
    server = serve_folder(make_folder(tmp_path / "served"), answer_tokens=tokens)
    found = _diagnose(tmp_path, server)
    said = [one.told for one in found if one.rule == "answer_counts"]
    assert bool(said) is reported
    assert all(f"counts {tokens}.0 tokens per answer" in one for one in said)


def test_few_prompts_say_nothing(tmp_path):
    assert _told(tmp_path, n=9, more=1) == []
