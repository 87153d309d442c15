"""Types of registered accuracies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from serve_eval.schema.plan import AccuracySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceRuns:
    """The runs whose mean a reference is.

    `values` are in points and in the order of the runs, `sigma` is the standard deviation of a
    sample's score in points. `samples` is a file with the scores of each sample, next to the
    reference file, and `sha256` its checksum. `cochran_q`, with `df` degrees of freedom and its
    `p`, shows whether the runs differ as a whole (None: a single run, too few prompts whose score
    varied, or an entry of an older version). `deployments` are those that answered, each with the
    launcher, its options and the server's description of itself (none: an older version).
    `server_adds` are the sampling fields that the servers added and that decided answers (None: it
    was not probed).
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


@dataclass(frozen=True, slots=True, kw_only=True)
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
