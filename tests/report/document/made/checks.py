"""Documents of checks of a server, of a watch, of kept servers, and of a machine."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec.structs import replace as change

from serve_eval.checks.row import CheckOutcome, CheckRow
from serve_eval.schema import (
    Endpoint,
    FirstDivergences,
    LoadBracket,
    LoadPoint,
    LoadStep,
    LoadSurface,
    LoadTask,
    ToolCell,
    ToolCheck,
    ToolFinding,
    ToolProbe,
)
from serve_eval.workflows.doctor import EXTRAS, PROGRAMS, DoctorFinding
from serve_eval.workflows.doctor import make_document as make_doctor_document
from serve_eval.workflows.load.document import make_document as make_load_document
from serve_eval.workflows.servers import Held
from serve_eval.workflows.servers import make_document as make_servers_document
from serve_eval.workflows.smoke import Smoke
from serve_eval.workflows.smoke import make_document as make_smoke_document
from serve_eval.workflows.smoke.known import Deployment, KnownComparison
from serve_eval.workflows.tools import make_document as make_tools_document
from serve_eval.workflows.watch.document import make_document as make_watch_document
from serve_eval.workflows.watch.judging import WatchRules
from serve_eval.workflows.watch.record import LearntLevel, Seen, SeenProbes, State, WatchAlarm

URL = "http://127.0.0.1:8000/v1"


def make_smoke_documents(text="some text"):
    """Return a document for each outcome, with `text` where the server or the model wrote it."""
    found = _make_smoke(text)
    sound = replace(found, rows=[row for row in found.rows if row.outcome != "FAIL"], exit_code=0)
    lost = CheckRow(name="stop", outcome=CheckOutcome.ERROR, told=text, time_s=0.1, curl="curl x")
    known = KnownComparison(
        file="known.json",
        mended=["n"],
        missing=["cancel"],
        unlisted=["seed"],
        unsupported=["tools"],
    )
    smokes = {
        "FAIL": found,
        "PASS": sound,
        "known": replace(found, known=known),
        "another deployment": replace(found, known=replace(known, other=f"is of {text}")),
        "many": replace(found, rows=[*found.rows, *_make_many(text)]),
        "stopped": replace(found, stopped=f"nothing is left: {text}", exit_code=4),
        "starting": replace(found, rows=[], stopped=text, exit_code=4),
        "died": replace(
            found,
            rows=[*found.rows, lost],
            died="stop",
            stopped=f"the server died during stop: no server listens there\nits log: {text}",
            exit_code=4,
        ),
        "rehearsal": replace(found, rehearsal=True, exit_code=0),
    }
    return {
        name: make_smoke_document(one, URL, folder=Path("outputs/smoke"))
        for name, one in smokes.items()
    }


def _make_smoke(text):
    """Return a smoke test with a row of each outcome."""
    rows = [
        CheckRow(name="chat", outcome=CheckOutcome.PASS, told="HTTP 200", time_s=0.1),
        CheckRow(
            name="json", outcome=CheckOutcome.FAIL, told=text, time_s=0.2, curl=f"curl {text}"
        ),
        CheckRow(name="health", outcome=CheckOutcome.KNOWN, told=text, time_s=0.2),
        CheckRow(name="tools", outcome=CheckOutcome.UNSUPPORTED, told=text, time_s=0.3),
    ]
    return Smoke(
        rows=rows,
        exit_code=1,
        stopped="",
        requests=9,
        generated=90,
        seconds=1.5,
        deployment=Deployment(model=text, server="vLLM", listed=True),
    )


def _make_many(text):
    """Return rows that fail with many words, and long requests."""
    return [
        CheckRow(
            name=f"check_{i}",
            outcome=CheckOutcome.FAIL,
            told=f"{text} " * 30,
            time_s=0.1,
            model=True,
            curl=f"curl {'x' * 3000}",
        )
        for i in range(30)
    ]


def make_tools_documents(text="some text"):
    """Return a document for each outcome, with `text` where the server or the model wrote it."""
    found = _make_check(text)
    sound = replace(found, findings=(), exit_code=0)
    checks = {
        "FAIL": found,
        "PASS": sound,
        "INCONCLUSIVE": replace(sound, exit_code=3),
        "ERROR": replace(sound, exit_code=5),
        "rehearsal": replace(sound, rehearsal=True),
    }
    return {name: make_tools_document(one, Path("outputs/tools")) for name, one in checks.items()}


def _make_check(text):
    """Return a check with one finding."""
    cell = ToolCell(
        form="whole",
        load=8,
        scored=40,
        sound=30,
        failed=2,
        interval=(0.6, 0.86),
        faults={"invalid JSON": 10},
        kinds={"auto": (30, 40)},
        precision=1.0,
        recall=0.75,
        f1=None,
        in_flight=8,
        prompt_tokens=1000,
        completion_tokens=500,
        unreported=0,
        reasoned=0,
        wall_s=2.5,
    )
    finding = ToolFinding(
        fault="invalid JSON",
        cells=("whole at 8",),
        where="from 8 on",
        against="threshold",
        count=10,
        scored=40,
        p=1e-9,
        points_to="guided decoding was not applied",
        examples=(("auto-1", text),),
    )
    return ToolCheck(
        schema_version=1,
        model=text,
        base_url="http://host:8000/v1",
        fingerprint="40 requests",
        kinds=("auto",),
        unsupported=(ToolProbe(name="regex", outcome="UNSUPPORTED", said=text),),
        parameters=(ToolProbe(name="works: seed", outcome="PASS", said="it counts"),),
        cells=(cell,),
        findings=(finding,),
        remarks=(text,),
        reference=None,
        requests=42,
        exit_code=1,
        started_at="2026-10-01T12:00:00+00:00",
        wall_s=3.0,
    )


T0 = datetime(2026, 10, 1, 12, tzinfo=UTC)


def make_watch_documents(text="some text"):
    """Return a document for each outcome, with `text` where the server or a user wrote it."""
    alarm = WatchAlarm(
        kind="accuracy", round=3, at="2026-10-01T15:00:00+00:00", told=f"accuracy fell {text}"
    )
    over = change(alarm, kind="check", subject=text, told=text, over=True)
    several = [change(alarm, kind=kind) for kind in ("numerics", "accuracy", "down", "failures")]
    state = _make_state(text)
    states = {
        "ALARM": change(state, alarms=[alarm]),
        "NO ALARM": state,
        "over": change(state, alarms=[over]),
        "BASELINE": change(state, accuracy=None, answers=[[1.0], [1.0], []], usable=[[], [], []]),
        "several": change(state, alarms=[*several, over]),
        "rehearsal": change(state, rehearsal=True),
    }
    rules = WatchRules(passes=2, tolerance=0.02, max_error_rate=0.1)
    return {
        name: make_watch_document(
            one,
            make_rounds(text),
            rules,
            URL,
            int(bool(one.standing)),
            folder=Path("outputs/watch"),
        )
        for name, one in states.items()
    }


def _make_state(text):
    return State(
        bound={},
        seed=1,
        model=text,
        chat=True,
        answers=[],
        usable=[],
        misses=[],
        prompt_tokens=[],
        rounds=3,
        accuracy=LearntLevel(mean=0.8, floor=0.78),
        recent=[(4, 3, 2.0)],
    )


def make_rounds(text):
    """Return three rounds, the last one with a smoke test and probes."""
    rounds = [
        Seen(
            round=i + 1,
            started_at=(T0 + timedelta(hours=i)).isoformat(),
            seconds=1.0,
            asked=[0, 1, 2, 3],
            values=[1.0, 1.0, float(i < 2), None],
            usable="111",
            prompt_tokens=[9] * 4,
            failures={"timeout": 1},
            first_failure=text,
            latencies_s=[0.1, 0.2, 0.4],
            tokens=100,
        )
        for i in range(3)
    ]
    probes = SeenProbes(asked=["a", "b"], nats=[0.0, 0.5], limit=0.08, beyond=1)
    checks = {"chat": "PASS", "json": "FAIL"}
    return [*rounds[:2], change(rounds[2], checks=checks, told={"json": text}, probes=probes)]


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


def make_load_documents(text="some text"):
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
    return {name: make_load_document(one, Path("outputs/load")) for name, one in found.items()}


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


def make_servers_documents(text="some text"):
    """Return a document for each outcome, with `text` where a server or a user wrote it."""
    ready = Held(
        id="0a1b2c3d",
        state="ready",
        launcher="embedded",
        model=text,
        pid=1,
        began="1",
        since="2026-11-30T07:34:50+00:00",
        log_dir=text,
        patience_s=1.0,
        started_in=text,
        endpoint=Endpoint(base_url="http://host:1/v1", model=text),
    )
    ended = replace(ready, id="1", state="ended", endpoint=None, error="\n".join([text] * 30))
    many = [replace(ready, id=str(i)) for i in range(40)]
    return {
        "READY": make_servers_document([ready]),
        "ENDED": make_servers_document([ended]),
        "many": make_servers_document([*many, ended, replace(ready, id="2", state="starting")]),
        "NO SERVERS": make_servers_document([]),
        "STOPPED": make_servers_document([ready, ended], stopped=True),
    }


def make_doctor_documents(text="some text"):
    """Return a document for each outcome, with `text` where the machine names something."""
    sound = [
        DoctorFinding(name="serve-eval", state="ok", text=text),
        DoctorFinding(name="[servers]", state="ok", text=text),
        *(DoctorFinding(name=one, state="absent", text=text) for one in PROGRAMS),
        *(DoctorFinding(name=f"[{one}]", state="absent", text=text, fix=text) for one in EXTRAS),
    ]
    files = DoctorFinding(name="open files", state="problem", text=text, fix="ulimit -Hn 4096")
    found = {"READY": sound, "PROBLEM": [*sound, files], "bare": sound[2:]}
    return {name: make_doctor_document(one) for name, one in found.items()}
