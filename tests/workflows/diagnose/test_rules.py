"""Each rule finds its fault in a real run, and sound runs are not accused."""

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from serve_eval.datasets.generated import write_gsm8k
from serve_eval.errors import RunFolderError
from serve_eval.protocol.shared import build_task
from serve_eval.schema import (
    Attribution,
    DataRoots,
    Limits,
    Plan,
    Spec,
    WorkerShare,
    WorkerTimes,
)
from serve_eval.workflows.compare.compare import CompareRules, CompareSide, compare
from serve_eval.workflows.diagnose.evidence import read
from serve_eval.workflows.diagnose.story import diagnose
from serve_eval.workflows.references import register
from tests.workflows.diagnose.server import (
    Act,
    Said,
    Server,
    answers_to,
    list_lines,
    make_document_of,
    plan_for,
    run,
    sound,
)


def half(asked):
    return asked.chance("half") < 0.5


def cut(asked):
    return Said(text="12+30", finish="length", tokens=128) if half(asked) else sound(asked)


def cut_by_the_server(asked):
    return Said(text="12+30", finish="length", tokens=40) if half(asked) else sound(asked)


def thinks_on(asked):
    return (
        Said(text="<think>Let me see", finish="length", tokens=128) if half(asked) else sound(asked)
    )


def stopped_thinking(asked):
    return Said(text="<think>Let me see", stop_reason="\n\n") if half(asked) else sound(asked)


def stopped(asked):
    return Said(text="First, the nuts:", stop_reason="\n\n") if half(asked) else sound(asked)


def says_nothing(asked):
    return Said(text="", tokens=1) if half(asked) else sound(asked)


def swallowed(asked):
    return Said(text="", tokens=50) if half(asked) else sound(asked)


def hides_thoughts(asked):
    return Said(text="", tokens=128, hidden=127) if half(asked) else sound(asked)


def misfiled(asked):
    return Said(text="", reasoning=asked.target) if half(asked) else sound(asked)


def loops(asked):
    return Said(text="12+30 12+30 12+30", finish="repetition") if half(asked) else sound(asked)


def ends_otherwise(asked):
    return replace(sound(asked), finish="my_end") if half(asked) else sound(asked)


def marked(asked):
    return (
        Said(text="<|im_start|>assistant\nNuts are nice.<|im_end|>")
        if half(asked)
        else sound(asked)
    )


def goes_on_behind_its_end(asked):
    said = sound(asked)
    if asked.chance("some") >= 0.3:
        return said
    return replace(said, text=f"{said.text}</s> And 12 more.</s> 12")


def plays_the_user(asked):
    return Said(text="Nuts.\nUser: How many?\nAssistant: 3") if half(asked) else sound(asked)


def says_it_otherwise(asked):
    number = asked.target.rpartition("#### ")[2]
    return Said(text=f"All in all, the answer is {number}.") if half(asked) else sound(asked)


def babbles(asked):
    return Said(text="lorem ipsum dolor") if half(asked) else sound(asked)


def worse_from_60(asked):
    return sound(asked, 0.95 if asked.number < 60 else 0.3)


def busy(target):
    """Return whether a sample is one of those that are asked under load."""
    return hashlib.sha256(target.encode()).digest()[0] < 96


def wrong_under_load(asked):
    return sound(asked, 0.4 if busy(asked.target) else 0.95)


def under_load(plan, out):
    """Record that the busy samples were asked thirty at a time and the others alone.

    In a real run, the machine decides how many requests are in flight together.
    """
    samples = (
        build_task(plan.tasks[0])
        .load(DataRoots(), int(str(plan.tasks[0].options["num_samples"])))
        .samples
    )
    targets = {sample.id: sample.target for sample in samples}
    [file] = (out / "samples").iterdir()
    records = [json.loads(line) for line in file.read_text().splitlines()]
    tries = [(targets[record["id"]], record["response"]["attempts"][0]) for record in records]
    now = min(one["start_s"] for _, one in tries)
    alone = [[one] for target, one in tries if not busy(target)]
    crowds = list(batched([one for target, one in tries if busy(target)], 30))
    for group in (*alone[: len(alone) // 2], *crowds, *alone[len(alone) // 2 :]):
        for place, one in enumerate(group):
            one["start_s"], one["end_s"] = now + place * 1e-4, now + 0.05
        now += 0.1
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records))


