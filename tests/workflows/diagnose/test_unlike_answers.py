"""Test what diagnose reads in answers that are unlike the reference's."""

import asyncio
from dataclasses import replace

import pytest

from serve_eval.evaluation.evaluate import evaluate
from serve_eval.launchers._embedded.server import create_app
from serve_eval.launchers._http.server import serve_app
from serve_eval.launchers.embedded import WEIGHTS
from serve_eval.report.task_line import list_counted
from serve_eval.schema import (
    Cut,
    CutEffect,
    Limits,
    Metric,
    Outcome,
    Plan,
    Response,
    Spec,
    Usage,
    Verdict,
    VerdictOutcome,
)
from serve_eval.storage.scores import ScoreRecord
from serve_eval.verdicts import reference_samples
from serve_eval.verdicts.below_reference import count_wrong_at_most
from serve_eval.verdicts.reference_samples import StoredAnswers, pack, unpack
from serve_eval.workflows.diagnose.evidence import TaskEvidence, read
from serve_eval.workflows.diagnose.finding import AskedSample, Finding
from serve_eval.workflows.diagnose.judged import read_folder
from serve_eval.workflows.diagnose.run_rules import findings
from serve_eval.workflows.diagnose.story import find_leads
from serve_eval.workflows.diagnose.unlike import COUNTED, Before, keep_surplus, read_side
from serve_eval.workflows.references import register
from tests.made_results import make_result
from tests.scripted_server import ScriptedServer, answer, external

ACCURACY = Metric(name="accuracy", scale=100.0, lo=0.0, hi=1.0, higher_is_better=True)
N = 200
CUT = "truncated"


def _asked(name, *, bad, cut):
    outcome = Outcome.WRONG if bad else Outcome.CORRECT
    response = Response(
        text="so it is 4",
        finish_reason="length" if cut else "stop",
        usage=Usage(prompt_tokens=9, completion_tokens=9),
        attempts=(),
    )
    line = ScoreRecord(id=f"{name}", outcome=outcome, value=float(not bad), target="17")
    return AskedSample(
        id=f"{name}", response=response, failure=None, attempts=(), line=line, bad=bad
    )


def _task(bad, cut):
    asked = tuple(_asked(n, bad=n in bad, cut=n in cut) for n in range(N))
    return TaskEvidence(name="t", fingerprint={"task": "t"}, asked=asked, report=None)


def _finding(task):
    shown = [one for one in task.asked if one.lost and COUNTED[CUT](task, one)]
    return Finding(
        rule=CUT,
        told=f"{len(shown)} wrong answers are cut",
        change=("--set t.max_tokens=60",),
        count=len(shown),
        of=N,
        explains=len(shown),
        lost=len(task.lost),
        task="t",
    )


def _names(numbers):
    return frozenset(map(str, numbers))


EVERY = _names(range(N))
SOUND = Before(
    name="the reference's first run",
    ids=EVERY,
    lost=_names(range(80)),
    marked={CUT: _names(range(75))},
)
"""80 wrong answers, 75 of which are cut."""


@pytest.mark.parametrize(
    ("cut", "before", "explains", "leads"),
    [
        (range(75), SOUND, 0, False),  # as many as the reference: none of the loss
        (range(20, 97), SOUND, 0, False),  # others, about as many
        (range(120), SOUND, 45, True),
        (range(120), None, 120, False),  # nothing to compare with
        (range(120), Before(name="the reference"), 120, False),
        (range(120), Before(name="the reference", most=80), 40, True),
        (range(75), Before(name="the reference", most=80), 75, False),
        (range(120), replace(SOUND, marked={}), 40, True),  # 40 of them were right before
        (range(75), replace(SOUND, marked={}), 75, False),
    ],
)
def test_only_the_surplus_explains(cut, before, explains, *, leads):
    task = _task(range(130), cut)
    [one] = keep_surplus([_finding(task)], task, before)
    assert (one.explains, one.leads) == (explains, leads)
    assert bool(one.change) == bool(explains)


