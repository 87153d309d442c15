"""Test the requests that commands send, also of samples with choices."""

import asyncio
import json
from dataclasses import replace

import pytest

from serve_eval.cli._dry_run import facts
from serve_eval.client.client import Client
from serve_eval.errors import NotComparableError
from serve_eval.evaluation.engine import send
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.protocol.sampling_fields import fingerprint, sample_key
from serve_eval.protocol.shared import build_task
from serve_eval.schema import (
    Dataset,
    Endpoint,
    Failure,
    FailureKind,
    Limits,
    Need,
    Plan,
    Response,
    Sample,
    Spec,
    Usage,
    VerdictOutcome,
)
from serve_eval.workflows.references import register
from serve_eval.workflows.rescore import rescore
from tests.cli.command import serve_eval
from tests.json_files import read_json
from tests.scripted_server import (
    ScriptedServer,
    answer,
    fail,
    json_reply,
    models,
)

pytestmark = pytest.mark.usefixtures("simulated_here")

RENAMED = (
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use"
    " 'max_completion_tokens' instead."
)
ONLY_ONE = (
    "Unsupported value: 'temperature' does not support 0.0 with this model. Only the default (1) is"
    " supported."
)


def _hosted(request):
    """Answer as a chat model that refuses `max_tokens` and any temperature but 1."""
    body = request.body
    refusal = (
        RENAMED if "max_tokens" in body else ONLY_ONE if body.get("temperature", 1) != 1 else None
    )
    if refusal:
        return json_reply(
            {"error": {"message": refusal, "type": "invalid_request_error", "param": None}}, 400
        )
    return answer("<think>hm</think>#### 7", body={"id": f"c-{request.number}"})


@pytest.fixture
def hosted():
    server = ScriptedServer(_hosted, routes={"/v1/models": models("o9")})
    with server.serve_in_thread() as url:
        yield url, server


def _run(data_root, out, *arguments):
    flags = f"--dataset-root {data_root} --tasks gsm8k --no-reference -o {out}"
    return serve_eval(f"run {flags}", *arguments)


def test_a_hosted_model_that_refuses_fields_is_served_by_the_options_that_its_refusals_name(
    data_root, tmp_path, hosted
):
    url, server = hosted
    flags = [
        "--base-url",
        url,
        "--set",
        "gsm8k.num_samples=20",
        "--set",
        "gsm8k.apply_chat_template=true",
    ]
    flags += ["--set", "gsm8k.truncate_prompt_tokens=null"]
    first = _run(data_root, tmp_path / "1", *flags)
    assert first.returncode == 4
    assert "add --set connection.max_tokens_field=max_completion_tokens" in first.stderr
    flags += ["--set", "connection.max_tokens_field=max_completion_tokens"]
    second = _run(data_root, tmp_path / "2", *flags)
    assert second.returncode == 4
    assert "omit it with --set TASK.temperature=null" in second.stderr
    assert "--allow-mismatch temperature" in second.stderr
    assert len(server.bodies) == 2  # one refusal each, before any other request
    third = _run(data_root, tmp_path / "3", *flags, "--set", "gsm8k.temperature=null")
    assert third.returncode == 3, third.stderr
    last = server.bodies[-1]
    assert "temperature" not in last
    assert last["max_completion_tokens"] == 256
    (task,) = read_json(tmp_path / "3/report.json")["tasks"]
    assert task["fingerprint"]["temperature"] == "null"
    assert task["result"]["scored"] == 20
    records = (tmp_path / "3/samples/gsm8k.jsonl").read_text().splitlines()
    assert {json.loads(line)["response"]["reasoning"] for line in records} == {"hm"}


