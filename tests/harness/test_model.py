"""Test our client as lm-eval's model.

Covers its own functions, its command line, and a comparison with our engine.
"""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from serve_eval.errors import EndpointError, PlanError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.schema import Limits, Plan, Spec
from serve_eval.schema.media import prompt_sha256
from serve_eval.workflows.export import export
from tests.harness.made_tasks import served, write

pytest.importorskip("lm_eval", reason="needs the optional extra lm-eval")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

NAMES = (
    "made_sums",
    "made_capitals",
    "made_texts",
    "made_last_word",
    "made_contexts",
    "made_exact",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="module")
def known(folder, tmp_path_factory):
    """Return what a simulated model knows of the tasks: right about half of the time."""
    out = tmp_path_factory.mktemp("known") / "out"
    launcher = Spec(name="simulated", options={"accuracy": 0.5, "prompt_logprobs": "echo"})
    asyncio.run(evaluate(_plan(folder, launcher), out, environ={}))
    return out / "logs/simulated.answers.jsonl"


@pytest.fixture
def answers(tmp_path):
    """Write right answers to the prompts `Say N`, and the log-probabilities of some texts."""
    lines = [
        {"sha256": prompt_sha256(f"Say {i}"), "right": f"{i}! Next", "wrong": "", "probability": 1}
        for i in range(20)
    ]
    for text, number in (("A b c d", "-0.5"), ("A b x y", "-2"), ("<s> A b", "-1")):
        lines.append(
            {"sha256": prompt_sha256(text), "right": number, "wrong": "", "probability": 1}
        )
    file = tmp_path / "answers.jsonl"
    file.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return file


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """Remove the user's key."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def _plan(folder, launcher):
    specs = tuple(Spec(name=f"lm_eval:{name}") for name in NAMES)
    return Plan(
        model="m", launcher=launcher, tasks=specs, include_path=(str(folder),), no_reference=True
    )


def _asked(*arguments):
    return SimpleNamespace(args=arguments)


def _model(url, **more):
    from serve_eval.lm_eval_model import ServeEvalLM

    return ServeEvalLM(base_url=url, **{"model": "simulated", **more})


def test_answers_come_in_the_order_of_the_requests_and_several_at_once(answers):
    with served(answers=answers, latency_s=0.02) as (url, stats):
        asked = [
            _asked(f"Say {i}", {"until": [" Next"], "max_gen_toks": 7, "top_k": 3})
            for i in range(20)
        ]
        assert _model(url, concurrency=5).generate_until(asked) == [f"{i}!" for i in range(20)]
        assert 1 < stats.max_concurrent <= 5
        body = stats.bodies[-1]
        assert (body["max_tokens"], body["temperature"], body["top_k"], body["stop"]) == (
            7,
            0.0,
            3,
            [" Next"],
        )
        assert body["model"] == "simulated"


def test_likelihoods_of_continuations_and_of_texts(answers):
    with served(answers=answers, prompt_logprobs="echo") as (url, _):
        model = _model(url, model=None)
        pairs = [_asked("A b", " c d"), _asked("A b ", "x y"), _asked("A", " b x y")]
        assert model.loglikelihood(pairs) == [(-1.0, True), (-4.0, False), (-6.0, False)]
        assert model.loglikelihood_rolling([_asked("A b c d")]) == [-1.5]
        with pytest.raises(PlanError, match="has no context"):
            model.loglikelihood([_asked("", "A")])
        behind = _model(url, prefix="<s> ")
        assert behind.loglikelihood_rolling([_asked("A b")]) == [-2.0]
    with served(
        answers=answers, prompt_logprobs="echo", begins_with="<s>", puts_beginning=True
    ) as (url, _):
        own = _model(url)
        assert own.loglikelihood_rolling([_asked("A b c d")]) == [-2.0]
        assert own.loglikelihood([_asked("", "A b c d"), _asked("A b", " c d")]) == [
            (-2.0, True),
            (-1.0, True),
        ]
    with (
        served(answers=answers) as (url, _),
        pytest.raises(EndpointError, match="the endpoint lacks prompt log-prob"),
    ):
        _model(url).loglikelihood(pairs)


def test_what_begins_a_text_is_told_by_the_endpoint_or_a_tokenizer(answers, tmp_path, caplog):
    mark = {"answers": answers, "prompt_logprobs": "echo", "begins_with": "<s> "}
    with served(**mark, tells_beginning="vllm") as (url, _):
        model = _model(url)
        assert model.loglikelihood_rolling([_asked("A b")]) == [-2.0]
        assert model.loglikelihood([_asked("", "A b"), _asked("", "<s> A b")]) == [
            (-2.0, False),
            (-2.0, False),
        ]
        bare = _model(url, prefix="")
        assert bare.loglikelihood_rolling([_asked("A b c d")]) == [-1.5]
        assert "first token of each text is left out" in caplog.text
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<s> "}')
    with served(**mark) as (url, _):
        assert _model(url, tokenizer=str(tmp_path)).loglikelihood_rolling([_asked("A b")]) == [-2.0]
        assert _model(url, tokenizer="org/name").loglikelihood_rolling([_asked("A b c d")]) == [
            -1.5
        ]


def test_what_the_endpoint_does_not_tell_is_no_no(answers, monkeypatch):
    from serve_eval.client.wire_format import logprobs

    monkeypatch.setattr(logprobs, "_likeliest", lambda choice: [])
    with served(answers=answers, prompt_logprobs="echo") as (url, _):
        assert _model(url).loglikelihood([_asked("A b", " c d")]) == [(-1.0, None)]


def test_a_request_without_an_answer_ends_it_with_the_count(answers):
    kept = []
    with served(answers=answers, failure_rate=0.3, failure_kind="500") as (url, _):
        model = _model(url, max_attempts=1)
        model.set_cache_hook(SimpleNamespace(add_partial=lambda *one: kept.append(one)))
        with pytest.raises(
            EndpointError, match=r"(\d+) of 20 requests have no answer: http_error"
        ) as caught:
            model.generate_until([_asked(f"Say {i}", {"until": []}) for i in range(20)])
    failed = int(str(caught.value).split()[0])
    assert 0 < failed < 20
    assert len(kept) == 20 - failed, "received answers are in lm-eval's cache"
    assert not any(result == "" for _, _, result in kept)


def test_what_passes_is_tried_again(answers):
    with served(answers=answers, failure_rate=0.5, failures_per_prompt=1) as (url, _):
        given = [_asked(f"Say {i}", {"until": [" Next"]}) for i in range(6)]
        assert _model(url).generate_until(given) == [f"{i}!" for i in range(6)]


def test_an_argument_that_it_does_not_know_is_refused():
    with pytest.raises(PlanError, match=r"concurency: unknown\. Did you mean 'concurrency'"):
        _model("http://127.0.0.1:1", concurency=3)
    with pytest.raises(PlanError, match="not a key"):
        _model("http://127.0.0.1:1", api_key_env="sk-abcdefghijklmnop")


def test_lm_evals_own_models_stay_known_beside_ours():
    text = (
        "import serve_eval.lm_eval_model; from lm_eval.api.registry import get_model;"
        " print(get_model('dummy'))"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert "DummyLM" in done.stdout, done.stderr


def test_turns_are_sent_as_turns(answers):
    with served(answers=answers) as (url, stats):
        model = _model(url)
        turns = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
        text = model.apply_chat_template([*turns, {"role": "user", "content": "Bye"}])
        model.generate_until([_asked(text, {"until": []})])
        assert [turn["content"] for turn in stats.bodies[-1]["messages"]] == ["Hello", "Hi", "Bye"]
        with pytest.raises(PlanError, match="plain text"):
            model.loglikelihood([_asked(text, "A")])


def test_lm_evals_command_line_and_our_engine_say_the_same_of_every_document(
    folder, known, tmp_path
):
    """Compare the samples and the results, which are in the same files.

    lm-eval's own tools read ours.
    """
    with served(answers=known, prompt_logprobs="echo", model="m") as (url, _):
        report = asyncio.run(
            evaluate(
                _plan(folder, Spec(name="external", options={"base_url": url})),
                tmp_path / "out",
                environ={},
            )
        )
        command = [sys.executable, "-m", "serve_eval.lm_eval_model", "run", "--model", "serve-eval"]
        command += [
            "--model_args",
            f"base_url={url},model=m,concurrency=4",
            "--tasks",
            ",".join(NAMES),
        ]
        command += [
            "--include_path",
            ".",
            "--output_path",
            str(tmp_path / "theirs"),
            "--log_samples",
        ]
        told = _lm_eval(command, folder)
    assert told.returncode == 0, told.stderr[-2000:]
    assert any(0 < (task.result.value or 0) < 100 for task in report.tasks)
    ours = _read(export(tmp_path / "out", include_path=[str(folder)]).files)
    theirs = _read((tmp_path / "theirs/m").iterdir())
    assert ours.keys() == theirs.keys() == {"results", *NAMES}
    for name in NAMES:
        assert ours[name] == theirs[name], name
        figures = ours["results"]["results"][name]
        assert figures.keys() == theirs["results"]["results"][name].keys()
        for key, value in figures.items():
            other = theirs["results"]["results"][name][key]
            # for a value that is not a mean it comes from a bootstrap
            if "stderr" not in key or value != "N/A":
                assert value == (pytest.approx(other) if isinstance(value, float) else other), (
                    name,
                    key,
                )
    for key in ("versions", "n-shot", "higher_is_better", "n-samples", "task_hashes"):
        assert ours["results"][key] == theirs["results"][key], key
    assert theirs["results"].keys() <= ours["results"].keys()
    sums = next(task for task in report.tasks if task.result.task == "lm_eval:made_sums")
    assert (
        sums.result.value
        == 100 * theirs["results"]["results"]["made_sums"]["exact_match,strict-match"]
    )


def test_what_the_user_can_act_on_is_said_in_a_line(folder):
    command = [
        sys.executable,
        "-m",
        "serve_eval.lm_eval_model",
        "run",
        "--model",
        "serve-eval",
        "--tasks",
        "made_sums",
    ]
    command += ["--model_args", "base_url=127.0.0.1:9,modle=m", "--include_path", "."]
    told = _lm_eval(command, folder)
    assert told.returncode == 2
    assert "error: --model_args modle: unknown. Did you mean 'model'?" in told.stderr
    assert "Traceback" not in told.stderr


def test_lm_evals_own_tools_read_a_run_of_a_task_of_ours(data_root, tmp_path):
    import datasets
    from lm_eval import utils

    plan = Plan(
        model="my-org/m",
        launcher=Spec(name="simulated", options={"accuracy": 0.5, "prompt_logprobs": "echo"}),
        tasks=(
            Spec(name="gsm8k"),
            Spec(name="mmlu", options={"scoring": "loglikelihood"}),
            Spec(name="perplexity"),
        ),
        dataset_roots=(str(data_root),),
        limit=4,
        no_reference=True,
        limits=Limits(),
    )
    asyncio.run(evaluate(plan, tmp_path / "out", environ={}))
    files = [str(file) for file in export(tmp_path / "out").files]
    assert Path(files[0]).parent.name == utils.sanitize_model_name("my-org/m")
    assert utils.get_results_filenames(files) == files[:1]
    samples = utils.get_sample_results_filenames(files)
    assert [utils.get_file_task_name(Path(file).name) for file in samples] == [
        "gsm8k",
        "mmlu",
        "perplexity",
    ]
    assert (
        len({utils.get_file_datetime(Path(file).name).removesuffix(".json") for file in files}) == 1
    )
    assert utils.get_latest_filename(files[1:]) in files
    content = json.loads(Path(files[0]).read_text())
    table = utils.make_table(content)
    assert all(name in table for name in ("gsm8k", "strict-match", "mmlu", "perplexity"))
    for file in samples:
        rows = datasets.load_dataset(
            "json", data_files=file, split="train", cache_dir=str(tmp_path / "cache")
        )
        assert len(rows) == 4
        assert {"doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter"} <= set(
            rows.column_names
        )
    datasets.load_dataset(
        "json", data_files=files[0], split="train", cache_dir=str(tmp_path / "cache")
    )


def _lm_eval(command, folder):
    """Run a command next to the data of the tasks, without a network."""
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    return subprocess.run(
        command, cwd=folder / "lm_eval", capture_output=True, text=True, env=offline, check=False
    )


def _read(files):
    """Return the results, and the lines of the samples by task."""
    found = {}
    for file in sorted(files):
        if file.name.startswith("results_"):
            found["results"] = json.loads(file.read_text())
        else:
            name = file.name.removeprefix("samples_").rpartition("_")[0]
            found[name] = [json.loads(line) for line in file.read_text().splitlines()]
    return found
