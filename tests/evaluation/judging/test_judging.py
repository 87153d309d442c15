"""Test answers that other models judge.

Each is judged once. A failing or unreadable judge never makes an answer wrong.
"""

import asyncio
import io
import json
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from serve_eval.cli._dry_run import show
from serve_eval.errors import EndpointError, PlanError, RunFolderError
from serve_eval.evaluation.evaluate import evaluate, judge_again
from serve_eval.report.document import print_document
from serve_eval.report.run.document import make_run_document
from serve_eval.schema import FailureKind, Limits, Outcome, Plan, Spec
from serve_eval.storage import run_folder
from serve_eval.storage.answer_origins import ConnectionStep, judges_proofs
from serve_eval.storage.assessments import Judgements
from serve_eval.workflows.diagnose.story import diagnose
from serve_eval.workflows.references import register
from serve_eval.workflows.rescore import rescore
from tests.evaluation.judging.conftest import JudgeServer, fair, unsure

N = 10
TASK = "capitals_judged"
FILE = Path(f"judgements/{TASK}.jsonl")
QUICK = Limits(
    concurrency=4,
    max_attempts=1,
    connect_timeout_s=10.0,
    stall_timeout_s=20.0,
    sample_timeout_s=40.0,
)

pytestmark = pytest.mark.usefixtures("judged_task", "simulated_here")


def _plan(judges, *, count=N, **options):
    return Plan(
        model="my-org/my-model",
        launcher=Spec(name="simulated", options={"accuracy": 0.6}),
        tasks=(
            Spec(name=TASK, options={"judge": {"judges": list(judges), **options}, "count": count}),
        ),
        no_reference=True,
        limits=QUICK,
    )


def _with(servers, story, **options):
    """Run a story while these judges listen.

    The story gets a plan with these judges.
    """

    async def main():
        async with AsyncExitStack() as stack:
            urls = [await stack.enter_async_context(server.serving()) for server in servers]
            judges = [
                {"base_url": url, "model": server.model}
                for url, server in zip(urls, servers, strict=True)
            ]
            await story(_plan(judges, **options))

    asyncio.run(main())


def _records(out):
    return [json.loads(line) for line in (out / FILE).read_text().splitlines()]


def test_answers_are_judged_once_and_the_report_says_by_whom(tmp_path):
    judge, out = JudgeServer(), tmp_path / "out"

    async def story(plan):
        report = await evaluate(plan, out, environ={})
        (task,) = report.tasks
        right = task.result.outcomes[Outcome.CORRECT]
        assert 0 < right < N
        assert task.result.outcomes == {Outcome.CORRECT: right, Outcome.WRONG: N - right}
        assert task.result.value == pytest.approx(100 * right / N)
        assert task.result.parts == {"correctness": pytest.approx(100 * right / N)}
        (told,) = task.judges
        assert (told.name, told.model, told.planned) == ("judge-1", "judge-1", N)
        assert (told.unreadable, told.failed, told.missing) == (0, 0, 0)
        assert (told.traffic.attempts, told.traffic.completion_tokens) == (N, 5 * N)
        said = io.StringIO()
        print_document(make_run_document(report, out), Console(file=said, width=200), verbose=True)
        assert f"   judged by judge-1: {N} judgements; {N} requests, " in said.getvalue()
        again = await evaluate(plan, out, environ={})
        assert again.tasks == report.tasks

    _with([judge], story)
    assert (len(judge.prompts), judge.short) == (N, 1)
    assert {tuple(record["id"].split(" ")[1:4]) for record in _records(out)} == {
        ("judge-1", "correctness", "1")
    }
    scores = [json.loads(line) for line in (out / f"scores/{TASK}.jsonl").read_text().splitlines()]
    assert {score["answer"] for score in scores} == {"correctness 1", "correctness 0"}


def test_a_judge_out_of_step_is_told_of_in_the_report(tmp_path):
    out = tmp_path / "out"

    async def story(plan):
        await evaluate(plan, out, environ={})
        judges_proofs(out / FILE).note(ConnectionStep("a session", 1, out="for the test"))
        for report in (await evaluate(plan, out, environ={}), judge_again(plan, out)):
            (line,) = [line for line in report.warnings if "no request had asked for" in line]
            assert line.startswith(f"1 connection of the judges of {TASK} returned")

    _with([JudgeServer()], story)


