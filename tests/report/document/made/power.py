"""Documents of plans: of n samples, of a drop, of theta, of the tasks of a run."""

from dataclasses import replace
from pathlib import Path

from serve_eval.workflows.power.answers import (
    Detection,
    DropRow,
    Needed,
    SizeRow,
    TaskPower,
    ThetaSize,
)
from serve_eval.workflows.power.assumed import Measured, assume
from serve_eval.workflows.power.document import make_document
from serve_eval.workflows.power.question import PowerQuestion

ROW = SizeRow(n=1319, theta=4.84, threshold=-3.2, proven=1.51, failed=2.64)


def make_documents(text="some text"):
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
        "total": make_document([total], asked),
        "drop": make_document([drop], PowerQuestion(detect=1.0)),
        "theta": make_document([theta], PowerQuestion(theta=3.0)),
        "everything": make_document(
            [replace(total, detection=detection, theta=theta.theta)], asked
        ),
        "none": make_document([none], asked),
        "run": make_document([of_run], PowerQuestion(detect=1.0, from_run=run)),
        "several": make_document([of_run] * 30, PowerQuestion(detect=1.0, from_run=run)),
    }
