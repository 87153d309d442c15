"""Test over real sockets that a path which was not used is found and named."""

from dataclasses import replace

import pytest

from serve_eval.errors import PlanError
from serve_eval.evaluation.evaluate import judge_again
from serve_eval.schema import PathClaim, Plan, ProofState, Spec, VerdictOutcome
from serve_eval.storage.run_folder import open_folder, read_plan
from tests.evidence.path_proof.deployments import CLAIMS, Deployment, PathFault, run

N = 24


def _states(report):
    return {one.claim.value: one.state for one in report.path}


def _reasons(report):
    reasons = report.tasks[0].verdict.reasons
    return [line for line in reasons if line.startswith("path not proven: ")]


def _warnings(report):
    return [line for line in report.warnings if line.startswith("path: ")]


def _write_references(folder, accuracy):
    folder.mkdir()
    (folder / "word_problems.yaml").write_text(f"m:\n  - accuracy: {accuracy}\n")
    return str(folder)


def test_a_sound_deployment_proves_everything(tmp_path):
    deployed = Deployment()
    report = run(deployed, tmp_path / "run")
    assert set(_states(report).values()) == {ProofState.PROVEN}
    assert len(report.path) == 4
    assert (_reasons(report), _warnings(report)) == ([], [])
    assert report.tasks[0].verdict.outcome is VerdictOutcome.NO_REFERENCE
    # The prompts that are asked again are not in the engines' counts.
    counts = {one.server: one.counts for one in report.engine.servers}
    generation = counts["generation_0"]
    assert generation.requests == N


@pytest.mark.parametrize("fault", CLAIMS)
def test_each_fault_is_found_and_named(fault, tmp_path):
    report = run(Deployment(fault), tmp_path / "run", expect=(CLAIMS[fault],))
    assert _states(report) == {CLAIMS[fault]: ProofState.REFUTED}
    [reason] = _reasons(report)
    assert reason.startswith(f"path not proven: {CLAIMS[fault]}: ")
    assert _EVIDENCE[fault] in reason
    assert report.tasks[0].verdict.outcome is VerdictOutcome.INCONCLUSIVE
    assert report.exit_code == 3


_EVIDENCE = {
    PathFault.BYPASS: (
        "context servers had 0 of 24 requests; no KV moved: the generation servers prefilled 1,680"
        " of 1,680 prompt tokens themselves"
    ),
    PathFault.NO_TRANSFER: "kv_transfer: no KV moved: the generation servers prefilled 1,680 of",
    PathFault.NO_ACCEPTANCE: "speculation accepted nothing: 0 of 216 draft tokens",
    PathFault.NO_SPECULATION: "no engine has counters of drafts",
    PathFault.COLD: "prefix cache hits: 0 of 1,680 prompt tokens, though prompts share up to ",
    PathFault.UNSTEADY: "4 of 24 prompts got another answer when asked again, for example ",
}


def test_without_counters_a_named_path_is_inconclusive_and_says_what_would_show_it(
    tmp_path,
):
    heard = []
    deployed = Deployment(readable=False)
    report = run(deployed, tmp_path / "run", expect=("kv_transfer",), notify=heard.append)
    [reason] = _reasons(report)
    assert "kv_transfer: does not show from outside: no server of the endpoint counts" in reason
    assert "To show it: with vLLM, let /metrics of the generation servers be read" in reason
    assert report.exit_code == 3
    assert [line for line in heard if "kv_transfer is expected, and no generation server" in line]


def test_servers_that_nobody_names_is_unknown(tmp_path):
    report = run(Deployment(PathFault.BYPASS), tmp_path / "run", named=False)
    states = _states(report)
    assert states.pop("deterministic") is ProofState.PROVEN
    assert set(states.values()) == {ProofState.UNKNOWN}


@pytest.mark.parametrize(
    ("accuracy", "alone", "outcome", "code"),
    [
        (0.0, VerdictOutcome.PASS, VerdictOutcome.INCONCLUSIVE, 3),
        (99.0, VerdictOutcome.FAIL, VerdictOutcome.FAIL, 1),
    ],
)
def test_a_pass_becomes_inconclusive_and_a_fail_stays(accuracy, alone, outcome, code, tmp_path):
    folder, references = tmp_path / "run", _write_references(tmp_path / "refs", accuracy)
    report = run(
        Deployment(PathFault.BYPASS),
        folder,
        expect=("kv_transfer",),
        no_reference=False,
        references_dir=references,
        allow_mismatch=("system_prompt",),
    )
    assert (report.tasks[0].verdict.outcome, report.exit_code) == (outcome, code)
    assert len(_reasons(report)) == 1
    # Judged again, the expectation is still there, and can be taken back.
    saved = read_plan(folder)
    assert saved.expect == {"kv_transfer": True}
    again = judge_again(saved, folder)
    assert (again.path, again.exit_code) == (report.path, code)
    free = judge_again(replace(saved, expect={"kv_transfer": False}), folder)
    assert (free.path, free.tasks[0].verdict.outcome) == ((), alone)


def test_what_nobody_expects_and_looks_wrong_is_a_warning(tmp_path):
    report = run(Deployment(PathFault.BYPASS), tmp_path / "run", expect=())
    assert report.path == ()
    [line] = _warnings(report)
    assert line.startswith("path: kv_transfer is not expected, but it looks wrong: context servers")
    assert report.tasks[0].verdict.outcome is VerdictOutcome.NO_REFERENCE
    silent = run(Deployment(PathFault.BYPASS), tmp_path / "silent", expect={"kv_transfer": False})
    assert _warnings(silent) == []