def batched(items, size):
    return (items[at : at + size] for at in range(0, len(items), size))


def refuses(asked):
    return (
        Said(text="temperature: Extra inputs are not permitted", status=400)
        if half(asked)
        else sound(asked)
    )


def refuses_a_value(asked):
    message = "temperature must be non-negative, got -1.0. (parameter=temperature, value=-1.0)"
    return Said(text=message, status=400) if half(asked) else sound(asked)


def refuses_behind(asked):
    message = (
        "Internal server error 400, message='Bad Request', url='http://worker:8001/v1/completions'"
    )
    return Said(text=message, status=500) if asked.chance("some") < 0.2 else sound(asked)


def gives_up_after_two_seconds(asked):
    if asked.chance("some") >= 0.2:
        return sound(asked)
    return Said(text="Internal server error ", status=500, delay_s=2.05)


def never_answers(asked):
    return replace(sound(asked), delay_s=30.0 if asked.chance("some") < 0.2 else 0.0)


def errs_on_some(asked):
    return (
        Said(text="index out of range", status=500) if asked.chance("some") < 0.2 else sound(asked)
    )


@dataclass(frozen=True, kw_only=True)
class Case:
    """A fault, the rule that must report it, and fragments of the report.

    Rules of `also` may report too, others must not.
    """

    act: Act
    rule: str
    told: str
    change: str
    options: Mapping[str, Any] = field(default_factory=dict)
    server: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits | None = None
    also: frozenset[str] = frozenset()
    judged: bool = True
    afterwards: Callable[[Plan, Path], None] | None = None


def retries(scrape):
    """Return the counters of a 1.2 orchestrator: five retries between two scrapes.

    A run scrapes twice for the retries, and once between for the counts of the engine.
    """
    return f"ctx_retry_requests_total 0\ngen_retry_requests_total {5 * scrape}\n"


