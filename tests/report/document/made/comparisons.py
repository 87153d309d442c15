"""Documents of comparisons of two sides, and of a server with itself."""

from dataclasses import replace
from pathlib import Path

from msgspec.structs import replace as change_side

from serve_eval.schema import (
    Agreement,
    CacheUse,
    CanaryLeak,
    CanaryResult,
    CanarySuspicion,
    ComparedSide,
    ComparedTask,
    Comparison,
    FirstDifference,
    Flip,
    Invariant,
    Invariants,
    LostServer,
    PressureUse,
    Probe,
    ProbeDistance,
    ProbeReading,
    SelfFlips,
    Spec,
    VerdictOutcome,
    Verification,
    VerificationOutcome,
    VerificationReference,
    VerifiedSide,
)
from serve_eval.workflows.compare.document import make_document as make_compare_document
from serve_eval.workflows.invariants import canary_document
from serve_eval.workflows.invariants.document import make_document as make_invariants_document
from serve_eval.workflows.verify.document import make_document as make_verify_document
from serve_eval.workflows.verify.document import make_registered
from tests.made_results import make_traffic
from tests.report.summary.made import PAIRED, RESULT, VERDICT

AGREED = Agreement(prompts=500, identical=291, same_answer=20, different=189)
TRAFFIC = make_traffic(
    500, latency_s={"p50": 0.5, "p99": 2.0}, prompt_tokens=5000, completion_tokens=9000
)


def make_compare_documents(text="some text"):
    """Return a document for each kind, with `text` where a server or a model wrote it."""
    passed = replace(
        VERDICT,
        outcome=VerdictOutcome.PASS,
        evaluated=83.4,
        paired=replace(PAIRED, interval=(-1.2, 0.4), difference=-0.4, p=0.25, finding="PASS"),
    )
    red, green = _compare(text), replace(_compare(text), verdict=passed, flips=())
    comparisons = {
        "FAIL": _join([red], text, 1),
        "PASS": _join([green], text, 0),
        "not asked twice": _join(
            [replace(green, itself=None, unmeasured="no repeats share a seed")], text, 0
        ),
        "several": _join([replace(green, task="gsm8k"), red], text, 1),
        "rehearsal": replace(_join([green], text, 3), rehearsal=True),
    }
    return {
        name: replace(
            make_compare_document(
                one, Path("out"), {"word_problems": text} if one.exit_code == 1 else {}
            ),
            make_page_blocks=tuple,
        )
        for name, one in comparisons.items()
    }


def make_itself(**changes):
    """Return the counts of A asked twice, which B differs from far more."""
    counts = SelfFlips(
        endpoint="A",
        prompts=200,
        own=0,
        other=20,
        only_own=0,
        only_other=20,
        p=1e-5,
        alpha=0.01,
        more=True,
        agreement=replace(AGREED, prompts=200, identical=200, same_answer=0, different=0),
        measure="text",
        own_texts=0,
        other_texts=27,
    )
    return replace(counts, **changes)


def _compare(text):
    flip = Flip(
        id="test-1",
        scores=(1.0, 0.0),
        answers=("12", text),
        target="12",
        texts=(f"The answer is 12 {text}", text),
        first_difference=FirstDifference(character=4, word=1, a="answer", b=text),
    )
    return ComparedTask(
        task="word_problems",
        a=replace(RESULT, value=83.8),
        b=RESULT,
        traffic=(TRAFFIC, TRAFFIC),
        verdict=replace(VERDICT, rule="paired"),
        worse=191,
        better=18,
        agreement=AGREED,
        apart_s=0.1,
        itself=make_itself(),
        flips=(flip, replace(flip, id="test-2")),
        warnings=(text,),
    )