def test_what_was_judged_before_a_kill_stays_and_the_rest_is_asked(tmp_path):
    judge, out = (
        JudgeServer(lambda prompt, number: fair(prompt, number) if number < 6 else None),
        tmp_path / "out",
    )

    async def story(plan):
        running = asyncio.create_task(evaluate(plan, out, environ={}))
        await judge.waiting.wait()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        had = _records(out)
        assert had
        answers = (out / f"samples/{TASK}.jsonl").read_bytes()
        with (out / FILE).open("ab") as file:
            file.write(b'{"id": "torn')
        judge.prompts.clear()
        judge.says = fair
        report = await evaluate(plan, out, environ={})
        assert len(judge.prompts) == N - len(had)
        assert _records(out)[: len(had)] == had
        assert (out / f"samples/{TASK}.jsonl").read_bytes() == answers, (
            "the endpoint was not asked again"
        )
        whole = await evaluate(plan, tmp_path / "whole", environ={})
        assert report.tasks[0].result == whole.tasks[0].result

    _with([judge], story)


@pytest.mark.parametrize("bad", [unsure, lambda prompt, number: 500], ids=["unreadable", "failed"])
def test_a_judgement_that_is_missing_is_no_wrong_answer_and_is_asked_for_again(tmp_path, bad):
    doubtful = "country 3?"
    judge = JudgeServer(
        lambda prompt, number: (bad if doubtful in prompt else fair)(prompt, number)
    )
    out = tmp_path / "out"

    async def story(plan):
        (task,) = (await evaluate(plan, out, environ={})).tasks
        result = task.result
        assert (result.scored, result.failed, result.failures) == (
            N - 1,
            1,
            {FailureKind.JUDGE_ERROR: 1},
        )
        right = result.outcomes[Outcome.CORRECT]
        assert result.bounds == (
            pytest.approx(100 * right / N),
            pytest.approx(100 * (right + 1) / N),
        )
        assert task.judges[0].unreadable + task.judges[0].failed == 1
        [diagnosed] = diagnose(out).runs[0].tasks
        told, *messages = diagnosed.breakdown.judge_errors
        assert told.startswith("judge judge-1: 1 ")
        assert all("refused" in one for one in messages)
        assert len(messages) == task.judges[0].failed
        judge.prompts.clear()
        judge.says = fair
        again = (await evaluate(plan, out, environ={})).tasks[0]
        assert len(judge.prompts) == 1
        assert doubtful in judge.prompts[0]
        assert (again.result.scored, again.result.failures, again.judges[0].unreadable) == (
            N,
            {},
            0,
        )

    _with([judge], story)


def test_judges_and_rounds_are_averaged_and_how_far_they_are_apart_is_told(tmp_path):
    strict = JudgeServer(lambda prompt, number: "Verdict: no", model="strict")
    moody = JudgeServer(
        lambda prompt, number: f"Verdict: {'yes' if 'Town' in prompt.split('<answer')[1] else 'no'}"
    )
    servers = [moody, strict]

    async def story(plan):
        (task,) = (await evaluate(plan, tmp_path / "out", environ={})).tasks
        right = task.result.outcomes[Outcome.PARTIAL]
        share = pytest.approx(100 * right / N)
        assert task.result.outcomes == {Outcome.PARTIAL: right, Outcome.WRONG: N - right}
        assert task.result.parts == {
            "correctness": pytest.approx(50 * right / N),
            "judges_apart": share,
            "rounds_apart": 0.0,
        }
        assert [(told.name, told.planned) for told in task.judges] == [
            ("judge-1", 2 * N),
            ("strict", 2 * N),
        ]

    _with(servers, story, rounds=2)
    assert [len(server.prompts) for server in servers] == [2 * N, 2 * N]
    assert len({record["id"].split(" ")[0] for record in _records(tmp_path / "out")}) == 4 * N


def test_half_of_the_judgements_are_enough_for_a_score(tmp_path):
    async def story(plan):
        (task,) = (await evaluate(plan, tmp_path / "out", environ={})).tasks
        assert (task.result.scored, task.judges[1].unreadable) == (N, N)

    unread = JudgeServer(unsure, model="unsure")
    _with([JudgeServer(), unread], story)
    assert len(unread.prompts) == N, "scored answers are not judged again"


