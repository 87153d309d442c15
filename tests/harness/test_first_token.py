"""Test the token before a text without context: reported, given, added by the server, or none."""

import asyncio
import json
import math
import re
from dataclasses import replace

import msgspec
import pytest

from serve_eval.evaluation.capabilities import TEXT
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.schema import Plan, Spec, VerdictOutcome
from serve_eval.schema.media import prompt_sha256
from serve_eval.storage import run_folder
from serve_eval.workflows.rescore import rescore
from tests.harness.made_tasks import CAPITALS, served, write

pytest.importorskip("lm_eval", reason="needs the optional extra lm-eval")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

TEXTS = (
    "A quick fox jumps over a dog.",
    "It rained\nall day,  and then  some.",
    "Lamps burn late here.",
)
VALUE = {"": -0.5, "<s>": -0.25}
"""Log-probability of each token of a text, by the text sent before it."""
WORDS = sum(len(re.split(r"\s+", text)) for text in TEXTS)
BARE = """
task: made_bare
dataset_path: json
dataset_kwargs: {data_files: {test: capitals.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: ""
doc_to_choice: "{{['<s>' ~ capital ~ ' is big', country ~ ' is']}}"
doc_to_target: 0
target_delimiter: ""
metric_list: [{metric: acc}]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = write(tmp_path_factory.mktemp("tasks"))
    (root / "lm_eval/made_bare.yaml").write_text(BARE)
    return root


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Write known log-probabilities of texts and choices.

    Each token of a text has one value with <s> before the text and another one without. Choices
    that begin with <s> are likely, the others are not.
    """
    known = {before + text: value for before, value in VALUE.items() for text in TEXTS}
    for country, capital in CAPITALS:
        known |= {f"<s>{capital} is big": -0.1, f"<s>{country} is": -2.0, f"{country} is": -2.0}
    lines = (
        {"sha256": prompt_sha256(text), "right": str(value), "wrong": "", "probability": 1}
        for text, value in known.items()
    )
    file = tmp_path_factory.mktemp("known") / "answers.jsonl"
    file.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return file


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def _plan(url, folder, name, **options):
    launcher = Spec(name="external", options={"base_url": url})
    task = Spec(name=f"lm_eval:{name}", options=options)
    return Plan(
        model="simulated",
        launcher=launcher,
        tasks=(task,),
        include_path=(str(folder),),
        no_reference=True,
    )


def _run(plan, out):
    report = asyncio.run(evaluate(plan, out, environ={}))
    [task] = report.tasks
    return task, [
        line
        for line in report.warnings
        if "begin each text" in line or "first token of each text" in line
    ]


def _perplexity(value, *, less=0):
    """Return the perplexity by word of the texts without `less` tokens.

    A word is a token of the simulated endpoint.
    """
    return math.exp(-value * (WORDS - less) / WORDS)


MARK = {"begins_with": "<s>"}


@pytest.mark.parametrize("form", ["echo", "prompt_logprobs"])
@pytest.mark.parametrize(
    ("server", "options", "prefix", "value"),
    [
        ({**MARK, "tells_beginning": "vllm"}, {}, "<s>", _perplexity(-0.25)),
        ({**MARK, "tells_beginning": "llama_cpp"}, {}, "<s>", _perplexity(-0.25)),
        ({**MARK, "tells_beginning": "vllm", "puts_beginning": True}, {}, True, _perplexity(-0.5)),
        ({**MARK, "puts_beginning": True}, {}, True, _perplexity(-0.5)),
        (MARK, {"prefix": "<s>"}, "<s>", _perplexity(-0.25)),
        (MARK, {}, "", _perplexity(-0.5, less=3)),
        ({**MARK, "tells_beginning": "vllm"}, {"prefix": ""}, "", _perplexity(-0.5, less=3)),
        (
            {"tells_beginning": "vllm"},
            {},
            "",
            _perplexity(-0.5, less=3),
        ),  # it does not take <end> for a token of its own
    ],
)
def test_a_text_is_judged_behind_what_begins_texts(
    folder,
    answers,
    tmp_path,
    form,
    server,
    options,
    prefix,
    value,
):
    with served(answers=answers, prompt_logprobs=form, **server) as (url, stats):
        plan = _plan(url, folder, "made_texts", **options)
        task, warnings = _run(plan, tmp_path / "out")
        sent = {body["prompt"] for body in stats.bodies}
    assert task.result.value == pytest.approx(value, rel=1e-12)
    assert (task.result.scored, task.result.failed) == (3, 0)
    assert json.loads(task.fingerprint["prefix"]) == prefix
    before = prefix if isinstance(prefix, str) else ""
    assert {before + text for text in TEXTS} <= sent
    assert len(warnings) == (prefix == "")
    if warnings:
        assert "the first token of each text is left out" in warnings[0]
    # The endpoint is gone now: the plan holds what it reported.
    assert run_folder.read_plan(tmp_path / "out").tasks[0].options["prefix"] == prefix
    again, warned = _run(plan, tmp_path / "out")
    assert (again.result.value, again.fingerprint, warned) == (
        task.result.value,
        task.fingerprint,
        warnings,
    )
    [told] = rescore(
        tmp_path / "out", ["lm_eval:made_texts.metric=byte_perplexity"], include_path=[str(folder)]
    )
    assert told.after == pytest.approx(value ** (WORDS / sum(map(len, TEXTS))), rel=1e-9)