def test_drafts_and_a_cache_that_never_help_are_warnings(tmp_path):
    for fault, claim in (
        (PathFault.NO_ACCEPTANCE, "speculation"),
        (PathFault.COLD, "prefix_cache"),
    ):
        [line] = _warnings(run(Deployment(fault), tmp_path / claim, expect=()))
        assert line.startswith(f"path: {claim} is not expected, but it looks wrong: ")


def test_a_server_without_requests_is_named(tmp_path):
    report = run(Deployment(PathFault.IDLE), tmp_path / "run", expect=(), samples=40)
    [line] = _warnings(report)
    assert line.startswith("path: context_1 (http://127.0.0.1:")
    assert line.endswith(" had 0 of the 40 requests to context servers")
    assert _warnings(run(Deployment(), tmp_path / "sound", expect=(), samples=40)) == []


# ------------------------------------------------------------------------------------------------
# Determinism


def test_repeats_show_it_without_further_requests(tmp_path):
    deployed = Deployment(PathFault.UNSTEADY)
    report = run(deployed, tmp_path / "run", expect=("deterministic",), repeats=2)
    assert "4 of 24 prompts got another answer" in _reasons(report)[0]
    longer = [one for one in deployed.front.asked if one.max_tokens >= 10]
    assert len(longer) == 2 * N


def test_a_finished_run_is_asked_again_if_that_is_expected_later(tmp_path):
    deployed, folder = Deployment(PathFault.UNSTEADY), tmp_path / "run"
    run(deployed, folder, expect=())
    asked = len(deployed.front.asked)
    report = run(deployed, folder, expect=("deterministic",))
    assert _states(report) == {"deterministic": ProofState.REFUTED}
    assert N <= len(deployed.front.asked) - asked <= N + 6
    asked = len(deployed.front.asked)
    assert run(deployed, folder, expect=("deterministic",)).path == report.path
    assert len(deployed.front.asked) == asked


def test_the_folder_keeps_the_expectations_of_its_last_session(tmp_path):
    plan = Plan(model="m", launcher=Spec(name="external"), tasks=())
    for expect in ({}, {"kv_transfer": True}, {"kv_transfer": False}):
        with open_folder(tmp_path / "run", replace(plan, expect=expect), {}, own=True):
            assert read_plan(tmp_path / "run").expect == expect


# ------------------------------------------------------------------------------------------------
# Promises of launchers

PROMISING = """
from contextlib import asynccontextmanager
from serve_eval.schema import Endpoint

def commands(context, *, base_url: str, promised: str, servers: dict[str, str]) -> list[list[str]]:
    return []

def expects(context, *, base_url: str, promised: str, servers: dict[str, str]) -> list[str]:
    return [promised]

def lint(context, *, base_url: str, promised: str, servers: dict[str, str]) -> list[str]:
    return ["the left and the right side disagree"]

@asynccontextmanager
async def launch(context, *, base_url: str, promised: str, servers: dict[str, str]):
    yield Endpoint(base_url=base_url, model="m", info={"servers": servers})
"""


def _launch(deployed, folder, promised, **more):
    own = folder / "own" / "launchers"
    own.mkdir(parents=True)
    (own / "promising.py").write_text(PROMISING)
    return run(
        deployed,
        folder / "run",
        launcher=Spec(name="promising", options={"promised": promised}),
        include_path=(str(folder / "own"),),
        **{"expect": (), **more},
    )


def test_what_a_launcher_promises_must_happen(tmp_path):
    heard = []
    report = _launch(Deployment(PathFault.BYPASS), tmp_path, "kv_transfer", notify=heard.append)
    [finding] = report.path
    assert (finding.claim, finding.expected_by) == (PathClaim.KV_TRANSFER, "launcher")
    assert report.tasks[0].verdict.outcome is VerdictOutcome.INCONCLUSIVE
    assert report.endpoint.info.expects == ("kv_transfer",)
    line = "the left and the right side disagree"
    assert f"warning: {line}" in heard
    assert line in report.warnings
    again = judge_again(read_plan(tmp_path / "run"), tmp_path / "run")
    assert again.path == report.path


def test_what_a_launcher_promises_and_does_not_show_is_a_warning(tmp_path):
    report = _launch(Deployment(readable=False), tmp_path, "kv_transfer")
    assert report.tasks[0].verdict.outcome is VerdictOutcome.NO_REFERENCE
    [line] = _warnings(report)
    assert line.startswith(
        "path: kv_transfer, which the launcher started, does not show from outside: "
    )


def test_a_plan_takes_back_what_a_launcher_promises(tmp_path):
    report = _launch(
        Deployment(PathFault.BYPASS), tmp_path, "kv_transfer", expect={"kv_transfer": False}
    )
    assert (report.path, _warnings(report)) == ((), [])


def test_unknown_parts_of_a_path_are_refused(tmp_path):
    with pytest.raises(PlanError, match=r"expects\(\) returned 'kv_transport'"):
        _launch(Deployment(), tmp_path, "kv_transport")
    with pytest.raises(PlanError, match=r"expect\.kv_transport: unknown part of a path"):
        run(Deployment(), tmp_path / "other", expect=("kv_transport",))
