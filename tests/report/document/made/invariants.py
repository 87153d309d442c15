"""Documents of a check of invariants, and of a search for leaks, by outcome."""

from dataclasses import replace
from pathlib import Path

from serve_eval.schema import (
    Agreement,
    CacheUse,
    CanaryLeak,
    CanaryResult,
    CanarySuspicion,
    Invariant,
    Invariants,
    PressureUse,
    SelfFlips,
)
from serve_eval.workflows.invariants import canary_document
from serve_eval.workflows.invariants.document import make_document

OUT = Path("outputs/checks")


def make_documents(text="some text"):
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
    made = {name: make_document(one, OUT) for name, one in checks.items()}
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