def test_a_property_of_right_answers_too_is_not_bounded_by_the_wrong_ones():
    task = _task(range(130), range(N))  # all answers are cut, the right ones as well
    [one] = keep_surplus([_finding(task)], task, Before(name="the reference", most=20))
    assert (one.explains, one.leads) == (130, False)


@pytest.mark.parametrize(("cut", "explains"), [(range(75), 0), (range(120), 45)])
def test_the_other_side_has_the_property_of_each_answer(cut, explains):
    task, other = _task(range(130), cut), _task(range(80), range(75))
    [one] = keep_surplus([_finding(task)], task, read_side("A", other))
    assert one.explains == explains
    assert "(75 in A)" in one.told


def _result(**options):
    return make_result(500, 41.2, metric=ACCURACY, **options)


def _verdict(reference, cut=None):
    effect = None
    if cut is not None:
        effect = CutEffect(
            cut=191, value=None, outcome=None, reference_cut=cut[0], reference_answers=cut[1]
        )
    return Verdict(
        task="t",
        outcome=VerdictOutcome.FAIL,
        rule="classic",
        evaluated=41.2,
        reference=reference,
        cut=effect,
    )


CUT_191 = {"cut": {Cut.MAX_TOKENS: 191}}
UNREADABLE = {"outcomes": {Outcome.UNPARSED: 290}}


@pytest.mark.parametrize(
    ("result", "verdict", "before", "told"),
    [
        (CUT_191, _verdict(58.2, (192, 500)), None, ""),
        (CUT_191, _verdict(58.2, (384, 1000)), None, ""),
        (CUT_191, _verdict(58.2, (100, 1000)), None, "191 of 500 answers cut off at max_tokens"),
        (CUT_191, _verdict(58.2), None, ""),
        (CUT_191, _verdict(None), None, ""),
        (CUT_191, _verdict(58.2), CUT_191, ""),
        (CUT_191, _verdict(58.2), {}, "191 of 500 answers cut off at max_tokens"),
        (UNREADABLE, _verdict(58.2), None, "290 of 500 answers unreadable"),
        (UNREADABLE, _verdict(45.0), None, ""),  # 275 may have been
        (UNREADABLE, _verdict(58.2), UNREADABLE, ""),
        ({"repaired": 40}, _verdict(58.2), None, "40 of 500 answers repaired, so that their first"),
    ],
)
def test_the_one_line_names_only_a_surplus(result, verdict, before, told):
    other = None if before is None else _result(**before)
    found = " ".join(list_counted(_result(**result), verdict, other))
    assert found.startswith(told)
    assert bool(found) == bool(told)


@pytest.mark.parametrize(
    ("value", "higher", "graded", "most"),
    [
        (80.0, None, False, 20),
        (80.0, None, True, 40),
        (80.0, False, False, 80),
        (100.0, None, True, 0),
        (10.0, None, True, 100),
    ],
)
def test_a_value_bounds_the_number_of_wrong_answers(value, *, higher, graded, most):
    found = count_wrong_at_most(ACCURACY, value, 100, higher_is_better=higher, graded=graded)
    assert found == most
    assert count_wrong_at_most(replace(ACCURACY, hi=None), value, 100, graded=graded) is None


def test_a_damaged_model_that_is_cut_as_before_is_not_explained_by_its_cuts(tmp_path):
    """Fails if a limit is named that cut the sound model as often."""

    async def ask(damage, folder, references):
        async with serve_app(create_app(WEIGHTS, {"m": damage})) as url:
            plan = Plan(
                model="m",
                launcher=external(url),
                tasks=(Spec(name="word_problems", options={"num_samples": 200, "max_tokens": 30}),),
                limits=Limits(concurrency=32),
                no_reference=references is None,
                references_dir=None if references is None else str(references),
            )
            await evaluate(plan, folder, environ={})

    asyncio.run(ask("none", tmp_path / "sound", None))
    register([tmp_path / "sound"], tmp_path / "references")
    asyncio.run(ask("int3", tmp_path / "damaged", tmp_path / "references"))
    run = read(tmp_path / "damaged")
    assert run.tasks[0].outcome is VerdictOutcome.FAIL
    [cut] = [one for one in findings(run) if one.rule == CUT]
    assert (cut.explains, cut.change) == (0, ())
    assert "in the reference's first run)" in cut.told
    [cause] = find_leads(read_folder(tmp_path / "damaged")).causes.values()
    assert "max_tokens" not in cause


