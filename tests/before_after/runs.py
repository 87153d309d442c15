"""List the twelve deterministic runs: the plans of each, and its commands."""

from tests.before_after.checkout import Run, Step, common, run, shown, simulated
from tests.before_after.data import plan

GSM8K = {"gsm8k": {"num_samples": 120}}
WORDS = {"word_problems": {"num_samples": 60}}


def _tasks(folder):
    tasks = [GSM8K, {"mmlu": {"num_samples": 114}}, {"humaneval": {"num_samples": 40}}, WORDS]
    plan(folder / "tasks.yaml", tasks=tasks, launcher=simulated(accuracy=0.7), **common(8))
    likely = [
        {"mmlu": {"num_samples": 114, "scoring": "loglikelihood"}},
        {"word_problems_perplexity": {"num_samples": 30}},
    ]
    served = simulated(accuracy=0.7, prompt_logprobs="echo")
    plan(folder / "likely.yaml", tasks=likely, launcher=served, **common(8))
    programs = [{"humaneval": {"metric": "pass@1", "num_samples": 10}}]
    plan(folder / "programs.yaml", tasks=programs, launcher=simulated(accuracy=0.6), **common(2))


TASKS = Run(
    "tasks",
    _tasks,
    (
        shown("run", "tasks.yaml", "--no-reference", "--dry-run"),
        shown("run", "tasks.yaml", "--no-reference", "--dry-run", "--json"),
        Step(("run", "tasks.yaml", "--no-reference", "--dump-prompts", "prompts.jsonl")),
        run("tasks.yaml"),
        run("likely.yaml"),
        run("programs.yaml", "--allow-code-execution"),
    ),
    ("tasks", "likely", "programs"),
    files=("prompts.jsonl",),
)

RULES = ("classic", "paired", "noninferiority", "anchors")


def _rules(folder):
    for name, number, damage in (
        ("r0", 0, 0),
        ("r1", 1, 0),
        ("r2", 2, 0),
        ("r3", 3, 0),
        ("worse", 9, 0.25),
    ):
        served = simulated(accuracy=0.8, flip_rate=0.05, run=number, damage=damage)
        plan(folder / f"{name}.yaml", tasks=[GSM8K, WORDS], launcher=served, **common(8))


def _judged(name):
    return [
        shown("judge", name, "--verdict", rule, "--references-dir", "refs", "--json")
        for rule in RULES
    ]


VERDICTS = Run(
    "rules",
    _rules,
    (
        *(run(f"r{number}.yaml") for number in range(3)),
        Step(("references", "register", "r0", "r1", "r2", "--references-dir", "refs")),
        run("r3.yaml", "--references-dir", "refs"),
        *(
            run("worse.yaml", "--references-dir", "refs", "--verdict", rule, out=f"worse_{rule}")
            for rule in RULES
        ),
        shown("run", "worse.yaml", "--references-dir", "refs", "--verdict", "paired", "--dry-run"),
        *_judged("r3"),
        shown(
            "judge",
            "worse_classic",
            "--verdict",
            "paired",
            "--margin",
            "2",
            "--references-dir",
            "refs",
            "--json",
        ),
    ),
    ("r0", "r1", "r2", "r3", *(f"worse_{rule}" for rule in RULES), "refs"),
)


def _compared(folder):
    for name, number, damage in (("a", 0, 0.0), ("b", 1, 0.2)):
        served = simulated(accuracy=0.8, flip_rate=0.05, run=number, damage=damage, latency_s=0.02)
        plan(folder / f"{name}.yaml", tasks=[GSM8K, WORDS], launcher=served, **common(1))


COMPARE = Run(
    "compare",
    _compared,
    (
        Step(
            (
                "compare",
                "a.yaml",
                "b.yaml",
                "--set",
                "limits.order_seed=7",
                "--self",
                "40",
                "-o",
                "both",
            )
        ),
        run("a.yaml", out="run_a"),
        Step(("compare", "run_a", "b.yaml", "--set", "limits.order_seed=7", "-o", "mixed")),
        run("b.yaml", out="run_b"),
        shown(
            "compare",
            "run_a",
            "run_b",
            "--verdict",
            "noninferiority",
            "--margin",
            "2",
            "--json",
            "-o",
            "runs",
        ),
        shown("compare", "run_a", "run_a", "--json", "-o", "same"),
    ),
    ("both", "run_a", "run_b", "runs", "same", "mixed"),
)


