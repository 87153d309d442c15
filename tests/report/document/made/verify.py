"""Documents of a verification, by outcome."""

from dataclasses import replace
from pathlib import Path

from msgspec.structs import replace as change_side

from serve_eval.schema import (
    LostServer,
    Probe,
    ProbeDistance,
    ProbeReading,
    Verification,
    VerificationOutcome,
    VerificationReference,
    VerifiedSide,
)
from serve_eval.workflows.verify.document import make_document, make_registered

ADDRESSES = {"old:8000": "http://old:8000/v1", "worker-2": "http://new:8000/v1"}


def make_documents(text="some text"):
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
        name: make_document(one, Path("outputs/verify"), ADDRESSES) for name, one in results.items()
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