QUICK = Limits(concurrency=8, max_attempts=1, max_error_rate=1.0, order_seed=1)
CASES = {
    "cut": Case(
        act=cut, rule="truncated", told="exactly max_tokens=128",
        change="word_problems.max_tokens=256",
    ),
    "cut_by_the_server": Case(
        act=cut_by_the_server, rule="truncated", told="the server's window (at most 40 tokens)",
        change="--max_seq_len"
    ),
    "thinks_on": Case(
        act=thinks_on, rule="unclosed_reasoning", told="contain only reasoning",
        change="max_tokens=512",
    ),
    "stopped_thinking": Case(
        act=stopped_thinking, rule="stopped_in_reasoning", told=r"'\n\n'",
        change="word_problems.stop=[]"
    ),
    "stopped": Case(
        act=stopped, rule="stop_string", told=r"'\n\n' ended", change="word_problems.stop=[]",
    ),
    "says_nothing": Case(
        act=says_nothing, rule="empty", told="stopped immediately",
        change="apply_chat_template=true",
    ),
    "swallowed": Case(
        act=swallowed, rule="empty", told="a median of 50 tokens", change="--reasoning_parser",
    ),
    "hides_thoughts": Case(
        act=hides_thoughts, rule="unclosed_reasoning", told="that the server does not show",
        change="max_tokens=512",
    ),
    "misfiled": Case(
        act=misfiled, rule="misfiled", told="arrived as reasoning", change="--reasoning_parser",
    ),
    "loops": Case(
        act=loops, rule="looping", told="(finish_reason repetition)", change="serve-eval verify",
    ),
    "ends_otherwise": Case(
        act=ends_otherwise, rule="unlisted_finish", told="'my_end'",
        change="--set limits.known_finish_reasons=my_end",
    ),
    "marked": Case(
        act=marked, rule="template_marks", told="<|im_end|>", change="apply_chat_template=true",
    ),
    "goes_on_behind_its_end": Case(
        act=goes_on_behind_its_end, rule="end_tokens", told="answers contain several end tokens",
        change="eos_token_id", also=frozenset({"template_marks"}),
    ),
    "plays_the_user": Case(
        act=plays_the_user, rule="run_on", told="invented question or speaker",
        change="apply_chat_template=true"
    ),
    "says_it_otherwise": Case(
        act=says_it_otherwise,
        rule="extraction",
        told="end with the expected answer",
        change="serve-eval judge --rescore",
        also=frozenset({"extractors"}),
    ),
    "babbles": Case(
        act=babbles, rule="unreadable", told="the wrong one, or damaged",
        change="--task word_problems --capsule ",
    ),
    "worse_from_60": Case(
        act=worse_from_60, rule="drift", told="degrading from request", change="restart",
    ),
    "wrong_under_load": Case(
        act=wrong_under_load,
        rule="concurrency",
        told="in flight",
        change="--concurrency ",
        also=frozenset({"drift"}),
        options={"num_samples": 480},
        afterwards=under_load,
    ),
    "lost_streams": Case(
        act=sound,
        rule="lost_streams",
        told="streams lost their answer",
        change="--set limits.stream=false",
        server={"loses_streams": True},
        limits=replace(QUICK, stream=True, max_attempts=2),
    ),
    "hidden_retries": Case(
        act=sound, rule="hidden_retries", told="generation 10", change="-r 7200",
        server={"metrics": retries}
    ),
    "other_model": Case(
        act=sound, rule="other_model", told="lists org/b", change="--model org/b",
        server={"models": ("org/b",)}
    ),
    "first_token_only": Case(
        act=lambda asked: Said(text=asked.target),
        rule="first_token_only",
        told="context server",
        change="gsm8k",
        options={"max_tokens": 2},
        server={"metrics": lambda scrape: "ctx_retry_requests_total 0\n"},
        judged=False,
    ),
    "refuses": Case(
        act=refuses, rule="refused", told="rejects a field", change="temperature=null",
        also=frozenset({"missing"})
    ),
    "refuses_a_value": Case(
        act=refuses_a_value,
        rule="refused",
        told="knows the field and rejects its value",
        change="OPTION=VALUE",
        also=frozenset({"missing"}),
    ),
    "refuses_behind": Case(
        act=refuses_behind, rule="wrapped_400", told="a worker's 400",
        change="--task word_problems --capsule ",
        also=frozenset({"missing"}),
    ),
    "gives_up_after_two_seconds": Case(
        act=gives_up_after_two_seconds, rule="time_limit", told="each failed after 2.",
        change="-r 7200", also=frozenset({"missing"}),
    ),
    "never_answers": Case(
        act=never_answers, rule="timeout", told="own time limit",
        change="--set limits.stall_timeout_s=S",
        limits=replace(QUICK, stall_timeout_s=0.3, concurrency=16), also=frozenset({"missing"}),
    ),
    "errs_on_some": Case(
        act=errs_on_some, rule="these_prompts", told="fail each time",
        change="--task word_problems --capsule ",
        limits=replace(QUICK, max_attempts=2, concurrency=16), also=frozenset({"missing"}),
    ),
}  # fmt: skip


def ran(case, out):
    plan = replace(plan_for(out.parent, **case.options), no_reference=not case.judged)
    plan = plan if case.limits is None else replace(plan, limits=case.limits)
    report = run(plan, Server(act=case.act, answers=answers_to(plan.tasks[0]), **case.server), out)
    if case.afterwards is not None:
        case.afterwards(plan, out)
    [diagnosed] = diagnose(out).runs
    return report, diagnosed


def names(diagnosed):
    return [finding.rule for finding in diagnosed.findings]


