"""Test pairs of servers that share a key or were compared, through whole commands.

The stand-in's servers check it with code of their own.
"""

import asyncio
import json
import shlex
import sys
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from serve_eval.errors import PlanError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.launch import _write_answers, launch
from serve_eval.evaluation.prepare import prepare
from serve_eval.launchers._standin import config
from serve_eval.launchers._trtllm import kv_transfer
from serve_eval.schema import (
    Endpoint,
    Limits,
    Plan,
    ServerInfo,
    Spec,
    VerdictOutcome,
)
from serve_eval.verdicts.exit_code import FAIL
from serve_eval.workflows.attribute import attribute, legs, prepare_asking
from serve_eval.workflows.compare.compare import CompareRules, CompareSide, compare
from serve_eval.workflows.diagnose.story import diagnose
from tests.cli.command import serve_eval
from tests.json_files import read_json
from tests.launchers.conftest import own_machine, plan_of, standin
from tests.scripted_server import answer, external
from tests.standin.deployments import deployed
from tests.workflows.diagnose.server import make_document_of
from tests.workflows.load.batch_server import targets_of
from tests.workflows.verify.model_server import ModelServer

__all__ = ["own_machine", "plan_of", "standin"]
KEY = "ab" * 32


@pytest.fixture(scope="module")
def plan(data_root):
    return Plan(
        model="m",
        launcher=Spec(name="external", options={}),
        tasks=(Spec(name="gsm8k", options={"max_tokens": 64}),),
        dataset_roots=(str(data_root),),
        limit=8,
        no_reference=True,
        limits=Limits(concurrency=4),
    )


def asked(plan, out, *, kept=None, variable=None):
    """Run a few samples on one pair that shares KEY, then ask it.

    `kept` is what the launch left in its file, `variable` the name of the variable that has KEY.
    """

    async def story():
        async with deployed(
            1, 1, perf_metrics=False, flavour="main", auth_key=KEY, greeted=False
        ) as there:
            here = replace(plan, launcher=external(there.url))
            await evaluate(here, out, environ={})
            sessions = read_json(out / "environment.json")
            sessions[-1]["endpoint"]["info"] |= {
                "servers": {**there.workers, "orchestrator": there.url},
                "log_dir": str(out / "logs"),
            }
            (out / "environment.json").write_text(json.dumps(sessions))
            if kept is not None:
                (out / "logs").mkdir(exist_ok=True)
                (out / "logs" / kv_transfer.KEPT).write_text(kept)
                (out / "logs" / kv_transfer.KEPT).chmod(0o600)
            environ = {variable: KEY} if variable else {}
            asking = await prepare_asking(
                out, here, samples=4, auth_key_env=variable, environ=environ
            )
            return await attribute(out, asking, environ=environ)

    return asyncio.run(story())


@pytest.mark.parametrize("how", [{"kept": f"{KEY}\n"}, {"variable": "PAIR_KEY"}])
def test_a_pair_answers_signed_requests(plan, tmp_path, how):
    done = asked(plan, tmp_path, **how)
    assert (done.in_pairs.joined, done.exit_code) == (4, 0)
    assert KEY not in (tmp_path / "attribution.json").read_text()


@pytest.mark.parametrize("kept", [None, "cd" * 32])
def test_without_the_right_key_the_cause_and_three_ways_out_are_named(plan, tmp_path, kept):
    done = asked(plan, tmp_path, kept=kept)
    assert done.exit_code == 4
    [lost] = [line for line in done.warnings if line.startswith("no pair of workers answered")]
    assert legs.REFUSED in lost
    for way in ("--keep-servers", "--auth-key-env", "auth_key: false"):
        assert way in lost


def test_a_variable_that_is_not_set_is_refused(plan, tmp_path):
    with pytest.raises(PlanError, match="--auth-key-env: the variable NO_KEY is not set"):
        asyncio.run(prepare_asking(tmp_path, plan, auth_key_env="NO_KEY", environ={}))