@pytest.mark.parametrize(
    "server", [{**MARK, "tells_beginning": "vllm"}, {**MARK, "puts_beginning": True}]
)
def test_a_choice_without_a_context_stands_behind_what_begins_texts(
    folder, answers, tmp_path, server
):
    with served(answers=answers, prompt_logprobs="echo", **server) as (url, _):
        task, warnings = _run(_plan(url, folder, "made_bare"), tmp_path / "out")
        prior, _ = _run(_plan(url, folder, "made_prior"), tmp_path / "prior")
    assert (task.result.value, task.result.failed, warnings) == (100.0, 0, [])
    assert prior.result.failed == 0
    [journal] = (tmp_path / "out/samples").glob("*.jsonl")
    first = json.loads(journal.read_text().splitlines()[0])["response"]["choice_logprobs"]
    # <s> in the text itself is not sent twice; a server that adds one adds it before that, too
    assert first == (
        [[-0.1] * 3, [-2.0] * 2] if "tells_beginning" in server else [[-0.1] * 4, [-2.0] * 2]
    )


def test_a_choice_without_a_context_is_refused_before_anything_is_asked_where_nothing_tells(
    folder, answers, tmp_path
):
    with served(answers=answers, prompt_logprobs="echo") as (url, stats):
        for name in ("made_bare", "made_prior"):
            task, _ = _run(_plan(url, folder, name), tmp_path / name)
            assert task.verdict.outcome is VerdictOutcome.UNSUPPORTED
            assert "lacks the log-probability of a text's first token" in task.verdict.reasons[0]
            assert "prefix=" in task.verdict.reasons[0]
        assert not any("is big" in body["prompt"] for body in stats.bodies)
        whole, _ = _run(_plan(url, folder, "made_capitals"), tmp_path / "whole")
    assert whole.verdict.outcome is VerdictOutcome.NO_REFERENCE
    assert json.loads(whole.fingerprint["prefix"]) == ""


def test_a_tokenizer_tells_it_unless_the_endpoint_puts_or_knows_no_such_token(
    folder, answers, tmp_path
):
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "tokenizer_config.json").write_text(
        '{"bos_token": {"content": "<s>"}, "eos_token": "</s>"}'
    )
    for number, (server, prefix) in enumerate(
        [(MARK, "<s>"), ({**MARK, "puts_beginning": True}, True), ({}, "")]
    ):
        with served(answers=answers, prompt_logprobs="echo", **server) as (url, _):
            plan = _plan(url, folder, "made_texts", tokenizer=str(tokenizer))
            task, _ = _run(plan, tmp_path / str(number))
        assert json.loads(task.fingerprint["prefix"]) == prefix


