"""Documents of a check over loads, by outcome."""

from dataclasses import replace
from pathlib import Path

from serve_eval.schema import (
    FirstDivergences,
    LoadBracket,
    LoadPoint,
    LoadStep,
    LoadSurface,
    LoadTask,
)
from serve_eval.workflows.load.document import make_document

LOWEST = LoadPoint(
    load=1, outcome="lowest", scored=200, failed=0, value=81.0, interval=(75.0, 86.0)
)
HOLDS = replace(
    LOWEST, load=4, outcome="holds", paired=200, lost=2, won=2, excluded=2.4, right_per_s=9.0
)
WORSE = LoadPoint(
    load=64,
    outcome="worse",
    scored=198,
    failed=2,
    value=60.5,
    interval=(53.0, 67.0),
    paired=198,
    lost=41,
    won=2,
    p=1e-9,
    p_holm=2e-9,
    ttft_s={"p50": 0.5, "p99": 0.9},
    right_per_s=20.0,
    changed=50,
    places=FirstDivergences(
        unit="word",
        parted=50,
        unplaced=0,
        counts={"0": 2, "8-15": 48},
        least=0,
        median=8.0,
        most=9,
        usual=8,
        at_usual=48,
        beginnings=20,
    ),
)
FAILS = replace(LOWEST, load=16, outcome="fails", scored=150, failed=50, p_failures=1e-12)
GAVE_UP = LoadPoint(load=256, outcome="gave up", scored=0, failed=200, value=None, interval=None)
FOUND = LoadTask(
    task="gsm8k",
    points=(LOWEST, HOLDS),
    q=1.0,
    df=2,
    q_p=0.6,
    time=None,
    broken=(),
    failing=(),
    words="nothing found",
)
"""A task at whose loads nothing was found."""


def make_documents(text="some text"):
    """Return a document for each outcome, with `text` where the server or the user wrote it."""
    broken = replace(
        FOUND, task=text, points=(LOWEST, WORSE), broken=(64,), words="broken from 64 on"
    )
    failing = replace(
        FOUND, points=(LOWEST, FAILS, GAVE_UP), failing=(16, 256), words="requests fail from 16 on"
    )
    few = replace(FOUND, points=(LOWEST, replace(HOLDS, paired=8)))
    nothing = replace(
        FOUND, points=(replace(LOWEST, scored=0, failed=200, value=None, interval=None),)
    )
    sound, late = _make_surface(text, FOUND), replace(FOUND, words="changed over time: at 1")
    bracket = LoadBracket(
        task=text,
        good=32,
        bad=64,
        level=0.05,
        steps=(
            LoadStep(
                load=32, askings=3, finding="undecided", against_good=(1, 2), against_bad=(3, 1)
            ),
        ),
        undecided=32,
    )
    found = {
        "PASS": sound,
        "FAIL": _make_surface(text, broken, 1),
        "FAIL by requests": _make_surface(text, failing, 1),
        "FAIL bisected": replace(_make_surface(text, broken, 1), bracket=bracket),
        "INCONCLUSIVE": _make_surface(text, few, 3),
        "INCONCLUSIVE over time": _make_surface(text, late, 3),
        "ERROR": _make_surface(text, nothing, 5),
        "rehearsal": replace(sound, rehearsal=True),
        "several tasks": replace(
            _make_surface(text, broken, 1),
            tasks=(replace(FOUND, task="mmlu"), broken, replace(few, task="passkey")),
        ),
    }
    return {name: make_document(one, Path("outputs/load")) for name, one in found.items()}


def _make_surface(text, task, code=0):
    return LoadSurface(
        schema_version=1,
        model=text,
        base_url="http://127.0.0.1:8000/v1",
        alpha=0.01,
        order=(64, 1),
        seed=1,
        tasks=(task,),
        bracket=None,
        requests=400,
        exit_code=code,
        started_at="2026-10-01T12:00:00+00:00",
        wall_s=3.0,
        warnings=(text,) if code else (),
    )