@pytest.mark.parametrize("name", CASES)
def test_a_fault_is_named_with_its_evidence_and_what_to_change(name, tmp_path):
    case = CASES[name]
    _, diagnosed = ran(case, tmp_path / "out")
    assert case.rule in names(diagnosed)
    assert set(names(diagnosed)) <= {case.rule, *case.also}
    first = next(finding for finding in diagnosed.findings if finding.rule == case.rule)
    assert case.told in first.told
    assert case.change in " | ".join(first.change)
    [task] = diagnosed.tasks
    if first.explains is not None and case.act is not sound:
        assert first.lost == task.wrong + task.missing
        assert 0.3 * first.lost < first.explains <= first.lost
        assert 0 < len(first.samples) <= 5


@pytest.mark.parametrize(("accuracy", "outcome"), [(0.95, "PASS"), (0.5, "FAIL")])
def test_a_loss_without_a_sign_is_called_even_and_a_sound_run_has_no_finding(
    accuracy, outcome, tmp_path
):
    plan = plan_for(tmp_path)
    server = Server(act=lambda asked: sound(asked, accuracy), answers=answers_to(plan.tasks[0]))
    report = run(plan, server, tmp_path / "out")
    assert report.tasks[0].verdict.outcome == outcome
    diagnosis = diagnose(tmp_path / "out")
    assert names(diagnosis.runs[0]) == ([] if outcome == "PASS" else ["even_loss"])
    document = make_document_of(tmp_path / "out")
    said = (
        "note: there is no loss to explain"
        if outcome == "PASS"
        else "for: even_loss: the loss is even"
    )
    assert any(line.startswith(said) for line in list_lines(tmp_path / "out"))
    cause = "" if outcome == "PASS" else "weights, precision, chat template or sampling ("
    assert document.conclusions[0].cause.startswith(cause)
    assert document.verdict == outcome


def test_an_even_loss_of_servers_apart_names_their_transfer_and_who_finds_it(
    tmp_path,
):
    plan, answered = plan_for(tmp_path), ("h0:8001", "h1:8002")
    server = Server(
        act=lambda asked: replace(sound(asked, 0.5), servers=answered),
        answers=answers_to(plan.tasks[0]),
    )
    run(plan, server, tmp_path / "out")
    [one] = diagnose(tmp_path / "out").runs[0].findings
    assert one.rule == "even_loss"
    assert "or the transfer of KV caches between its context and generation servers" in one.told
    assert one.change[0].startswith("serve-eval check workers ")


def test_server_errors_from_a_moment_on_come_with_the_lines_of_that_time(tmp_path):
    log, out = tmp_path / "out/logs/gen_0.log", tmp_path / "out"

    def dies(asked):
        if asked.number < 40:
            return sound(asked)
        with log.open("a") as file:
            file.write(time.strftime("[%m/%d/%Y-%H:%M:%S] [TRT-LLM] [E] CUDA out of memory\n"))
        return Said(text="the engine is gone", status=500)

    log.parent.mkdir(parents=True)
    past = (
        "[01/02/2020-03:04:05] [TRT-LLM] [E] an old error\n[01/02/2020-03:04:06] [TRT-LLM] [I]"
        " fine\n"
    )
    log.write_text(past)
    plan = plan_for(tmp_path)
    # Files in the folder before its run are foreign, so the server's log moves there after the run.
    kept, log = log, tmp_path / "gen_0.log"
    kept.rename(log)
    kept.parent.rmdir()
    out.rmdir()
    run(plan, Server(act=dies, answers=answers_to(plan.tasks[0])), out)
    log.rename(kept)
    [diagnosed] = diagnose(out).runs
    first = diagnosed.findings[0]
    assert first.rule == "server_errors"
    assert "from request 4" in first.told
    assert "out of GPU memory" in first.told
    assert "tp" in first.change[0]
    assert first.log
    assert all("CUDA out of memory" in line for line in first.log)
    assert first.explains == diagnosed.tasks[0].missing
    assert set(names(diagnosed)) == {"server_errors", "failed", "missing"}