@pytest.mark.parametrize(
    "params",
    [
        {"encoded_opaque_state": "AAE=", "ctx_info_endpoint": None},
        {"encoded_opaque_state": "AAE=", "ctx_info_endpoint": "tcp://h:1", "draft_tokens": [1]},
        {"encoded_opaque_state": "é", "ctx_info_endpoint": ["tcp://h:1", "tcp://h:2"]},
        {"encoded_opaque_state": None, "ctx_info_endpoint": []},
        {"first_gen_tokens": [7], "ctx_request_id": 1},
    ],
)
def test_the_signature_is_the_one_that_a_worker_computes(params):
    signed = legs.sign(KEY, params)
    config.check(KEY, params, signed)
    assert bool(signed) == any(params.get(name) is not None for name in config._SIGNED)
    if signed:
        with pytest.raises(ValueError, match="Invalid internal"):
            config.check("ef" * 32, params, signed)


def test_the_signature_of_known_data_is_as_published():
    """The digest was computed with openssl over the text {"ctx_info_endpoint":null,...}."""
    params = {"encoded_opaque_state": "AAE=", "ctx_info_endpoint": None}
    assert legs.sign("k", params) == {
        "x-trtllm-disagg-auth": (
            "sha256=2d84bf263f3f013a2937a81d80dcfe493ca887d3985778488c497b6f7b532c02"
        )
    }


def test_a_key_that_others_can_read_or_that_is_a_link_is_not_used(tmp_path):
    endpoint = Endpoint(base_url="http://h/v1", info=ServerInfo(log_dir=str(tmp_path)))
    file = tmp_path / kv_transfer.KEPT
    assert legs.find_key(endpoint, None, {}) is None
    file.write_text(f"{KEY}\n")
    file.chmod(0o644)
    assert legs.find_key(endpoint, None, {}) is None
    file.chmod(0o600)
    assert legs.find_key(endpoint, None, {}) == KEY
    file.rename(tmp_path / "other")
    file.symlink_to(tmp_path / "other")
    assert legs.find_key(endpoint, None, {}) is None


@pytest.mark.slow
def test_a_launched_pair_with_the_default_key_is_asked(standin, plan_of, tmp_path):
    standin("main", STANDIN_AUTH_ENFORCED="1")
    plan = plan_of("trtllm_disaggregated", {"gpus": [0, 1], "ready_timeout_s": 60.0}, limit=4)

    async def story():
        out = tmp_path / "run"
        async with launch(plan, prepare(plan), tmp_path) as endpoint:
            await evaluate(plan, out, environ={}, launching=lambda *_: nullcontext(endpoint))
            asking = await prepare_asking(out, plan, samples=4, environ={})
            return await attribute(out, asking, environ={})

    done = asyncio.run(story())
    assert (done.in_pairs.joined, done.exit_code) == (4, 0)
    assert not list(tmp_path.rglob(kv_transfer.KEPT))


PLAN = Plan(
    model="m",
    launcher=Spec(name="external"),
    tasks=(Spec(name="word_problems", options={"num_samples": 40, "max_tokens": 64}),),
    no_reference=True,
    limits=Limits(concurrency=4),
)