def test_a_verdict_that_is_cut_off_is_told_with_what_to_do(tmp_path):
    async def story(plan):
        options = plan.tasks[0].options["judge"]
        assert isinstance(options, dict)
        options["judges"][0]["sampling"] = {"max_tokens": 4}
        (task,) = (await evaluate(plan, tmp_path / "out", environ={})).tasks
        assert (task.result.failures, task.judges[0].truncated) == ({FailureKind.JUDGE_ERROR: N}, N)
        assert any(
            "judge-1 were cut off before the verdict" in warning
            for warning in task.verdict.warnings
        )

    _with(
        [JudgeServer(lambda prompt, number: "So many words before the end.\nVerdict: yes")], story
    )


def test_a_record_that_is_no_judgement_is_refused(tmp_path):
    (tmp_path / "t.jsonl").write_text(
        '{"id": "abc", "failure": {"kind": "timeout", "message": ""}}\n'
    )
    with pytest.raises(RunFolderError, match="'abc' is not a judgement"):
        Judgements(tmp_path / "t.jsonl")


def test_a_judge_that_does_not_answer_is_named_before_anything_is_asked(
    tmp_path,
):
    out = tmp_path / "out"
    plan = _plan([{"base_url": "127.0.0.1:9", "model": "org/judge", "name": "wise"}])
    with pytest.raises(
        EndpointError, match=r"judge wise: http://127\.0\.0\.1:9/v1 does not answer"
    ) as refused:
        asyncio.run(evaluate(plan, out, environ={}))
    assert refused.value.exit_code == 4
    assert "Check that the server is up" in refused.value.hint
    assert (out / f"samples/{TASK}.jsonl").read_bytes() == b""

    async def unknown(plan):
        judge.model = "another"
        with pytest.raises(EndpointError, match=r"judge judge-1: .*does not exist") as refused:
            await evaluate(plan, tmp_path / "unknown", environ={})
        assert "in the scorer's configuration" in refused.value.hint

    judge = JudgeServer()
    _with([judge], unknown)


def test_a_judge_that_ends_meanwhile_ends_the_run_and_what_was_had_is_kept(tmp_path):
    out, count = tmp_path / "out", 40

    async def main():
        judge = JudgeServer()
        serving = judge.serving()
        url = await serving.__aenter__()
        ended = []

        def says(prompt, number):
            if number == 2:
                ended.append(asyncio.create_task(serving.__aexit__(None, None, None)))
            return fair(prompt, number)

        judge.says = says
        plan = _plan([{"base_url": url, "model": "judge-1", "concurrency": 1}], count=count)
        plan = replace(plan, limits=replace(plan.limits, outage_timeout_s=0.5))
        told = []
        with pytest.raises(
            EndpointError, match=r"judge judge-1: no server listens at .* for 0\.5 s"
        ) as stopped:
            await evaluate(plan, out, environ={}, notify=told.append)
        assert "--set limits.outage_timeout_s=S" in stopped.value.hint
        assert any("no server listens" in line for line in told)
        await asyncio.gather(*ended)

    asyncio.run(main())
    records = _records(out)
    had = [one for one in records if "response" in one]
    withdrawn = [one for one in records if "withdrawn" in one]
    assert len(had) > len(withdrawn)
    plan = run_folder.read_plan(out)
    (task,) = judge_again(plan, out).tasks
    assert task.result.failures == {FailureKind.JUDGE_ERROR: count - len(had) + len(withdrawn)}
    assert task.judges[0].missing > 0
    assert any("judgements are still missing" in warning for warning in task.verdict.warnings)


def test_keys_come_from_the_environment_and_go_to_their_judge_alone(tmp_path):
    keyed, plain = JudgeServer(), JudgeServer(model="plain")

    async def story(plan):
        judge = plan.tasks[0].options["judge"]
        assert isinstance(judge, dict)
        judge["judges"][0]["api_key_env"] = "JUDGE_KEY"
        with pytest.raises(
            PlanError, match="judge judge-1: api_key_env: the environment has no JUDGE_KEY"
        ):
            await evaluate(plan, tmp_path / "out", environ={"OPENAI_API_KEY": "main-key"})
        environ = {"OPENAI_API_KEY": "main-key", "JUDGE_KEY": "judge-secret"}
        await evaluate(plan, tmp_path / "out", environ=environ)

    _with([keyed, plain], story)
    assert keyed.keys == {"Bearer judge-secret"}
    assert plain.keys == {None}
    for file in (tmp_path / "out").rglob("*.json*"):
        assert b"judge-secret" not in file.read_bytes()