def test_a_run_that_was_stopped_is_diagnosed_without_a_report(tmp_path):
    plan = plan_for(tmp_path)
    plan = replace(plan, limits=replace(QUICK, max_error_rate=0.1))
    server = Server(
        act=lambda asked: Said(text="no such field: top_p", status=422),
        answers=answers_to(plan.tasks[0]),
    )
    with pytest.raises(Exception, match="422"):
        run(plan, server, tmp_path / "out")
    (tmp_path / "out/logs/server.log").write_text(
        "Loading\nRuntimeError: CUDA out of memory\nbye\n"
    )
    [diagnosed] = diagnose(tmp_path / "out").runs
    assert names(diagnosed) == ["unfinished", "refused"]
    last = diagnosed.findings[0]
    assert "422" in last.told
    assert "of 100 samples" in last.told
    assert "server.log shows that it is out of GPU memory" in last.told
    assert last.log == ("server.log: RuntimeError: CUDA out of memory",)
    assert diagnosed.tasks[0].outcome is None
    document = make_document_of(tmp_path / "out")
    assert (document.verdict, document.conclusions[0].sure) == ("ERROR", True)
    assert document.conclusions[0].cause == last.told
    assert document.commands[0] == f"serve-eval run --resume {tmp_path / 'out'}"


def test_a_worker_that_is_not_reached_any_more_is_named_with_the_end_of_its_log(
    tmp_path,
):
    message = (
        "Internal server error Cannot connect to host 127.0.0.1:8102 ssl:default [Connect call"
        " failed]"
    )
    log = tmp_path / "generation_1.log"
    log.write_text("listening\nthe rank was lost\n")
    servers = {"orchestrator": "http://127.0.0.1:8000", "generation_1": "http://127.0.0.1:8102"}
    info = {"servers": servers, "logs": {"generation_1": str(log)}}
    plan = plan_for(tmp_path)
    server = Server(
        act=lambda asked: Said(text=message, status=500) if half(asked) else sound(asked),
        answers=answers_to(plan.tasks[0]),
    )
    run(plan, server, tmp_path / "out", info=info)
    first = diagnose(tmp_path / "out").runs[0].findings[0]
    assert first.rule == "worker_gone"
    assert "generation_1 can no longer be reached" in first.told
    assert first.log[-1] == "generation_1.log: the rank was lost"


@pytest.mark.parametrize("generation_servers", [1, 2])
def test_after_a_fall_the_workers_are_to_be_told_apart_where_there_are_several(
    generation_servers, tmp_path
):
    servers = {f"generation_{i}": f"http://127.0.0.1:{8101 + i}" for i in range(generation_servers)}
    info = {"servers": {"context_0": "http://127.0.0.1:8100", **servers}}
    plan = plan_for(tmp_path)
    run(
        plan,
        Server(act=worse_from_60, answers=answers_to(plan.tasks[0])),
        tmp_path / "out",
        info=info,
    )
    [finding] = [one for one in diagnose(tmp_path / "out").runs[0].findings if one.rule == "drift"]
    assert any("serve-eval check workers" in option for option in finding.change) is (
        generation_servers > 1
    )


def test_what_an_endpoint_lacks_is_told(tmp_path):
    plan = plan_for(tmp_path)
    chat = Spec(name="passkey_short", options={"num_samples": 20, "apply_chat_template": True})
    plan = replace(plan, tasks=(*plan.tasks, chat), no_reference=True)
    found = found_in(
        plan, Server(act=sound, answers=answers_to(plan.tasks[0]), chat=False), tmp_path / "out"
    )
    assert [(finding.rule, finding.task) for finding in found] == [("unsupported", "passkey_short")]
    assert "the endpoint lacks chat" in found[0].told


