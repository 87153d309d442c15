"""Count the errors and the answers of suites that end once a FAIL is certain.

    python -m tests.workflows.suite.certain_trials [SUITES]

Each suite has eight paired tasks, which Holm judges together. It is asked whole, and again in the
same order by the rules of `evaluation.certain_fail`: looks at each task, McNemar's test with the
rest at its best, and p times eight. With an early stop, the looks of `stats.early_paired` have half
of alpha, divided by eight, and the final tests the other half.
"""

import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import product

import numpy

from serve_eval.evaluation.certain_fail import LOOKS
from serve_eval.stats.classic import Decision, classic_test
from serve_eval.stats.early_paired import EarlyPaired
from serve_eval.stats.judgement import judge
from serve_eval.stats.multiplicity import SPENT_ON_LOOKS, holm
from serve_eval.stats.pairs import pair
from serve_eval.stats.sign_tests import mcnemar
from tests.stats.calibrate_sums import percent

TASKS, N, ALPHA = 8, 500, 0.05
RIGHT, FLIPS = 0.75, 0.06
"""Share of right answers of the reference, and share of changed answers of a sound task."""
MARGIN = -classic_test(N, 0.0, 50.0, ALPHA, 0.2).threshold / 100
"""The margin of the classic rule as a share."""
DOWN = product((0.05, 0.1, 0.2), (("one down", 1), ("all down", TASKS)))
ROWS = [
    ("sound", 0, 0.0),
    *((f"{name}, {100 * drop:g} points", downs, drop) for drop, (name, downs) in DOWN),
]
WAYS = {
    "all": {"ends": False, "early": False},
    "all, ends": {"ends": True, "early": False},
    "early stop": {"ends": False, "early": True},
    "early stop, ends": {"ends": True, "early": True},
}


def draw(random, drop):
    """Draw the scores of a task in the order of its requests; `drop` of its prompts are lost."""
    before = (random.random(N) < RIGHT).astype(float)
    lost, won = (FLIPS / 2 + drop) / RIGHT, FLIPS / 2 / (1.0 - RIGHT)
    turned = random.random(N) < numpy.where(before == 1.0, lost, won)
    return before, numpy.where(turned, 1.0 - before, before)


def judge_asked(before, now, asked, alpha):
    """Return True for a FAIL after so many answers, and p; the others are at their best."""
    changed = now[:asked] - before[:asked]
    up = int((changed > 0).sum()) + int((before[asked:] == 0.0).sum())
    p = mcnemar(int((changed < 0).sum()), up).p_mid
    if p > alpha:
        return False, p
    scores = now.copy()
    scores[asked:] = numpy.nan
    pairs = pair([before], [scores], lo=0.0, hi=1.0, higher_is_better=True)
    told = judge(pairs, margin=MARGIN, alpha=alpha)
    assert abs((told.test.p or 0.0) - p) < 1e-9
    return told.finding.value == "FAIL", p


def is_certain(before, now, asked, alpha):
    """Return True if the FAIL is certain after so many answers, at the level of one of TASKS."""
    most_up = (now[:asked] > before[:asked]).sum() + (before[asked:] == 0.0).sum()
    p = mcnemar(int((now[:asked] < before[:asked]).sum()), int(most_up)).p_mid
    return TASKS * p <= alpha and judge_asked(before, now, asked, alpha)[0]


def look(before, now):
    """Return the decision of an early stop and the answers that it took; None: no decision."""
    test = EarlyPaired(N, MARGIN, alpha=SPENT_ON_LOOKS * ALPHA / TASKS)
    for place, difference in enumerate((now - before).tolist()):
        test.update_unit([(difference, difference)], 0)
        if test.decision is not None:
            return test.decision, place + 1
    return None, N


def ask(scores, decided, *, ends, early):
    """Return which tasks FAIL, and the answers that were asked.

    `scores` are those of each task, with its judgements by all answers, by their alpha.
    """
    alpha = ALPHA * (1.0 - SPENT_ON_LOOKS) if early else ALPHA
    total, p, fails = 0, [1.0] * TASKS, [False] * TASKS
    for i, (before, now, whole) in enumerate(scores):
        decision, asked = decided[i] if early else (None, N)
        looks = range(N // LOOKS, asked + (decision is None), N // LOOKS) if ends else ()
        end = next((n for n in looks if is_certain(before, now, n, alpha)), None)
        total += end or asked
        if end is None and decision is not None:
            fails[i] = decision is Decision.FAIL
            p[i] = 0.0 if fails[i] else 1.0
        else:
            if end is None and alpha not in whole:
                whole[alpha] = judge_asked(before, now, N, alpha)
            judged = whole[alpha] if end is None else judge_asked(before, now, end, alpha)
            fails[i], p[i] = judged
        if ends and fails[i] and TASKS * p[i] <= alpha:
            break
    corrected = holm(p)
    return [fail and one <= alpha for fail, one in zip(fails, corrected, strict=True)], total


def simulate(seed, suites, downs, drop):
    """Return for each way how often a suite, and a sound task, fails, and the share of answers."""
    random, found = numpy.random.default_rng(seed), {name: [0, 0, 0, 0.0] for name in WAYS}
    for _ in range(suites):
        down = set(random.choice(TASKS, downs, replace=False).tolist())
        scores = [(*draw(random, drop if i in down else 0.0), {}) for i in range(TASKS)]
        decided, verdicts = [look(before, now) for before, now, _ in scores], {}
        for name, how in WAYS.items():
            fails, asked = ask(scores, decided, **how)
            verdicts[name] = any(fails)
            counts = found[name]
            counts[0] += verdicts[name]
            counts[1] += any(fail and i not in down for i, fail in enumerate(fails))
            counts[2] += verdicts[name] != verdicts[name.removesuffix(", ends")]
            counts[3] += asked / (TASKS * N)
    return found


def main(suites):
    """Print the table. The states with a drop have a quarter of the suites."""
    print("| state | suites | asked | FAIL | FAIL of a sound task | another verdict | answers |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    counts = [suites if not downs else suites // 4 for _, downs, _ in ROWS]
    with ProcessPoolExecutor(3) as pool:
        jobs = [
            pool.submit(simulate, seed, count, *row[1:])
            for seed, (count, row) in enumerate(zip(counts, ROWS, strict=True))
        ]
        for row, count, job in zip(ROWS, counts, jobs, strict=True):
            for name, (*found, asked) in job.result().items():
                cells = [percent(one / count, count) for one in found]
                told = (row[0], str(count), name, *cells, f"{100 * asked / count:.1f}")
                print(f"| {' | '.join(told)} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