def _join(tasks, text, exit_code):
    a = ComparedSide(
        folder="out/a",
        model=text,
        base_url="http://a:8000/v1",
        version="1.2.0",
        per_second=20.0,
        servers={"context": text},
    )
    return Comparison(
        schema_version=1,
        a=a,
        b=replace(a, folder="out/b", base_url="http://b:8000/v1", version=None, servers={}),
        rule=Spec(name="paired"),
        tasks=tuple(tasks),
        exit_code=exit_code,
        started_at="2026-11-27T00:00:00Z",
        wall_s=1.0,
        warnings=(text,),
    )


ADDRESSES = {"old:8000": "http://old:8000/v1", "worker-2": "http://new:8000/v1"}


def make_verify_documents(text="some text"):
    """Return a document for each outcome, with `text` where the server or a file wrote it."""
    found = make_verification(text)
    [sound, bad] = found.sides
    lost = LostServer(name="worker-3", why=text)
    part = change_side(bad, name="context_0", part_of="worker-2", role="context")
    open_ = change_side(bad, outcome=VerificationOutcome.UNDECIDED, excluded_share=None)
    results = {
        **{
            outcome.value: _alone(found, change_side(bad, outcome=outcome))
            for outcome in (*VerificationOutcome,)
        },
        "two servers": found,
        "no floor": replace(_alone(found, open_), floor=None, exit_code=3),
        "lost": replace(found, sides=(sound,), lost=(lost,), exit_code=4),
        "parts": replace(found, sides=(bad, part), named=(f"found in context: {text}",)),
        "many": replace(
            found,
            sides=tuple(change_side(bad, name=f"pod-{i}") for i in range(40)),
            groups=(("a", "b"), ("c",)),
        ),
        "rehearsal": replace(found, rehearsal=True, exit_code=0),
    }
    made = {
        name: make_verify_document(one, Path("outputs/verify"), ADDRESSES)
        for name, one in results.items()
    }
    return {
        **made,
        "registered": make_registered(_make_reference(text), Path("m.json"), "old:8000"),
    }


def _alone(found, side):
    return replace(found, sides=(side,))


def make_verification(text):
    """Return a verification of two servers, one of them another model."""
    return Verification(
        started_at="2026-10-01T12:00:00+00:00",
        wall_s=2.0,
        reference="old:8000",
        model=text,
        noise=0.002,
        step=0.0,
        floor=0.08,
        sibling_median=None,
        reference_requests=10,
        prompt_lengths=(100, 900),
        salted=True,
        warnings=(text,),
        sides=(
            _verify(text, VerificationOutcome.IDENTICAL, 0.001, text),
            _verify("worker-2", VerificationOutcome.ANOTHER, 2.5, text),
        ),
        exit_code=1,
    )


def _verify(name, outcome, nats, text):
    distances = tuple(ProbeDistance(probe=str(i), nats=nats * (i + 1) / 40) for i in range(40))
    return VerifiedSide(
        name=name,
        url="http://127.0.0.1:8000/v1",
        outcome=outcome,
        why=text,
        asked=40,
        unanswered=0,
        beyond_noise=3,
        beyond_floor=2,
        far=0,
        median=nats / 2,
        effect=None,
        evidence=1e6,
        excluded_share=0.1,
        tokens=8000,
        requests=40,
        cached_tokens=None,
        salted=True,
        fingerprint=None,
        distances=distances,
        prompts=(f"prompts: {text}",) * (outcome is VerificationOutcome.ANOTHER),
    )


def _make_reference(text):
    return VerificationReference(
        made_at="2026-10-01T12:00:00+00:00",
        model=text,
        server=None,
        server_version=None,
        fingerprint=None,
        source="http://old:8000/v1",
        seed=1,
        salted=True,
        noise=0.0,
        step=0.0,
        floor=1e-05,
        median=None,
        probes=(Probe(id="1", prompt=text, reading=ProbeReading(text=text)),),
    )


OUT = Path("outputs/checks")