def test_a_streamed_run_tells_its_times_its_order_and_its_load(data_root, tmp_path):
    flags = [
        "--launcher",
        "simulated",
        "--set",
        "gsm8k.num_samples=300",
        "--set",
        "launcher.latency_s=0.02",
    ]
    done = _run(
        data_root,
        tmp_path / "s",
        *flags,
        "--verbose",
        "--set",
        "limits.stream=true",
        "--set",
        "limits.order_seed=7",
        "--concurrency",
        "auto",
    )
    assert done.returncode == 3, done.stderr
    assert "first token p50" in done.stdout
    assert "order random (seed 7)" in done.stdout
    assert "concurrency steps 32" in done.stdout
    report = read_json(tmp_path / "s/report.json")
    (task,), (load,) = report["tasks"], report["loads"]
    assert task["traffic"]["attempts"] == 300
    assert task["traffic"]["retries"] == {}
    assert 0.02 <= task["traffic"]["ttft_s"]["p50"] <= task["traffic"]["latency_s"]["max"]
    assert load["limits"]["order"] == "random"
    assert load["steps"][0]["concurrency"] == 32
    assert load["max_in_flight"] > 16
    plain = _run(data_root, tmp_path / "p", *flags, "--set", "limits.order=natural")
    assert plain.returncode == 3
    (other,) = read_json(tmp_path / "p/report.json")["tasks"]
    assert other["result"] == task["result"]
    first_asked = [
        json.loads(line)["id"]
        for line in (tmp_path / "s/samples/gsm8k.jsonl").read_text().splitlines()
    ]
    as_planned = [
        json.loads(line)["id"]
        for line in (tmp_path / "p/samples/gsm8k.jsonl").read_text().splitlines()
    ]
    assert first_asked[:10] != as_planned[:10]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--concurrency", "many"], "limits.concurrency: expected a number or auto, not 'many'"),
        (["--concurrency", "0"], "limits.concurrency: must be above 0"),
        (["--concurrency", "100000000"], "100000000 requests in flight need 100000100 open files"),
        (["--set", "limits.order=sideways"], "limits.order: expected "),
        (["--set", "limits.max_error_rate=2"], "limits.max_error_rate: must be at most 1"),
        (["--set", "limits.rate_limit=-1"], "limits.rate_limit: must be above 0"),
        (["--set", "limits.requests_per_minute=0"], "limits.requests_per_minute: must be above 0"),
        (["--set", "connection.max_tokens_field=tokens"], "connection.max_tokens_field: expected "),
        (["--set", "limits.retry_budget=-1"], "limits.retry_budget: must be"),
        (
            ["--set", "limits.known_finish_reasons=content-filter"],
            "limits.known_finish_reasons: 'content-filter' says that no whole answer came",
        ),
    ],
)
def test_limits_that_cannot_be_meant_are_refused_before_anything_starts(
    data_root, tmp_path, flags, said
):
    done = _run(data_root, tmp_path / "out", "--launcher", "simulated", *flags)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["run", "compare"])
def test_names_of_every_time_that_an_option_was_given_count(data_root, tmp_path, command):
    """If only the last list counted, tasks would be left out silently.

    Unknown tasks are named from each list.
    """
    address = {"run": ["--base-url", "127.0.0.1:9"], "compare": ["127.0.0.1:9", "127.0.0.1:8"]}[
        command
    ]
    given = ["--tasks", "gsm8l,mmlu", "--tasks", "humanevil", "-t", "gsm8k"]
    done = serve_eval(
        command,
        *address,
        "--model",
        "m",
        "--dataset-root",
        data_root,
        *given,
        "-o",
        tmp_path / "o",
        exits=2,
        tells="Did you mean 'gsm8k'?",
    )
    assert "Did you mean 'humaneval'?" in done.stderr


def test_lines_of_the_variable_count_as_times(data_root):
    flags = f"--model m --dataset-root {data_root} --no-reference --dry-run --json"
    done = serve_eval(
        f"run --base-url 127.0.0.1:9 {flags}", SERVE_EVAL_TASKS="gsm8k,\nmmlu\n", exits=0
    )
    assert [task["task"] for task in json.loads(done.stdout)["tasks"]] == ["gsm8k", "mmlu"]


def test_a_watch_of_two_tasks_is_refused_and_so_is_a_check_that_no_time_knows(
    data_root,
):
    flags = f"--model m --dataset-root {data_root} --tasks gsm8k --tasks mmlu"
    assert "a watch takes one task, not 2" in serve_eval(f"watch 127.0.0.1:9 {flags}").stderr
    serve_eval("smoke 127.0.0.1:9 --require chta --require tools --dry-run", exits=2, tells="chta")


SAMPLE = Sample(
    id="q",
    prompt="Two and two?\nAnswer:",
    target="B",
    metadata={"subject": "anatomy"},
    choices=(" A", " B", " C"),
)
LIKELIHOOD = Spec(name="mmlu", options={"scoring": "loglikelihood", "num_samples": 57})
TASK = build_task(LIKELIHOOD)