def test_a_run_that_began_without_goes_on_without(folder, answers, tmp_path):
    """An older version saved a plan without the token, for example."""
    with served(answers=answers, prompt_logprobs="echo", **MARK) as (url, _):
        plan = _plan(url, folder, "made_texts")
        _run(plan, tmp_path / "out")
    saved = json.loads((tmp_path / "out/plan.json").read_text())
    del saved["plan"]["tasks"][0]["options"]["prefix"]
    (tmp_path / "out/plan.json").write_text(json.dumps(saved))
    with served(answers=answers, prompt_logprobs="echo", tells_beginning="vllm", **MARK) as (
        url,
        _,
    ):
        moved = asyncio.run(
            evaluate(_plan(url, folder, "made_texts"), tmp_path / "out", environ={}, moved=True)
        )
    assert json.loads(moved.tasks[0].fingerprint["prefix"]) == ""
    assert moved.tasks[0].result.value == pytest.approx(_perplexity(-0.5, less=3))


def test_an_endpoint_is_asked_once_for_all_tasks_that_send_the_same(folder, answers, tmp_path):
    """BLiMP has 67 tasks, and an endpoint may be slow to report nothing."""
    with served(answers=answers, prompt_logprobs="echo", tells_beginning="vllm", **MARK) as (
        url,
        stats,
    ):
        plan = _plan(url, folder, "made_texts")
        _run(plan, tmp_path / "one")
        alone = stats.requests[prompt_sha256(f"<s>{TEXT}")]
        others = (
            Spec(name="lm_eval:made_prior"),
            Spec(name="lm_eval:made_bare", options={"extra_body": {"top_k": 1}}),
        )
        report = asyncio.run(
            evaluate(replace(plan, tasks=(*plan.tasks, *others)), tmp_path / "all", environ={})
        )
        assert [json.loads(task.fingerprint["prefix"]) for task in report.tasks] == ["<s>"] * 3
        assert (alone, stats.requests[prompt_sha256(f"<s>{TEXT}")]) == (1, 3)


def test_two_tokens_before_a_text_are_told(folder, answers, tmp_path):
    with served(answers=answers, prompt_logprobs="echo", puts_beginning=True, **MARK) as (url, _):
        task, [warning] = _run(_plan(url, folder, "made_texts", prefix="<s>"), tmp_path / "out")
    assert task.result.failed == 0
    assert "two tokens begin each text" in warning


def test_launched_endpoints_of_ours_are_known_before_they_start(folder, tmp_path):
    """The value of the embedded model is the sum of the log-probabilities of the tokens."""
    server = {"accuracy": 1.0, "prompt_logprobs": "echo", **MARK, "tells_beginning": "vllm"}
    plan = Plan(
        model="m",
        launcher=Spec(name="simulated", options=server),
        tasks=(Spec(name="lm_eval:made_texts"),),
        include_path=(str(folder),),
        no_reference=True,
    )
    task, warnings = _run(plan, tmp_path / "simulated")
    assert (json.loads(task.fingerprint["prefix"]), warnings) == ("<s>", [])
    assert task.result.value == pytest.approx(math.exp(0.5))
    embedded = Plan(
        model="m",
        launcher=Spec(name="embedded"),
        tasks=(Spec(name="lm_eval:made_texts"),),
        include_path=(str(folder),),
        no_reference=True,
    )
    task, warnings = _run(embedded, tmp_path / "embedded")
    assert (json.loads(task.fingerprint["prefix"]), warnings) == ("<|end|>", [])
    assert task.result.value == pytest.approx(math.exp(-_of_tokens() / WORDS), rel=1e-6)


def _of_tokens():
    """Return the log-probability of the texts after the end token, by the tokens' ids."""
    from aiohttp import ClientSession

    from serve_eval.launchers._embedded.server import create_app
    from serve_eval.launchers._embedded.tokenizer import Tokenizer
    from serve_eval.launchers._http.server import serve_app
    from serve_eval.launchers.embedded import WEIGHTS

    tokenizer = Tokenizer(WEIGHTS / "tokenizer.json")

    async def asked():
        app = create_app(WEIGHTS, {"m": "none"})
        total = 0.0
        async with serve_app(app) as url, ClientSession() as session:
            for text in TEXTS:
                ids = [tokenizer.special["<|end|>"], *tokenizer.encode(text)]
                body = {"model": "m", "prompt": ids, "echo": True, "logprobs": 0, "max_tokens": 1}
                async with session.post(f"{url}/completions", json=body) as reply:
                    told = (await reply.json())["choices"][0]["logprobs"]["token_logprobs"]
                total += math.fsum(told[1 : len(ids)])
        return total

    return asyncio.run(asked())
