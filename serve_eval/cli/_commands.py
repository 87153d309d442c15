"""List the fifteen commands in their groups, with the words under which users look for them.

The lines here make `serve-eval --help`. A command is imported only when it is called: importing all
of them takes longer than the rest of the help.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command: where its function is, its line in the help, and titles of questions it answers.

    `place` is the module below serve_eval.cli and the function. `titles` are what users write who
    do not know the command, such as "accuracy drop".
    """

    place: str
    line: str
    titles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Family:
    """A command that only has commands of its own."""

    line: str
    commands: Mapping[str, CommandEntry | Family]


_CHECK = Family(
    "Check load, cache and order, tool calls, or each worker.",
    {
        "load": CommandEntry(
            "check_load.check_load",
            "Find the number of requests in flight from which answers break.",
            (
                "wrong answers at high concurrency",
                "accuracy under load",
                "concurrency makes answers worse",
            ),
        ),
        "invariants": CommandEntry(
            "check_invariants.check_invariants",
            "Check that cache, batching, order and load change no answer.",
            (
                "batch invariance",
                "nondeterministic output at temperature 0",
                "prefix cache gives other answers",
                "different answers for the same prompt",
            ),
        ),
        "tools": CommandEntry(
            "check_tools.check_tools",
            "Check tool calls and guided decoding, streamed and under load.",
            (
                "tool calls are not parsed",
                "invalid JSON output",
                "structured output broken",
                "guided decoding",
            ),
        ),
        "workers": CommandEntry(
            "check_workers.check_workers",
            "Find the worker that gives wrong answers.",
            (
                "which worker is bad",
                "one replica gives bad answers",
                "bad GPU",
                "faulty decode worker",
            ),
        ),
    },
)
_RUNS = Family(
    "View, chart, tabulate, export and join runs.",
    {
        "view": CommandEntry(
            "runs.runs_view",
            "Show the last 30 nights and each run below a folder.",
            ("since when is it broken", "dashboard of results", "nightly results"),
        ),
        "table": CommandEntry(
            "runs.runs_table",
            "Write the results of runs and test logs as CSV.",
            ("results as CSV", "spreadsheet of results"),
        ),
        "trend": CommandEntry(
            "runs.runs_trend",
            "Chart the runs of many days to find a slow decline.",
            ("slow decline of accuracy", "accuracy drift over time"),
        ),
        "export": CommandEntry(
            "runs_export.runs_export",
            "Write runs as a table, or in the files of lm-eval or BioChatter.",
            ("results in the format of lm-eval", "LaTeX table of results"),
        ),
        "merge": CommandEntry("runs.runs_merge", "Join the shards of a run and judge them as one."),
    },
)
_REFERENCES = Family(
    "Take, register, show and import references; plan their size.",
    {
        "take": CommandEntry(
            "_references_take.take",
            "Ask an endpoint that you trust, and register the mean.",
            ("make a baseline", "no reference for my model"),
        ),
        "register": CommandEntry(
            "references.register", "Make finished runs the reference of their model."
        ),
        "list": CommandEntry("references.list_files", "List the reference files."),
        "show": CommandEntry(
            "references.show",
            "Show the entries of a reference file.",
            ("published accuracy of a model", "expected score of a model"),
        ),
        "check": CommandEntry("references.check", "Check reference files."),
        "import": CommandEntry(
            "references.import_files",
            "Import results of lm-eval, inspect and other tools as references.",
            ("use a baseline of lm-eval", "reference from an inspect log"),
        ),
        "power": CommandEntry(
            "references.references_power",
            "Compute the drop that n samples can detect.",
            (
                "flaky threshold",
                "how many samples are enough",
                "is this drop noise",
                "statistical significance",
            ),
        ),
    },
)
_CASES = Family(
    "Write, list, encrypt and import your own cases.",
    {
        "new": CommandEntry("data_cases.new", "Write an example file, ready to run."),
        "expand": CommandEntry("data_cases.expand", "List the cases that would be asked."),
        "schema": CommandEntry("data_cases.schema", "Print the JSON schema of case files."),
        "encrypt": CommandEntry(
            "data_cases.encrypt", "Encrypt a hold-out set.", ("keep test data secret",)
        ),
        "import-results": CommandEntry(
            "data_cases.import_results", "Make references from BioChatter's results."
        ),
    },
)
_DATA = Family(
    "Fetch and check data sets, list tasks, write your own cases.",
    {
        "fetch": CommandEntry(
            "data.fetch",
            "Fetch data sets, and check or record their checksums.",
            ("download GSM8K", "offline data sets", "where do data sets come from"),
        ),
        "path": CommandEntry("data.path", "Print the folder of a data set."),
        "check": CommandEntry(
            "data_check.check",
            "Compare data sets with their checksums, and tasks with their gold answers.",
            ("does the scorer work", "right answers are scored as wrong"),
        ),
        "cases": _CASES,
        "requests": CommandEntry(
            "data.data_requests",
            "Say what a log of requests holds, and which fields a server refuses.",
            ("replay production traffic", "test with requests of users"),
        ),
        "list": CommandEntry(
            "data_list.data_list",
            "List tasks, launchers, verdict rules, presets and data sets.",
            ("which benchmarks are there", "list of tasks"),
        ),
    },
)
_SETUP = Family(
    "Write a first plan, look at this machine, complete commands.",
    {
        "init": CommandEntry(
            "setup.setup_init",
            "Ask an endpoint what it is, and write a starter plan.",
            ("getting started", "first plan", "convert a recipe"),
        ),
        "doctor": CommandEntry(
            "setup.setup_doctor",
            "Look at this machine: what works here, what is absent.",
            ("too many open files", "what is installed"),
        ),
        "completion": CommandEntry(
            "setup_completion.setup_completion",
            "Print the script that completes commands in a shell.",
            ("tab completion",),
        ),
        "schema": CommandEntry(
            "setup.setup_schema", "Print the JSON Schema of plans, suites and reports."
        ),
        "demo": CommandEntry(
            "setup.setup_demo",
            "Judge a tiny real model, intact and damaged.",
            ("try it without a GPU",),
        ),
    },
)
GROUPS: Mapping[str, Mapping[str, CommandEntry | Family]] = {
    "Evaluate": {
        "run": CommandEntry(
            "run.run",
            "Judge an endpoint, by flags, a plan or a suite of plans.",
            (
                "accuracy test",
                "evaluate a model",
                "benchmark accuracy",
                "nightly regression test",
            ),
        ),
        "compare": CommandEntry(
            "compare.compare",
            "Compare two endpoints: is B worse than A?",
            (
                "accuracy drop after an update",
                "accuracy regression",
                "quantization loses accuracy",
                "FP8 accuracy drop",
            ),
        ),
        "verify": CommandEntry(
            "verify.verify",
            "Check in seconds that this is still the same model.",
            ("same model as before", "did the provider change the model", "wrong checkpoint"),
        ),
        "smoke": CommandEntry(
            "smoke.smoke",
            "Check in seconds which kinds of requests work.",
            ("sanity check", "is the server up", "health check", "garbage output"),
        ),
    },
    "Investigate": {
        "diagnose": CommandEntry(
            "diagnose.diagnose",
            "Explain why a run is red and what to change.",
            (
                "low GSM8K score",
                "score lower than published",
                "accuracy is 0",
                "cannot reproduce the published score",
                "why did it fail",
            ),
        ),
        "show": CommandEntry(
            "show.show",
            "Show samples of a run: question, answer, score.",
            ("see wrong answers", "replay one request", "reproduce a request with curl"),
        ),
        "bisect": CommandEntry(
            "bisect.bisect",
            "Find the option or image that broke the accuracy.",
            ("which commit broke accuracy", "which option breaks accuracy"),
        ),
        "check": _CHECK,
    },
    "Every day": {
        "watch": CommandEntry(
            "watch.watch",
            "Watch a production endpoint and raise alarms.",
            ("monitor quality in production", "silent degradation", "alert on quality"),
        ),
        "runs": _RUNS,
        "judge": CommandEntry(
            "judge.judge",
            "Judge a finished run again, by another rule or new scores.",
            ("change the threshold afterwards", "answers scored wrong", "extraction failed"),
        ),
        "references": _REFERENCES,
    },
    "Set up": {
        "serve": CommandEntry(
            "serve.serve",
            "Start servers and keep them up for other clients.",
            ("launch trtllm-serve", "start disaggregated servers"),
        ),
        "data": _DATA,
        "setup": _SETUP,
    },
}
COMMANDS: Mapping[str, CommandEntry | Family] = {
    name: entry for group in GROUPS.values() for name, entry in group.items()
}


def find_entry(words: Sequence[str]) -> CommandEntry | Family | None:
    """Return the command that words after `serve-eval` name; None if there is none."""
    found: CommandEntry | Family | None = None
    known: Mapping[str, CommandEntry | Family] = COMMANDS
    for word in words:
        found = known.get(word)
        if found is None:
            return None
        known = found.commands if isinstance(found, Family) else {}
    return found


def walk(
    commands: Mapping[str, CommandEntry | Family] = COMMANDS, before: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], CommandEntry]]:
    """Yield the words of each command that does something, with its entry."""
    for name, entry in commands.items():
        if isinstance(entry, Family):
            yield from walk(entry.commands, (*before, name))
        else:
            yield (*before, name), entry
