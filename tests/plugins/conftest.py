import sys

import pytest

from serve_eval.plugins.scope import open_scope

TASK = '''"""Towns: {text}."""

from __future__ import annotations

from serve_eval.schema import DataRoots, Dataset, Hypothesis, Metric, Outcome, Response, Sample
from serve_eval.schema import SamplingParams, Score
from serve_eval.schema import Task

from ._reading import said


def task(*, num_samples: int = 20) -> Task:
    def load(roots: DataRoots, wanted: int) -> Dataset:
        places = [f"Town {{i}} of {{wanted}} is" for i in range(wanted)]
        samples = [
            Sample(id=str(i), prompt=place, target=f"town{{i}}") for i, place in enumerate(places)
        ]
        return Dataset(samples=samples, files=(), total=wanted)

    def score(sample: Sample, response: Response) -> Score:
        right = said(response.text) == sample.target
        return Score(value=float(right), outcome=Outcome.CORRECT if right else Outcome.WRONG)

    return Task(
        name="{name}",
        version=1,
        reference_file="{name}",
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=num_samples),
        sampling=SamplingParams(max_tokens=8),
        protocol={{}},
        load=load,
        score=score,
        answers=lambda sample: (sample.target, "nowhere"),
    )
'''
READING = "def said(text: str) -> str:\n    return text.strip()\n"


@pytest.fixture(autouse=True)
def _nothing_included(monkeypatch):
    """Undo what a test includes."""
    forget(monkeypatch)
    yield
    forget(monkeypatch)


def forget(monkeypatch):
    """Forget all extensions, as in a new process."""
    open_scope().folders.clear()
    open_scope().withheld.clear()
    open_scope().loaded.clear()
    open_scope().kept.clear()
    for name in [name for name in sys.modules if name.startswith("_serve_eval_included_")]:
        del sys.modules[name]


def write_task(folder, name="towns", text="an example of a task in a folder"):
    """Write a folder with a task that imports a file next to it."""
    (folder / "tasks").mkdir(parents=True, exist_ok=True)
    (folder / f"tasks/{name}.py").write_text(TASK.format(name=name, text=text))
    (folder / "tasks/_reading.py").write_text(READING)
    return folder