def test_many_retries_are_told_of_a_run_that_is_not_green(tmp_path):
    seen = set()

    def errs_once(asked):
        if asked.chance("some") < 0.2 and asked.target not in seen:
            seen.add(asked.target)
            return Said(text="busy", status=429)
        return sound(asked, 0.5)

    plan = replace(plan_for(tmp_path), limits=replace(QUICK, max_attempts=4, concurrency=32))
    run(plan, Server(act=errs_once, answers=answers_to(plan.tasks[0])), tmp_path / "out")
    [finding] = diagnose(tmp_path / "out").runs[0].findings
    assert finding.rule == "retried"
    assert f"http_error 429 ({len(seen)})" in finding.told


def _accuse(folder, p_of_gen_0):
    """Write a report of a run in which gen_0 has 40 of 50 answers wrong, and gen_1 ten."""
    plan = plan_for(folder)
    server = Server(act=lambda asked: sound(asked, 0.5), answers=answers_to(plan.tasks[0]))
    report = run(plan, server, folder / "out")
    rows = [
        WorkerShare(
            worker=f"gen_{i}", role="generation", measure="wrong answers", answers=50, bad=bad,
            others=50, others_bad=50 - bad, p=p, p_holm=p, accused=p < 0.01,
        )
        for i, (bad, p) in enumerate([(40, p_of_gen_0), (10, 1.0)])
    ]  # fmt: skip
    attribution = Attribution(how="ids", joined=100, planned=100, alpha=0.01, rows=tuple(rows))
    task = replace(report.tasks[0], attribution=attribution)
    (folder / "out/report.json").write_bytes(msgspec.json.encode(replace(report, tasks=(task,))))


def test_the_workers_that_a_report_accuses_are_named(tmp_path):
    _accuse(tmp_path, 1e-6)
    diagnosis = diagnose(tmp_path / "out")
    [finding] = diagnosis.runs[0].findings
    assert (finding.rule, finding.count, finding.explains) == ("worker", 40, 40)
    assert "gen_0" in finding.change[0]
    assert not [line for line in list_lines(tmp_path / "out") if "the report names" in line]


def test_a_worker_that_a_report_accuses_less_clearly_is_repeated_and_no_finding(
    tmp_path,
):
    _accuse(tmp_path, 0.005)
    diagnosis = diagnose(tmp_path / "out")
    assert diagnosis.runs[0].findings == ()
    assert (
        "workers: the report names generation server gen_0: 40 of 50 wrong, the others 10 of 50"
        " (p = 0.005)"
    ) in list_lines(tmp_path / "out")


def test_a_worker_that_a_report_calls_slow_is_named(tmp_path):
    plan = plan_for(tmp_path)
    report = run(plan, Server(act=sound, answers=answers_to(plan.tasks[0])), tmp_path / "out")
    times = [
        WorkerTimes(
            worker=f"gen_{i}", role="generation", taken_s=taken, others_s=0.5, longer=longer,
            answers=50, p=p, p_holm=p, slow=p < 0.01,
        )
        for i, (taken, longer, p) in enumerate([(2.5, 48, 1e-6), (0.5, 3, 1.0)])
    ]  # fmt: skip
    attribution = Attribution(
        how="ids", joined=100, planned=100, alpha=0.01, rows=(), times=tuple(times)
    )
    task = replace(report.tasks[0], attribution=attribution)
    (tmp_path / "out/report.json").write_bytes(msgspec.json.encode(replace(report, tasks=(task,))))
    [finding] = diagnose(tmp_path / "out").runs[0].findings
    assert (finding.rule, finding.count, finding.of, finding.explains) == (
        "slow_worker",
        48,
        50,
        None,
    )
    assert finding.told.startswith(
        "generation server gen_0 takes 2.5 s per answer, the other generation servers 0.5"
    )


def found_in(plan, server, out):
    run(plan, server, out)
    return list(diagnose(out).runs[0].findings)


def test_another_protocol_than_the_references_is_told_of_a_run_that_fails(tmp_path):
    protocol = "    protocol: {data_version: 1, num_fewshot: 5, random_seed: 0}\n"
    plan = replace(plan_for(tmp_path, protocol=protocol), allow_mismatch=("num_fewshot",))
    [finding] = found_in(
        plan,
        Server(act=lambda a: sound(a, 0.5), answers=answers_to(plan.tasks[0])),
        tmp_path / "out",
    )
    assert finding.rule == "protocol"
    assert "num_fewshot differ" in finding.told
    assert "--allow-mismatch num_fewshot" in finding.change[0]