def _send(replies, *, task=TASK, sample=SAMPLE):
    """Return the result of the sample at a server with these replies, and the request bodies."""
    server = ScriptedServer(lambda request: replies(request.prompt), paths=["/v1/completions"])

    async def main():
        limits = Limits(max_attempts=1)
        async with (
            server.serve() as url,
            Client(Endpoint(base_url=url, model="m"), limits) as client,
        ):
            return await send.send(client, task, sample)

    return asyncio.run(main()), server.bodies


def _told(prompt, **logprobs):
    """Reply with the log-probabilities of the prompt and of one choice.

    The prompt has two tokens, the first one without a log-probability. The choice has two tokens
    with a number and half of it.
    """
    number = -float("ABC".index(prompt[-1]) + 1)
    told = {
        "tokens": [prompt[:3], prompt[3:-2], " ", prompt[-1]],
        "token_logprobs": [None, -9.0, number, number / 2],
    }
    return answer(
        prompt,
        finish="length",
        choice={"logprobs": {**told, **logprobs}},
        usage=(4, 0),
        body={"system_fingerprint": "f"},
    )


def test_every_choice_is_a_request_and_its_own_tokens_are_kept():
    result, bodies = _send(_told)
    assert isinstance(result, Response), result
    assert [body["prompt"] for body in bodies] == [
        f"{SAMPLE.prompt}{choice}" for choice in SAMPLE.choices
    ]
    assert {(body["echo"], body["max_tokens"]) for body in bodies} == {(True, 1)}
    assert result.choice_logprobs == ((-1.0, -0.5), (-2.0, -1.0), (-3.0, -1.5))
    assert (result.usage, len(result.attempts)) == (Usage(prompt_tokens=12, completion_tokens=0), 3)
    assert result.system_fingerprint == "f"
    assert TASK.score(SAMPLE, result).answer == "A"


def test_a_question_of_which_one_choice_has_no_answer_is_missing():
    failed, bodies = _send(lambda prompt: fail(500) if prompt.endswith("B") else _told(prompt))
    assert isinstance(failed, Failure)
    assert (failed.kind, failed.retryable, len(failed.attempts), len(bodies)) == (
        FailureKind.HTTP_ERROR,
        True,
        2,
        2,
    )
    other = replace(SAMPLE, id="r", target="A")
    answered, _ = _send(_told)
    accumulator = ScoreAccumulator(TASK, [SAMPLE, other])
    accumulator.add(0, failed)
    accumulator.add(1, answered)
    result = accumulator.result()
    assert (result.planned, result.scored, result.failed) == (2, 1, 1)
    assert (result.value, result.bounds) == (100.0, (50.0, 100.0))
    assert result.breakdown["subject"] == {"anatomy": {"value": 100.0, "scored": 1}}
    traffic = accumulator.traffic
    assert (traffic.attempts, traffic.retries) == (
        5,
        {},
    )  # a request for the next choice is not a retry


def test_where_nothing_tells_the_continuation_apart_there_is_no_answer():
    failed, bodies = _send(lambda prompt: _told(prompt, tokens=None))
    assert isinstance(failed, Failure)
    assert (failed.kind, failed.retryable, len(bodies)) == (FailureKind.INVALID_RESPONSE, False, 1)
    assert "' A'" in failed.message


def test_choices_may_have_a_context_of_their_own_which_is_not_judged():
    sample = replace(SAMPLE, heads=("", " Say", " Well, say"))
    result, bodies = _send(lambda prompt: _told(f"{SAMPLE.prompt}{prompt[-2:]}"), sample=sample)
    ends = [" A", " Say B", " Well, say C"]
    assert [body["prompt"] for body in bodies] == [f"{SAMPLE.prompt}{end}" for end in ends]
    assert isinstance(result, Response), result
    assert result.choice_logprobs == ((-1.0, -0.5), (-2.0, -1.0), (-3.0, -1.5))


def test_whether_a_choice_is_the_likeliest_text_is_kept_and_missing_where_a_task_needs_it():
    needing = replace(TASK, requires=frozenset({Need.LIKELIEST_TOKENS}))

    def told(prompt):
        best = {"x": -9.0} if prompt.endswith("B") else {"y": -0.1}
        return _told(prompt, top_logprobs=[None, {"z": -1.0}, best, best])

    result, _ = _send(told, task=needing)
    assert isinstance(result, Response), result
    assert result.choice_greedy == (False, True, False)
    plain, _ = _send(_told)
    assert isinstance(plain, Response), plain
    assert plain.choice_greedy is None
    failed, _ = _send(_told, task=needing)
    assert isinstance(failed, Failure)
    assert "likeliest" in failed.message