def _suite(folder):
    _rules(folder)
    served = simulated(accuracy=0.8, flip_rate=0.05, run=3)
    limits = {"concurrency": 8, "order_seed": 7}
    shared = {
        "model": "m",
        "references_dir": "refs",
        "dataset_root": "data",
        "limits": limits,
        "tasks": [GSM8K, WORDS],
    }
    bad = {"name": "simulated", "seed": 3, "accuracy": 0.3, "run": 4}
    plans = [
        {"name": "fine", "launcher": served, "verdict": "paired", "attributes": {"load": "low"}},
        {"name": "also", "launcher": served, "verdict": "anchors"},
        {"name": "waived", "launcher": bad},
        {"name": "failing", "launcher": {**bad, "accuracy": 0.2}, "tasks": [WORDS]},
    ]
    waivers = [
        {"match": {"name": "waived"}, "reason": "known", "until": "2099-01-31"},
        {"match": {"name": "failing"}, "reason": "over", "until": "2020-01-31"},
    ]
    plan(folder / "sound.yaml", name="sound", defaults=shared, plans=plans, waivers=waivers)
    plans += [{"name": "broken", "launcher": served, "tasks": ["aime"]}]
    plan(folder / "suite.yaml", name="nightly", defaults=shared, plans=plans, waivers=waivers)


SUITE = Run(
    "suite",
    _suite,
    (
        *(run(f"r{number}.yaml") for number in range(3)),
        Step(("references", "register", "r0", "r1", "r2", "--references-dir", "refs")),
        shown("run", "sound.yaml", "--dry-run"),
        Step(("run", "suite.yaml", "-o", "nightly")),
        Step(("run", "--resume", "nightly")),
    ),
    ("nightly",),
)


def _early(folder):
    _rules(folder)
    limits = common(1)
    for name, accuracy in (("lost", 0.1), ("won", 0.99)):
        served = simulated(accuracy=accuracy, run=5)
        plan(
            folder / f"{name}.yaml",
            tasks=[{"gsm8k": {"num_samples": 400}}],
            launcher=served,
            **limits,
        )
    references = folder / "refs"
    references.mkdir()
    (references / "gsm8k.yaml").write_text(
        "m:\n  - accuracy: 80.0\n    source: made\n", encoding="utf-8"
    )


EARLY = Run(
    "early_stop",
    _early,
    (
        run("lost.yaml", "--references-dir", "refs", "--early-stop"),
        run("won.yaml", "--references-dir", "refs", "--early-stop", "--set", "early_stop=0.05"),
        Step(("run", "--resume", "lost", "--no-early-stop")),
        shown("run", "lost.yaml", "--references-dir", "refs", "--early-stop", "--dry-run"),
    ),
    ("lost", "won"),
    ordered=True,
)


def _cases(folder):
    plan(folder / "own.yaml", cases=["cases.yaml"], launcher=simulated(accuracy=0.6), **common(4))


CASES = Run(
    "cases",
    _cases,
    (
        shown("data", "cases", "expand", "cases.yaml"),
        shown("run", "own.yaml", "--no-reference", "--dry-run"),
        run("own.yaml"),
        Step(
            (
                "run",
                "own.yaml",
                "--no-reference",
                "--set",
                "limits.order_seed=7",
                "--rerun",
                "all",
                "-o",
                "own",
            )
        ),
    ),
    ("own",),
)


def _lm_eval(folder):
    served = simulated(accuracy=0.6, prompt_logprobs="echo")
    names = ["lm_eval:made_sums", "lm_eval:made_choices"]
    plan(folder / "theirs.yaml", tasks=names, include_path="mine", launcher=served, **common(4))


LM_EVAL = Run(
    "lm_eval",
    _lm_eval,
    (
        shown("run", "theirs.yaml", "--no-reference", "--dry-run"),
        run("theirs.yaml"),
        Step(("runs", "export", "theirs", "--include-path", "mine", "-o", "theirs/lm-eval")),
    ),
    ("theirs",),
    needs="lm_eval",
)