def test_a_first_token_that_is_added_twice(tmp_path):
    (tmp_path / "tokenizer").mkdir()
    template = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
    config = {"chat_template": template, "bos_token": "<s>"}
    (tmp_path / "tokenizer/tokenizer_config.json").write_bytes(msgspec.json.encode(config))
    plan = plan_for(
        tmp_path,
        apply_chat_template=True,
        tokenizer=str(tmp_path / "tokenizer"),
        add_special_tokens=True,
    )
    plan = replace(plan, no_reference=True)
    server = Server(act=lambda asked: sound(asked, 0.5), answers=answers_to(plan.tasks[0]))
    [finding] = found_in(plan, server, tmp_path / "out")
    assert finding.rule == "doubled_bos"
    assert finding.change == ("--set word_problems.add_special_tokens=false",)


def test_data_that_is_not_the_published_set_but_judged_as_if_it_were(tmp_path):
    write_gsm8k(tmp_path / "data/gsm8k", train=20, test=40)
    plan = replace(
        plan_for(tmp_path),
        tasks=(Spec(name="gsm8k", options={"num_samples": 40}),),
        reference_model="meta-llama/Llama-3.1-8B-Instruct",
        references_dir=None,
        dataset_roots=(str(tmp_path / "data"),),
        allow_mismatch=("dataset",),
    )
    found = found_in(plan, Server(act=sound, answers={}), tmp_path / "out")
    assert "data" in [finding.rule for finding in found]


@pytest.mark.parametrize(
    ("share", "filter_", "chat", "rules"),
    [
        (0.0, "mean", True, set()),
        (0.06, "mean", True, {"run_on"}),
        (0.32, "mean", True, {"extractors", "run_on"}),
        (0.6, "mean", True, {"extractors", "run_on"}),
        (0.6, "mean", False, {"extractors", "run_on"}),
        (0.6, "flexible-extract", True, {"extractors", "run_on"}),
        (1.0, "mean", True, {"extractors", "run_on"}),
    ],
)
def test_answers_that_run_on_and_lose_a_part_are_named_whatever_their_share(
    tmp_path, share, filter_, chat, rules
):
    """The answer is right behind its mark, and a question with another number follows."""
    write_gsm8k(tmp_path / "data/gsm8k", train=20, test=240)
    options = {"num_samples": 240, "filter": filter_, "apply_chat_template": chat}
    spec = Spec(name="gsm8k", options=options)
    plan = replace(
        plan_for(tmp_path),
        tasks=(spec,),
        no_reference=True,
        references_dir=None,
        dataset_roots=(str(tmp_path / "data"),),
        allow_mismatch=("dataset",),
    )

    def runs_on(asked):
        next_one = "Question" if chat else "Problem"  # completions stop at the first word
        more = f"\n\n{next_one}: How many are 3 and 4?\nAnswer: 3+4=7\n#### 7"
        named = asked.target.rpartition("####")[2].strip()
        right = f"#### {named}" if asked.chance("right") < 0.97 else "#### 1234567"
        return Said(text=right + (more if asked.chance("run on") < share else ""))

    answers = answers_to(spec, (tmp_path / "data",))
    found = found_in(plan, Server(act=runs_on, answers=answers), tmp_path / "out")
    assert {finding.rule for finding in found} & {"extractors", "run_on"} >= rules
    assert bool(found) == bool(rules)


