"""Documents of plans, sizes, references, and of the workers of answers."""

from dataclasses import replace
from pathlib import Path

from serve_eval.schema import STAND_IN, Ability, Attributed, Attribution, Need, WorkerShare
from serve_eval.workflows.attribute.document import make_document as make_attribute_document
from serve_eval.workflows.init import EndpointFacts, RecipePlan, make_recipe_document
from serve_eval.workflows.init import make_document as make_init_document
from serve_eval.workflows.power.answers import (
    Detection,
    DropRow,
    Needed,
    SizeRow,
    TaskPower,
    ThetaSize,
)
from serve_eval.workflows.power.assumed import Measured, assume
from serve_eval.workflows.power.document import make_document as make_power_document
from serve_eval.workflows.power.question import PowerQuestion
from serve_eval.workflows.references import Registered
from serve_eval.workflows.references.document import (
    make_check_document,
    make_entries_document,
    make_import_document,
    make_list_document,
)
from serve_eval.workflows.references.document import (
    make_document as make_references_document,
)
from serve_eval.workflows.references.import_published import ImportReport
from serve_eval.workflows.references.shown import CheckedFile, ShownEntry, ShownFile
from serve_eval.workflows.references.trtllm_rows import FileCount

URL = "http://host:8000/v1"


def make_init_documents(text="some text"):
    """Return a document for each outcome, with `text` where an endpoint or a recipe wrote it."""
    abilities = tuple(
        Ability(need=need, works=works, seen=text)
        for need, works in zip(Need, (True, False, None, True), strict=False)
    )
    facts = EndpointFacts(models=(text, "b"), server=text, version=text, abilities=abilities)
    rehearsed = EndpointFacts(version=f"1.2 {STAND_IN}", context_tokens=9, abilities=abilities)
    lost = EndpointFacts(problem=text)
    file = Path("my plan.yaml")
    comments = [f"From {text}.", "Fill in or check:", *[f"* {text}"] * 9]
    comments += ["The plan leaves out:", *[f"* {text} {i}" for i in range(9)], text]
    plan = RecipePlan(file=file, comments=comments, needs="the servers need 2 nodes")
    refused = RecipePlan(file=Path("b.yaml"), comments=comments, refused=text)
    return {
        "WRITTEN": make_init_document(facts, URL, None, file),
        "stand-in": make_init_document(rehearsed, URL, "m", file),
        "to fill in": make_init_document(lost, URL, None, file),
        "recipe": make_recipe_document(Path("recipe.yaml"), [plan]),
        "variants": make_recipe_document(Path("recipe.yaml"), [plan, refused]),
    }


ROW = SizeRow(n=1319, theta=4.84, threshold=-3.2, proven=1.51, failed=2.64)


def make_power_documents(text="some text"):
    """Return a document for each question, with `text` as the name of a task."""
    asked = PowerQuestion(total=1319, tests=8, repeats=4, design_effect=1.5, margin=2.0, sigma=30.0)
    measured = Measured(
        task=text, n=1319, value=59.3, sigma=49.0, bernoulli=49.1, judged_by=50.0,
        per_second=12.5, flip_rate=0.03, flips_of=text,
    )  # fmt: skip
    detection = Detection(
        drop=1.0,
        n=2702,
        margin=2.2,
        needed=[
            Needed(rule=rule, n=n, purpose="to prove it", seconds=seconds)
            for rule, n, seconds in (
                ("classic", 30913, 0.25), ("paired", 2702, 20.0), ("paired FAIL", None, None),
                ("noninferiority", 2176, None),
            )
        ],
        rows=[DropRow(drop=0.25 * i, classic=1e-08, proven=0.2, failed=1.0) for i in range(7)],
    )  # fmt: skip
    total = TaskPower(
        task="", measured=None, assumed=assume(asked, None), at=ROW, sizes=[ROW] * 9, theta=None,
        detection=None,
    )  # fmt: skip
    drop = replace(total, at=None, sizes=(), detection=detection)
    theta = replace(drop, detection=None, theta=ThetaSize(theta=3.0, n=3435, row=4096))
    of_run = replace(
        drop, task=text, measured=measured, assumed=assume(PowerQuestion(), measured), at=ROW
    )
    none = replace(total, at=replace(ROW, proven=None, failed=None))
    run = Path("outputs/run")
    return {
        "total": make_power_document([total], asked),
        "drop": make_power_document([drop], PowerQuestion(detect=1.0)),
        "theta": make_power_document([theta], PowerQuestion(theta=3.0)),
        "everything": make_power_document(
            [replace(total, detection=detection, theta=theta.theta)], asked
        ),
        "none": make_power_document([none], asked),
        "run": make_power_document([of_run], PowerQuestion(detect=1.0, from_run=run)),
        "several": make_power_document([of_run] * 30, PowerQuestion(detect=1.0, from_run=run)),
    }


OWN = Path("my-references")


def make_references_documents(text="some text"):
    """Return a document for each outcome, with `text` where a server or a file wrote it."""
    one = Registered(
        task="gsm8k",
        model=text,
        file=OWN / "gsm8k.yaml",
        scores=OWN / "samples/gsm8k.json",
        value=1e-05,
        values=(1e-05, 1e-05, 1e-05),
        samples=1319,
        flip_rate=0.034,
        seeds="no sampling seed: the server drew",
        taken=text,
        reason=text,
        warnings=(text, "2 of 3 runs"),
    )
    several = [replace(one, task=f"task_{i}", scores=None) for i in range(30)]
    use = "serve-eval run --base-url localhost:8000 -t gsm8k --references-dir my-references"
    taken = {"command": "serve-eval references take", "use": use}
    entry = ShownEntry(
        name=text,
        value=59.3,
        spec="quant_algo=FP8",
        details=("num_samples=1319", text),
        facts=(("taken at", text), ("runs", "3 runs of 1319 samples")),
        warnings=(text,),
    )
    length = ShownEntry(name=text, value=1.3, least=1.1)
    bad = CheckedFile(file=OWN / "a.yaml", problems=(text, "2"))
    good = CheckedFile(file=OWN / "b.yaml", problems=(), runs=(text,), warnings=(text,))
    count = FileCount(models=1, entries=2, written=2)
    imported = ImportReport(
        oddities=(text, "odd"), lost=(text,), counts={"gsm8k.yaml": count},
        written=(OWN,), new=(OWN,), updated=(),
    )  # fmt: skip
    return {
        "taken": make_references_document([one], OWN, **taken, folder=Path("outputs/taken")),
        "several": make_references_document(several, OWN, **taken),
        "entry": make_entries_document("gsm8k", [entry], ""),
        "entries": make_entries_document("gsm8k", [entry] * 2, ""),
        "many": make_entries_document("gsm8k", [entry] * 25, ""),
        "lengths": make_entries_document("acceptance_length", [length] * 40, ""),
        "list": make_list_document(
            [ShownFile(folder=OWN, name=f"t{i}", models=3, entries=i) for i in range(40)], ""
        ),
        "FAIL": make_check_document(OWN, [bad, good]),
        "PASS": make_check_document(OWN, [good]),
        "imported": make_import_document(imported, Path("checkout"), OWN),
    }


URLS = tuple(f"http://127.0.0.1:{8001 + i}/v1" for i in range(3))


def make_attribute_documents(text="some text"):
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
    return {name: make_attribute_document(one, Path("outputs/run")) for name, one in found.items()}


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