async def _attribute(folder):
    program = str(Path(sys.executable).with_name("serve-eval"))
    process = await asyncio.create_subprocess_exec(
        *(program, "check", "workers", str(folder), "--samples", "12"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    told, _ = await process.communicate()
    return process.returncode or 0, told.decode()


def _compare(out, *, faults, known):
    """Compare two disaggregated pairs, then attribute the comparison while they still run."""
    answers = out / "answers.jsonl"
    _write_answers(answers, prepare(PLAN), lambda task, sample: 0.95)

    async def story():
        size = {"context_0": 2} if faults else None
        async with (
            deployed(1, 1, answers=answers, perf_metrics=False) as a,
            deployed(
                1, 1, answers=answers, faults=faults, tensor_parallel=size, perf_metrics=False
            ) as b,
        ):
            sides = [
                CompareSide(
                    plan=replace(
                        PLAN,
                        launcher=Spec(
                            name="external",
                            options={
                                "base_url": one.url,
                                **({"servers": one.workers} if known else {}),
                            },
                        ),
                    )
                )
                for one in (a, b)
            ]
            rules = CompareRules(rule=Spec(name="paired"), again=0)
            done = await compare(*sides, rules, out / "c", environ={}, show_flips=0)
            return done, *await _attribute(out / "c")

    return asyncio.run(story())


def test_a_damaged_transfer_is_named_from_the_comparison_on(tmp_path):
    faults = {"generation_0": {"wrong_tp": True}}
    done, code, told = _compare(tmp_path, faults=faults, known=True)
    assert [one.verdict.outcome for one in done.tasks] == [VerdictOutcome.FAIL]
    found = diagnose(tmp_path / "c")
    command = f"serve-eval check workers {tmp_path / 'c' / 'b'}"
    assert make_document_of(tmp_path / "c").commands[0] == command
    assert [one.change[0] for one in found.between] == [command]
    assert found.runs[0].findings == ()
    assert code == 1
    assert "the transfer between them, or how they fit together" in " ".join(told.split())


@pytest.mark.parametrize("known", [True, False])
def test_a_sound_pair_is_not_sent_to_its_servers(tmp_path, known):
    done, code, told = _compare(tmp_path, faults={}, known=known)
    assert [one.verdict.outcome for one in done.tasks] != [VerdictOutcome.FAIL]
    commands = make_document_of(tmp_path / "c").commands
    assert not any(one.startswith("serve-eval check workers") for one in commands)
    assert code == (0 if known else 2), told


PROMPTS, EVERY = 30, 10_000
FACES = ("report.html", "junit.xml", "summary.md")


@dataclass(kw_only=True)
class _Solver(ModelServer):
    """A model that solves word problems, or none of them."""

    targets: Mapping[str, str] = field(default_factory=dict)
    wrong: bool = False

    def reply(self, request):
        target = self.targets.get(request.prompt)
        if target is None or request.body.get("logprobs") is not None:
            return super().reply(request)
        return answer(f"#### {int(target) + self.wrong}")


def test_a_bad_worker_is_named_on_all_faces_and_compared_with_a_sound_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    targets = targets_of(EVERY)
    with ExitStack() as stack:
        good, bad = (
            stack.enter_context(_Solver(targets=targets, wrong=wrong).server.serve_in_thread())
            for wrong in (False, True)
        )
        asked = f"--tasks word_problems --limit {PROMPTS} --model m"
        ran = serve_eval(f"run --base-url {good} --no-reference -o run {asked}")
        assert ran.returncode in (0, 3), ran.stderr
        of_run = [Path("run", name).read_bytes() for name in FACES]
        workers = f"--worker {good} --worker {bad} --samples {PROMPTS}"
        done = serve_eval(f"check workers run --json --notify-text line {workers}", exits=FAIL)
        shown = json.loads(done.stdout)
        assert shown["result"] == read_json("run/attribution.json")
        [one] = shown["conclusions"]
        assert (one["outcome"], one["figures"]) == (
            "FAIL",
            "1 of 2 workers is worse than the others",
        )
        assert f"server {bad}: {PROMPTS} of {PROMPTS} wrong, the others 0" in one["cause"]
        assert {case["name"]: case["state"] for case in shown["cases"]} == {
            good: "passed",
            bad: "failure",
        }
        assert all(Path("run/attribution", name).is_file() for name in FACES)
        assert [Path("run", name).read_bytes() for name in FACES] == of_run
        assert Path("line").read_text().startswith("FAIL workers m: 1 of 2 workers is worse")
        [command] = shown["commands"]
        assert command == f"serve-eval verify {good} {bad} --model m"
        verified = serve_eval(*shlex.split(command)[1:])
        assert verified.returncode in (0, 1, 3), verified.stderr
        assert f"{bad} against {good}" in verified.stdout