def test_too_few_samples_for_the_margin(tmp_path):
    """The reference is a run of the same endpoint, so the accuracy does not drop.

    40 samples of which two change cannot exclude a drop of 7 points.
    """
    plan = replace(plan_for(tmp_path, num_samples=40), no_reference=True, references_dir=None)
    server = Server(act=sound, answers=answers_to(plan.tasks[0]))
    run(plan, server, tmp_path / "first")
    register([tmp_path / "first"], tmp_path / "own")
    verdict = Spec(name="noninferiority", options={"margin": 7.0})
    plan = replace(plan, no_reference=False, references_dir=str(tmp_path / "own"), verdict=verdict)

    def others(asked):
        """Answer one prompt wrongly that was right before, and one rightly that was wrong."""
        return sound(replace(asked, body={"prompt": str(asked.body["prompt"]) + "!"}))

    found = found_in(plan, Server(act=others, answers=answers_to(plan.tasks[0])), tmp_path / "out")
    assert [finding.rule for finding in found] == ["too_few_samples"]
    assert "points, and the tolerated drop is 7.00" in found[0].told
    assert "--repeats 2" in found[0].change


def test_both_sides_of_a_comparison_and_what_lies_between(tmp_path):
    plan = replace(plan_for(tmp_path, num_samples=60), no_reference=True, references_dir=None)
    answers = answers_to(plan.tasks[0])
    servers = (
        Server(act=sound, answers=answers),
        Server(act=cut, answers=answers, more_prompt_tokens=1),
    )

    async def compared():
        async with servers[0].scripted.serve() as a, servers[1].scripted.serve() as b:
            places = [Spec(name="external", options={"base_url": url}) for url in (a, b)]
            sides = [CompareSide(plan=replace(plan, launcher=place)) for place in places]
            rules = CompareRules(rule=Spec(name="paired"), again=0)
            await compare(sides[0], sides[1], rules, tmp_path / "out", environ={}, show_flips=0)

    asyncio.run(compared())
    diagnosis = diagnose(tmp_path / "out")
    assert [(run.label, names(run)) for run in diagnosis.runs] == [("A", []), ("B", [])]
    [between, cuts] = diagnosis.between
    assert (cuts.rule, cuts.told.startswith("B cuts ")) == ("cuts", True)
    assert between.told.startswith("B counts 1 token more than the other in 60 of 60 prompts")
    document = make_document_of(tmp_path / "out")
    assert document.verdict == "FAIL"
    [conclusion] = document.conclusions
    assert conclusion.figures.startswith("B ")
    assert conclusion.cause.startswith("B cuts ")
    assert f"likely: cuts: {cuts.told}" in list_lines(tmp_path / "out")


def test_the_runs_of_a_suite_are_diagnosed_each(tmp_path):
    plan = plan_for(tmp_path)
    for name, act in (("one", sound), ("two", cut)):
        run(
            plan, Server(act=act, answers=answers_to(plan.tasks[0])), tmp_path / "suite/runs" / name
        )
    diagnosis = diagnose(tmp_path / "suite")
    assert [(run.label, names(run)) for run in diagnosis.runs] == [
        ("two", ["truncated"]),
        ("one", []),
    ]


@pytest.mark.parametrize("higher", [True, False])
def test_of_partial_scores_the_worse_half_is_lost(higher, tmp_path):
    plan = plan_for(tmp_path)
    run(plan, Server(act=sound, answers=answers_to(plan.tasks[0])), tmp_path / "out")
    scores, report = tmp_path / "out/scores/word_problems.jsonl", tmp_path / "out/report.json"
    told_of = [json.loads(line) for line in scores.read_text().splitlines()]
    partial = [{**line, "outcome": "partial", "value": float(n)} for n, line in enumerate(told_of)]
    scores.write_text("".join(f"{json.dumps(line)}\n" for line in partial))
    told = json.loads(report.read_text())
    told["tasks"][0]["result"]["metric"]["higher_is_better"] = higher
    report.write_text(json.dumps(told))
    lost = {one.id for one in read(tmp_path / "out").tasks[0].lost}
    half = len(told_of) // 2
    assert lost == {line["id"] for line in (told_of[:half] if higher else told_of[half:])}


def test_a_folder_that_holds_nothing_is_refused(tmp_path):
    with pytest.raises(RunFolderError, match="holds no run"):
        diagnose(tmp_path)