def make_invariants_documents(text="some text"):
    """Return a document for each outcome, with `text` where the server or the user wrote it."""
    holds, broken = _make_change("shuffled"), _make_change("streamed", other=40, p=2e-9)
    cache = CacheUse(
        unsalted=text, prompts=100, tested=0, prompt_tokens=9000, cached=None, base_cached=None
    )
    cold = replace(_make_change("cold"), cache=cache, not_tested=text)
    alone = replace(_make_change("alone", other=30), fell=5, rose=6)
    pressure = PressureUse(
        filled=90000,
        capacity=64000,
        prompts=100,
        prompt_tokens=9000,
        before=8000,
        after=100,
        fewer=90,
        fate="evicted",
        from_cache=3,
        foreign=2,
    )
    pressed = replace(_make_change("pressed_1", other=50, p=1e-12), pressure=pressure)
    found = Invariants(
        schema_version=1,
        model=text,
        base_url="http://127.0.0.1:8000/v1",
        alpha=0.01,
        results=(cold, holds, alone),
        skipped={"rendered": text},
        exit_code=0,
        started_at="2026-10-01T12:00:00+00:00",
        wall_s=3.0,
    )
    several = (cold, holds, broken, alone, pressed)
    other = tuple(replace(one, task=text, broken=False, p_holm=1.0) for one in several)
    checks = {
        "PASS": found,
        "PASS of one change": replace(found, results=(holds,)),
        "FAIL": replace(found, results=several, exit_code=1),
        "FAIL of two tasks": replace(found, results=(*several, *other), exit_code=1),
        "FAIL of one at a time": replace(
            found, results=(replace(alone, fell=40, rose=2, broken=True, p_holm=1e-9),), exit_code=1
        ),
        "ERROR": replace(found, results=(cold,), exit_code=5),
        "ERROR without an answer": replace(found, results=(), exit_code=5),
        "rehearsal": replace(found, results=(cold, holds, alone, pressed), rehearsal=True),
    }
    made = {name: make_invariants_document(one, OUT) for name, one in checks.items()}
    searches = _list_searches(text)
    return made | {
        f"canaries {name}": canary_document.make_document(one, OUT)
        for name, one in searches.items()
    }


def _make_change(arm, *, other=0, p=1.0):
    agreement = Agreement(prompts=100, identical=100 - other, same_answer=0, different=other)
    return Invariant(
        task="gsm8k",
        arm=arm,
        what="in another order, so that batches differ",
        changed=SelfFlips(
            endpoint=arm,
            prompts=100,
            own=2,
            other=other,
            only_own=2,
            only_other=other,
            p=p,
            alpha=0.01,
            more=other > 20,
            agreement=agreement,
        ),
        agreement=agreement,
        p_holm=p,
        broken=p <= 0.01,
    )


def _list_searches(text):
    leak = CanaryLeak(
        source="text-1",
        into="text-2",
        where="text",
        quote=text,
        together_s=0.25,
        own=False,
        request_ids=("a", "b"),
        servers=(text, None),
    )
    sound = CanaryResult(
        schema_version=1,
        model=text,
        base_url="http://127.0.0.1:8000/v1",
        requests=400,
        answers=398,
        failures=2,
        in_flight=64,
        own=300,
        by_kind={"text": (200, 150), "tool": (198, 150)},
        chance=1e-13,
        leaking=0,
        leaks=(),
        suspicion=None,
        prompt_tokens=9000,
        cached_tokens=None,
        exit_code=0,
        started_at="2026-10-01T12:00:00+00:00",
        wall_s=3.0,
    )
    suspicion = CanarySuspicion(
        length=5, codes=3, expected=0.01, p=1e-6, source="text-1", into="text-2"
    )
    early = replace(leak, together_s=-0.5, own=True)
    return {
        "PASS": replace(sound, cached_tokens=0),
        "PASS with a suspicion": replace(sound, suspicion=suspicion),
        "FAIL": replace(sound, leaking=7, leaks=(leak, early) * 4, exit_code=1),
        "INCONCLUSIVE": replace(sound, own=0),
        "ERROR": replace(sound, answers=0, own=0, exit_code=5),
        "rehearsal": replace(sound, rehearsal=True),
    }