def test_nothing_is_asked_when_a_run_is_only_looked_at(tmp_path):
    out, new = tmp_path / "out", tmp_path / "new"
    made = []

    async def story(plan):
        made.extend([plan, await evaluate(plan, out, environ={})])

    judge = JudgeServer()
    _with([judge], story)
    plan, report = made
    result = report.tasks[0].result
    assert judge_again(plan, out).tasks[0].result == result
    (told,) = rescore(out, to=new)
    assert (told.changed, told.after) == ([], result.value)
    assert _records(new) == _records(out)
    (registered,) = register([out], tmp_path / "references")
    assert registered.value == result.value
    lines = (out / FILE).read_text().splitlines(keepends=True)
    (out / FILE).write_text("".join(lines[:-1]))
    (told,) = rescore(out)
    assert told.answered == N - 1
    assert "1 answers have no score" in told.notes[0]
    with pytest.raises(RunFolderError, match="1 of 10 samples"):
        register([out], tmp_path / "references")
    assert judge_again(plan, out).tasks[0].judges[0].missing == 1
    assert len(judge.prompts) == N


def test_a_repeat_that_says_the_same_is_not_judged_again(tmp_path):
    judge = JudgeServer()

    async def story(plan):
        (task,) = (await evaluate(replace(plan, repeats=3), tmp_path / "out", environ={})).tasks
        assert (task.result.scored, task.judges[0].planned) == (3 * N, 3 * N)

    _with([judge], story)
    assert len(judge.prompts) == N


async def test_an_endpoint_may_judge_itself_and_that_is_said(tmp_path):
    def both(prompt, number):
        if "<answer-" in prompt:
            return 500 if endpoint.short < 2 else fair(prompt, number)
        return f"Town {prompt.rstrip('?').split()[-1]}"

    endpoint = JudgeServer(both, model="my-org/my-model")
    async with endpoint.serving() as url:
        plan = replace(_plan([{}]), launcher=Spec(name="external", options={"base_url": url}))
        (task,) = (await evaluate(plan, tmp_path / "out", environ={})).tasks
        assert task.result.failures == {FailureKind.JUDGE_ERROR: N}
        endpoint.prompts.clear()
        endpoint.short = 2
        (task,) = (await evaluate(plan, tmp_path / "out", environ={})).tasks
        assert task.result.value == 100.0
        assert len(endpoint.prompts) == N, "its answers were kept"
        assert any(
            "the model judges itself (itself)" in warning for warning in task.verdict.warnings
        )


def test_a_task_that_is_judged_cannot_stop_early(tmp_path):
    async def story(plan):
        (task,) = (
            await evaluate(replace(plan, early_stop=0.01), tmp_path / "out", environ={})
        ).tasks
        assert any(
            "no early stop: answers are judged" in warning for warning in task.verdict.warnings
        )

    _with([JudgeServer()], story)


def test_a_dry_run_tells_how_many_requests_judges_get_at_most(
    capsys,
):
    judges = [{"base_url": "h:1", "model": "a"}, {"base_url": "h:1", "model": "b"}]
    plan = replace(_plan(judges, metrics=["correctness", "toxicity"], rounds=3), repeats=2)
    show(plan, as_json=False)
    told = capsys.readouterr().out
    assert f"judge requests: at most {12 * N} to a, at most {12 * N} to b" in told
    requests = f"{2 * N} requests in total, and at most {24 * N} to judges"
    assert f"{requests}, at most 780 tokens; nothing was sent" in told


def test_two_judges_of_one_name_that_are_not_the_same_are_refused():
    same = {"base_url": "h:1", "model": "a"}
    with pytest.raises(PlanError, match="two judges are called 'a'"):
        show(_plan([same, same]), as_json=False)
