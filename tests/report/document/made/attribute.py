"""Documents of asking each worker separately, by outcome."""

from dataclasses import replace
from pathlib import Path

from serve_eval.schema import Attributed, Attribution, WorkerShare
from serve_eval.workflows.attribute.document import make_document

URLS = tuple(f"http://127.0.0.1:{8001 + i}/v1" for i in range(3))


def make_documents(text="some text"):
    """Return a document for each outcome, with `text` where a server or the user wrote it."""
    context, first, second = URLS
    rows = (_make_share(first, bad=3), _make_share(second, bad=50, p=2e-29))
    pair = _make_share(f"{context} + {second}", role="transfer", bad=25, p=1e-7)
    alone = Attribution(how="asked", joined=150, planned=150, alpha=0.01, rows=())
    found = Attributed(
        schema_version=1,
        run=text,
        model=text,
        workers=(("context", context), ("generation", first), ("generation", second)),
        asked=50,
        requests=350,
        alone=alone,
        in_pairs=None,
        transfer=None,
        exit_code=0,
        started_at="2026-10-01T12:00:00+00:00",
        wall_s=12.0,
    )
    bad = replace(alone, rows=rows)
    in_pairs = replace(bad, rows=tuple(replace(row, accused=False, p_holm=0.2) for row in rows))
    found = {
        "PASS": found,
        "PASS with wrong answers": replace(found, alone=in_pairs, warnings=(text,)),
        "FAIL": replace(found, alone=bad, in_pairs=bad, transfer=in_pairs, exit_code=1),
        "FAIL of a pair": replace(
            found,
            alone=in_pairs,
            in_pairs=in_pairs,
            transfer=replace(alone, rows=(pair,)),
            exit_code=1,
        ),
        "ERROR": replace(found, warnings=(text, "another"), exit_code=4),
        "ERROR without answers": replace(found, alone=replace(alone, joined=0), exit_code=5),
        "rehearsal": replace(found, alone=bad, rehearsal=True),
    }
    return {name: make_document(one, Path("outputs/run")) for name, one in found.items()}


def _make_share(worker, *, role="generation", bad, p=1.0):
    return WorkerShare(
        worker=worker,
        role=role,
        measure="wrong answers",
        answers=50,
        bad=bad,
        others=50,
        others_bad=3,
        p=p,
        p_holm=p,
        accused=p < 0.01,
    )