def test_choices_are_in_the_fingerprint_and_in_the_key():
    samples = [SAMPLE, replace(SAMPLE, choices=()), replace(SAMPLE, choices=(" A", " B"))]
    samples.append(replace(SAMPLE, heads=("x", "", "")))
    prints = {
        fingerprint(TASK, Dataset(samples=[sample], files=(), total=1))["samples"]
        for sample in samples
    }
    assert len(prints) == len({sample_key(sample) for sample in samples}) == 4


def test_the_letter_protocol_is_what_it_was_and_its_references_do_not_judge_the_likelihood(
    data_root,
):
    letter = build_task(Spec(name="mmlu"))
    assert "scoring" not in letter.protocol
    assert (TASK.protocol["scoring"], letter.prompt_logprobs) == ("loglikelihood", False)
    plan = _plan(
        data_root,
        model="meta-llama/Llama-2-7b-hf",
        no_reference=False,
        allow_mismatch=("max_tokens",),
    )
    with pytest.raises(
        NotComparableError, match="scoring is 'loglikelihood' here and None with the reference"
    ):
        prepare(plan)


def test_a_limit_takes_whole_questions(data_root):
    [p] = prepare(_plan(data_root, limit=5))
    assert (len(p.dataset.samples), p.hypothesis.num_samples) == (5, 5)
    told = facts(p, repeats=2)
    assert (told["requests"], told["choices"][:4]) == (40, "' A'")


# ------------------------------------------------------------------------------------------------------  # noqa: E501
# a whole task


def _plan(data_root, **more):
    fields = {
        "model": "simulated",
        "launcher": _simulated(),
        "tasks": (LIKELIHOOD,),
        "dataset_roots": (str(data_root),),
        "no_reference": True,
        "limits": Limits(order_seed=1),  # the early stop sees a random part and pauses at random
    }
    return Plan(**{**fields, **more})


def _simulated(**options):
    defaults = {"accuracy": 0.75, "strict_fields": True, "prompt_logprobs": "echo"}
    return Spec(name="simulated", options={**defaults, **options})


def _evaluate_plan(plan, out):
    report = asyncio.run(evaluate(plan, out, environ={}))
    return report.tasks[0]


def test_questions_are_right_as_often_as_the_endpoint_knows_them_and_judged_one_by_one(
    data_root, tmp_path
):
    first = _evaluate_plan(_plan(data_root), tmp_path / "a")
    assert (first.result.planned, first.result.scored, first.traffic.attempts) == (57, 57, 4 * 57)
    assert set(first.result.outcomes) == {"correct", "wrong"}
    assert first.result.value == pytest.approx(100 * first.result.outcomes["correct"] / 57)
    assert 50 < first.result.value < 95
    assert first.result.parts == {"tied": 0.0}
    [scored] = rescore(tmp_path / "a")
    assert (scored.after, scored.changed) == (first.result.value, [])

    register([tmp_path / "a"], tmp_path / "refs")
    judged = _plan(
        data_root,
        no_reference=False,
        references_dir=str(tmp_path / "refs"),
        verdict=Spec(name="paired"),
        repeats=2,
    )
    again = _evaluate_plan(judged, tmp_path / "b")
    assert again.verdict.outcome is VerdictOutcome.PASS
    assert (again.verdict.paired.pairs, again.verdict.paired.difference) == (57, 0.0)
    assert (again.verdict.num_samples, again.verdict.protocol) == (
        57,
        "recorded with the reference",
    )
    assert again.result.stability.majority == again.result.value

    stopped = replace(judged, verdict=Spec(name="classic"), repeats=1, early_stop=0.01)
    worse = _evaluate_plan(replace(stopped, launcher=_simulated(accuracy=0.0)), tmp_path / "c")
    assert worse.verdict.outcome is VerdictOutcome.FAIL
    assert worse.verdict.early.stopped


def test_an_endpoint_without_log_probabilities_of_prompts_is_not_scored(data_root, tmp_path):
    asked = _evaluate_plan(
        _plan(data_root, launcher=_simulated(prompt_logprobs="none")), tmp_path / "out"
    )
    assert asked.verdict.outcome is VerdictOutcome.UNSUPPORTED
    assert (asked.result.value, asked.traffic.attempts) == (None, 0)
