"""Define the Report of a run, with its tasks, their references and the workers that answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from serve_eval.frozen import freeze
from serve_eval.schema.endpoint import Endpoint, PathFinding
from serve_eval.schema.plan import AccuracySpec, Plan, Spec
from serve_eval.schema.result import ResultHeader, TaskResult
from serve_eval.schema.sample import SamplingDefaults
from serve_eval.schema.score import Isolation, JudgeReport
from serve_eval.schema.traffic import Degradation, EngineReport, Load, RunCost, Traffic
from serve_eval.schema.verdict import Verdict


@freeze
class WrongExample:
    """A wrong answer to show: the sample, what was extracted from its answer, and the target."""

    id: str
    answer: str | None
    target: str


@freeze
class TaskReport:
    """One task of a report: what was asked, what was answered, and the verdict.

    `isolations` are those in which answers ran, in the order of their first use. `degradations`
    show from when on the run became worse, `judges` the judges of the answers, `attribution` the
    workers that took part in them (None: not known). `reference_breakdown` is the result's
    breakdown of the reference's scores on the same prompts, if they are known.
    """

    spec: Spec
    version: int
    dataset: Mapping[str, object]
    fingerprint: Mapping[str, str]
    result: TaskResult
    traffic: Traffic
    reference: Reference | None
    verdict: Verdict
    isolations: tuple[Isolation, ...] = ()
    degradations: tuple[Degradation, ...] = ()
    judges: tuple[JudgeReport, ...] = ()
    attribution: Attribution | None = None
    reference_breakdown: Mapping[str, object] = field(default_factory=dict)
    example: WrongExample | None = None


@freeze
class EffortSeen:
    """The answers of a task that was asked with an effort.

    `thinking` of the `answers` have thoughts, or tokens that the server counts as thoughts.
    `median_tokens` is the median of their generated tokens, thoughts included (None: the server
    counts none). `refused` requests failed since the server refused a field of the effort, and
    `refusal` is its first message.
    """

    task: str
    answers: int
    thinking: int
    median_tokens: float | None = None
    refused: int = 0
    refusal: str = ""


@freeze
class Report(ResultHeader):
    """The report of a run, as stored in report.json; every other output is made from it.

    `loads` has one entry per session with requests. `engine` is what the engines of the servers
    counted during all sessions (None: no server reports it). `path` has a finding for each part of
    the path that the plan or the launcher expects. `unproven_answers` count although nothing proves
    that they belong to their samples. `sampling_defaults` is what the endpoint puts in the place of
    sampling fields that requests leave out (None: not probed). `effort` has
    what came of the effort that was asked for, by task. `cost` has the tokens and GPU seconds of
    the run (None: an older version).
    """

    plan: Plan
    endpoint: Endpoint
    environment: Mapping[str, object]
    tasks: tuple[TaskReport, ...]
    loads: tuple[Load, ...]
    warnings: tuple[str, ...] = ()
    engine: EngineReport | None = None
    path: tuple[PathFinding, ...] = ()
    unproven_answers: int = 0
    effort: tuple[EffortSeen, ...] = ()
    sampling_defaults: SamplingDefaults | None = None
    cost: RunCost | None = None


@freeze
class WorkerShare:
    """The answers that one worker took part in, compared with those of all others of its role.

    `role` is context, generation, pair (of both) or server. `measure` is what counts as bad: wrong
    answers, empty answers, failures, or first attempts of samples that failed. A pair is named
    `CONTEXT + GENERATION`. `p` is that of an exact one-sided test that this worker is no worse than
    the others (serve_eval.stats.contingency), `p_holm` the same, corrected over all rows of the
    task. `accused`: the worker is worse, at the level given in the attribution.
    """

    worker: str
    role: str
    measure: str
    answers: int
    bad: int
    others: int
    others_bad: int
    p: float
    p_holm: float
    accused: bool


@freeze
class WorkerFigures:
    """Measurements of the requests that one worker took part in.

    All are medians, None if the server does not report them. `kv_transfer_s` is the time that the
    KV cache of a prompt took from the context to the generation server, and `kv_bytes` its size.
    `cached_tokens` of `prompt_tokens`, in all, came from a prefix cache.
    """

    worker: str
    role: str
    answers: int
    kv_transfer_s: float | None = None
    kv_bytes: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


@freeze
class WorkerTimes:
    """Times of the answers that one worker took part in, compared with those of the others.

    All are medians, in seconds. `role` and names are those of a WorkerShare. A `worker` without a
    name stands for all servers of the role, compared with those of the other. `longer` of `answers`
    took more than twice as long as those they are compared with. `p` is that of the sign test that
    at most half do, `p_holm` the same, corrected over all rows. `slow`: `p_holm` is .01 or below.
    In a run, alike prompts are compared, and times are those that the others would take at the
    worker's load. `loaded` says what a worker that takes longer than the others had more of, if
    that explains it; its figures are then those of all answers.
    """

    worker: str
    role: str
    taken_s: float
    others_s: float
    longer: int
    answers: int
    p: float
    p_holm: float
    slow: bool = False
    loaded: str = ""


@freeze
class Attribution:
    """The workers behind an endpoint that took part in the answers, and those at fault.

    `how` says how that is known: response headers, metrics or ids of the answers, request traces,
    times (of arrival), or asked (each worker, or pair, got requests of its own). `joined` of
    `planned` samples are attributed. `alpha` is the probability of accusing any worker if all are
    healthy. `times` show slow workers, which is not an accusation. `counted` says which answers are
    wrong, and on which prompts, if a reference decides it. `dealt_by` names what the router's
    choice depended on (subject, beginning, place, difficulty): only answers to prompts that are
    alike in it were compared.
    """

    how: str
    joined: int
    planned: int
    alpha: float
    rows: tuple[WorkerShare, ...]
    figures: tuple[WorkerFigures, ...] = ()
    times: tuple[WorkerTimes, ...] = ()
    counted: str = ""
    dealt_by: tuple[str, ...] = ()


@freeze
class Attributed(ResultHeader):
    """The content of attribution.json: the result of asking each worker separately.

    `alone` covers each worker answering on its own, `in_pairs` every context server with every
    generation server (None: not asked), and `transfer` the pairs against their servers alone. If
    pairs were asked, each of the three uses a third of the significance level. `asked` is the
    number of prompts, `requests` that of all requests.
    """

    run: str
    workers: tuple[tuple[str, str], ...]
    asked: int
    requests: int
    alone: Attribution
    in_pairs: Attribution | None
    transfer: Attribution | None
    warnings: tuple[str, ...] = ()


@freeze
class ReferenceRuns:
    """The runs whose mean a reference is.

    `values` are in points and in the order of the runs, `sigma` is the standard deviation of a
    sample's score in points. `samples` is a file with the scores of each sample, next to the
    reference file, and `sha256` its checksum. `cochran_q`, with `df` degrees of freedom and its
    `p`, shows whether the runs differ as a whole (None: a single run, too few prompts whose score
    varied, or an entry of an older version). `deployments` are those that answered, each with the
    launcher, its options and the server's description of itself (none: an older version).
    `server_adds` are the sampling fields that the servers added and that decided answers (None: it
    was not probed). `probes` is a file with probes of the task's requests, by which the deployment
    is recognized, and `probes_sha256` its checksum ("": none were taken).
    """

    values: tuple[float, ...]
    n: int
    sigma: float
    samples: str
    sha256: str
    endpoint: str | None = None
    hardware: str | None = None
    cochran_q: float | None = None
    df: int | None = None
    p: float | None = None
    deployments: tuple[Mapping[str, str], ...] = ()
    server_adds: tuple[str, ...] | None = None
    probes: str = ""
    probes_sha256: str = ""


@freeze
class Reference:
    """A registered value (points) for a task, a model and an accuracy specification.

    A field that is None has the task's own default. `protocol` None: the source recorded none, so
    the task's defaults are assumed. `threshold` is an explicit cutoff that replaces the computed
    one. `metric` is the key of the value. `old` marks a row that only an older file of the source
    has. `measured` are the values of the source's own runs, where it chose a value at or below the
    lowest of them. `runs` are our own, if the value was registered from them; `replaced` are the
    entries that this one replaced, each with the reason.
    """

    task: str
    model: str
    spec: AccuracySpec
    value: float
    num_samples: int | None = None
    sigma: float | None = None
    alpha: float | None = None
    beta: float | None = None
    higher_is_better: bool | None = None
    threshold: float | None = None
    reference_note: str | None = None
    source: str | None = None
    date: str | None = None
    protocol: Mapping[str, object] | None = None
    old: bool = False
    measured: tuple[float, ...] = ()
    runs: ReferenceRuns | None = None
    replaced: tuple[Mapping[str, object], ...] = ()
    metric: str = "accuracy"
    file: str = ""
    line: int = 0
