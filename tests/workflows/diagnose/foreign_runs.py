"""Simulated runs whose answers are exchanged, or not, between requests in flight together.

`python -m tests.workflows.diagnose.foreign_runs` prints the table of
docs/measured/diagnose-foreign-answers.md.
"""

import heapq
import random
from dataclasses import dataclass
from pathlib import Path

from serve_eval.schema import Attempt, Limits, Outcome, Plan, Response, Spec
from serve_eval.storage.scores import ScoreRecord
from serve_eval.storage.sessions import SessionRecord
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence
from serve_eval.workflows.diagnose.finding import AskedSample
from serve_eval.workflows.diagnose.foreign import foreign_answers


@dataclass(slots=True, kw_only=True)
class Content:
    """A sample: its target, the answer that the model gives, and the seconds that it takes."""

    target: str
    answer: str
    length_s: float


def draw_target(rng, hard):
    """Return a short number; many samples have the same, and hard ones have larger numbers."""
    if rng.random() < 0.2:
        return rng.choice((0, 1, 2, 10, 100))
    return rng.randint(0, 20) if rng.random() < 0.6 - 0.4 * hard else rng.randint(0, 500)


def draw_content(rng, accuracy):
    """Return a sample of which hard ones take longer, and are wrong more often."""
    hard = rng.random()
    target = draw_target(rng, hard)
    answer = target
    if rng.random() < 2 * (1.0 - accuracy) * hard:
        answer = rng.choice(
            (target + rng.choice((-1, 1, 10)), 10 * target, 0, draw_target(rng, hard))
        )
    return Content(
        target=str(target), answer=str(answer), length_s=(0.2 + hard) * rng.uniform(0.7, 1.4)
    )


def draw_run(rng, n, *, in_flight, share, accuracy=0.8):
    """Return a run of `n` samples, of which a `share` has its answer exchanged with another one.

    The other one is in flight at the time, and the exchange takes place at the end of the first.
    """
    contents = [draw_content(rng, accuracy) for _ in range(n)]
    free = [0.0] * in_flight
    spans = []
    for content in contents:
        start = heapq.heappop(free)
        # The machine is slower at times, which no content decides.
        slow = 1.5 if int(start) % 10 == 3 else 1.0
        spans.append((start, start + slow * content.length_s))
        heapq.heappush(free, spans[-1][1])
    said = [content.answer for content in contents]
    taken = set[int]()
    for i in sorted(range(n), key=lambda i: spans[i][1]):
        others = [
            j
            for j in range(max(0, i - 4 * in_flight), min(n, i + 4 * in_flight))
            if j != i and j not in taken and spans[j][0] < spans[i][1] < spans[j][1]
        ]
        if i not in taken and others and rng.random() < share / 2.0 / (1.0 - share / 2.0):
            j = rng.choice(others)
            said[i], said[j] = said[j], said[i]
            taken |= {i, j}
    return to_run(contents, said, spans)


def to_run(
    contents,
    said,
    spans,
    order="random",
):
    """Return a run in which these answers were said within these times."""
    asked = []
    for i, (content, answer, (start, end)) in enumerate(zip(contents, said, spans, strict=True)):
        right = answer == content.target
        tried = Attempt(
            start_s=1e9 + start, end_s=1e9 + end, failure=None, status=200, request_id="r"
        )
        line = ScoreRecord(
            id=str(i),
            outcome=Outcome.CORRECT if right else Outcome.WRONG,
            value=float(right),
            answer=answer,
            target=content.target,
        )
        asked.append(
            AskedSample(
                id=str(i),
                response=Response(
                    text=f"so it is {answer}", finish_reason="stop", attempts=(tried,)
                ),
                failure=None,
                attempts=(tried,),
                line=line,
                bad=not right,
            )
        )
    return Evidence(
        folder=Path("run"),
        plan=Plan(model="m", launcher=Spec(name="external"), tasks=(Spec(name="t"),)),
        sessions=[SessionRecord(limits=Limits(order=order))],
        report=None,
        tasks=(TaskEvidence(name="t", fingerprint={}, asked=tuple(asked), report=None),),
        logs=(),
    )


SIZES = (100, 200, 400, 800, 1600)


def main():
    """Print how many healthy runs are accused, and how many prompts a fault takes."""
    rng = random.Random("healthy")
    accused = sum(
        bool(
            list(
                foreign_answers(
                    draw_run(rng, rng.choice(SIZES[:4]), in_flight=rng.choice((8, 64)), share=0.0)
                )
            )
        )
        for _ in range(1000)
    )
    print(f"healthy runs accused: {accused} of 1000")
    print("| exchanged | in flight | " + " | ".join(map(str, SIZES)) + " |")
    for share in (0.02, 0.05, 0.1):
        for in_flight in (8, 64):
            found = [
                sum(
                    bool(
                        list(
                            foreign_answers(
                                draw_run(
                                    random.Random(f"{share} {in_flight} {n} {seed}"),
                                    n,
                                    in_flight=in_flight,
                                    share=share,
                                )
                            )
                        )
                    )
                    for seed in range(20)
                )
                for n in SIZES
            ]
            print(
                f"| {share:.0%} | {in_flight} | " + " | ".join(f"{k} of 20" for k in found) + " |"
            )


if __name__ == "__main__":
    main()