PROMPTS, TOKENS = 60, 20


def _usual(number, text):
    return text, TOKENS, "stop"


def _run(out, said, references=None):
    numbers = {}

    def reply(request):
        number = numbers.setdefault(request.prompt, len(numbers))
        text = f"So {number} of {len(request.prompt)} make {number + 7}, which is what was asked."
        text, tokens, end = said(number, text)
        return answer(text, finish=end, usage=(9, min(tokens, request.body["max_tokens"])))

    async def ask():
        async with ScriptedServer(reply, paths=["/v1/completions"]).serve() as url:
            plan = Plan(
                model="m",
                launcher=external(url),
                tasks=(Spec(name="word_problems", options={"num_samples": PROMPTS}),),
                no_reference=references is None,
                references_dir=None if references is None else str(references),
            )
            await evaluate(plan, out, environ={})

    asyncio.run(ask())


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unlike")
    _run(folder / "run", _usual)
    register([folder / "run"], folder / "references")
    return folder / "references"


def _find(out):
    return [one for one in findings(read(out)) if one.rule == "unlike"]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (_usual, None),
        (lambda n, text: (text, TOKENS + n % 3 - 1, "stop"), None),
        (lambda n, text: (text, TOKENS - 3, "stop"), "answers are shorter than the reference's"),
        (lambda n, text: (text, TOKENS + 3, "stop"), "answers are longer than the reference's"),
        (
            lambda n, text: (f"{n} " + "!" * 30 if n % 3 == 0 else text, TOKENS, "stop"),
            "20 of 60 answers repeat themselves to the end, and 0 of the reference's",
        ),
        (
            lambda n, text: ("Все так, и это верно." + text if n % 3 == 0 else text, 20, "stop"),
            "20 of 60 answers have Cyrillic letters, and 0 of the reference's",
        ),
        (
            lambda n, text: (text, TOKENS, "length" if n % 3 == 0 else "stop"),
            "20 of 60 answers were cut at max_tokens, and 0 of the reference's",
        ),
        (
            lambda n, text: (
                "The answer to all of these is 12." if n % 3 == 0 else text,
                TOKENS,
                "stop",
            ),
            "20 of 60 answers equal the answer to another prompt, and 0 of the reference's",
        ),
        (lambda n, text: (f"{n} " + "!" * 30 if n % 6 == 0 else text, TOKENS, "stop"), None),
    ],
    ids=["same", "near", "shorter", "longer", "loops", "script", "cut", "shared", "too few"],
)
def test_answers_unlike_the_reference_are_reported(references, tmp_path, said, told):
    _run(tmp_path / "run", said, references)
    found = _find(tmp_path / "run")
    assert [one.told.startswith(told or "nothing") for one in found] == [True] * bool(told)


def test_stored_answers_are_packed_and_read_again(references):
    [file] = references.glob("samples/*.json")
    content = reference_samples.read(file, _checksum(references))
    assert content.answers.lengths == (TOKENS,) * PROMPTS
    assert content.answers.scripts == frozenset()
    odd = StoredAnswers(
        counted=False,
        lengths=(0, 70000, 5),
        cut=(True, False, True),
        looping=(False, True, False),
        shared=(False, False, True),
        scripts=frozenset({"CJK", "GREEK"}),
    )
    again = unpack(pack(odd), 3)
    assert again.lengths == (0, 65535, 5)
    assert (again.cut, again.looping, again.shared) == (odd.cut, odd.looping, odd.shared)
    assert (again.counted, again.scripts) == (False, odd.scripts)
    with pytest.raises(ValueError, match="belong to 4 answers"):
        unpack(pack(odd), 4)
    assert odd.take([2, 0]).lengths == (5, 0)


def _checksum(references):
    [line] = [
        line for line in (references / "word_problems.yaml").read_text().splitlines()
        if "sha256" in line
    ]  # fmt: skip
    return line.rpartition(":")[2].strip().strip("'\"")