def _repeats(folder):
    served = simulated(accuracy=0.7, flip_rate=0.1, varied=True)
    plan(folder / "thrice.yaml", tasks=[GSM8K, WORDS], repeats=3, launcher=served, **common(1))
    plan(
        folder / "some.yaml",
        tasks=[WORDS, GSM8K],
        limit=40,
        repeats={"gsm8k": 2},
        launcher=served,
        **common(1),
    )


REPEATS = Run(
    "repeats",
    _repeats,
    (
        run("thrice.yaml"),
        run("some.yaml"),
        shown("run", "thrice.yaml", "--no-reference", "--dry-run"),
    ),
    ("thrice", "some"),
    ordered=True,
)


def _failures(folder):
    limits = {"max_attempts": 2, "retry_budget": 60, "max_error_rate": 0.5}
    kinds = {
        "once": ("500", 1),
        "always": ("bad_json", 0),
        "refused": ("wrapped_400", 0),
        "shut": ("disconnect", 1),
    }
    for name, (kind, times) in kinds.items():
        served = simulated(
            accuracy=0.7, failure_rate=0.1, failure_kind=kind, failures_per_prompt=times
        )
        plan(folder / f"{name}.yaml", tasks=[WORDS], launcher=served, **common(1, **limits))
    served = simulated(accuracy=0.7, truncate_rate=0.2, empty_rate=0.1)
    plan(folder / "cut.yaml", tasks=[GSM8K], launcher=served, **common(1))
    served = simulated(accuracy=0.7, failure_rate=0.6, failure_kind="html")
    plan(folder / "most.yaml", tasks=[GSM8K], launcher=served, **common(1, max_attempts=1))


FAULTS = ("once", "always", "refused", "shut", "cut", "most")
FAILURES = Run(
    "failures",
    _failures,
    (
        *(run(f"{name}.yaml") for name in FAULTS),
        *(shown("diagnose", name, "--json") for name in FAULTS),
    ),
    FAULTS,
    ordered=True,
)

AGAIN = Run(
    "again",
    _rules,
    (
        run("r0.yaml"),
        run("worse.yaml"),
        shown("judge", "--rescore", "r0", "--json"),
        shown(
            "judge",
            "--rescore",
            "r0",
            "--set",
            "gsm8k.filter=strict-match",
            "-o",
            "strict",
            "--json",
        ),
        Step(("references", "register", "r0", "--references-dir", "refs")),
        *_judged("worse"),
        Step(("runs", "export", "r0", "-o", "r0/lm-eval")),
        shown("diagnose", "worse", "--json"),
        shown("runs", "trend", ".", "--json"),
    ),
    ("r0", "worse", "strict", "refs"),
)


def _invariants(folder):
    served = simulated(accuracy=0.7)
    plan(folder / "one.yaml", tasks=[WORDS], launcher=served, **common(4))


_INVARIANTS = (
    "one.yaml",
    "--limit",
    "20",
    "--set",
    "limits.order_seed=7",
    "--set",
    "invariants.chunk_tokens=0",
    "-o",
    "passes",
)
INVARIANTS = Run(
    "invariants",
    _invariants,
    (
        Step(
            ("check", "invariants", *_INVARIANTS),
            otherwise=("compare", "--invariants", *_INVARIANTS),
        ),
    ),
    ("passes",),
)

SMOKE = Run(
    "smoke",
    lambda folder: None,
    (
        Step(("serve", "embedded", "--detach", "-o", "held")),
        shown("smoke", "{held}", "--json"),
        shown("smoke", "{held}", "--level", "full", "--set", "smoke.context_tokens=512", "--json"),
        shown("smoke", "{held}", "--dry-run"),
    ),
    (),
    last=Step(("serve", "--stop", "all")),
)

RUNS = (
    TASKS,
    VERDICTS,
    COMPARE,
    SUITE,
    EARLY,
    CASES,
    LM_EVAL,
    REPEATS,
    FAILURES,
    AGAIN,
    INVARIANTS,
    SMOKE,
)
