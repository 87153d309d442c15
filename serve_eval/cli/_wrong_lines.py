"""Answer a line that names no command with the line that was meant.

People type the commands of other tools, and those that serve-eval had before its first release.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from serve_eval.cli._commands import COMMANDS, Family, find_entry
from serve_eval.cli._usage import URL
from serve_eval.errors import PlanError
from serve_eval.shell_words import join_words, quote_word

FORMER: Mapping[str, str] = {
    "suite": "run",
    "attribute": "check workers",
    "invariants": "check invariants",
    "load": "check load",
    "tools": "check tools",
    "verdict": "judge",
    "rescore": "judge --rescore",
    "capsule": "show --capsule",
    "merge": "runs merge",
    "export": "runs export",
    "collect": "runs table",
    "drift": "runs trend",
    "view": "runs view",
    "power": "references power",
    "list": "data list",
    "datasets": "data",
    "cases": "data cases",
    "init": "setup init",
    "doctor": "setup doctor",
    "schema": "setup schema",
    "completion": "setup completion",
    "demo": "setup demo",
}
"""The commands before the first release, and what they are now."""
_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("eval", "evaluate", "test", "score", "accuracy", "bench", "benchmark"), "run"),
    **dict.fromkeys(("lm-eval", "lm-evaluation-harness", "lm-harness", "lighteval"), "run"),
    **dict.fromkeys(("nemo-evaluator", "nemo-evaluator-launcher", "nemo-evaluator-launch"), "run"),
    **dict.fromkeys(
        ("sgl-eval", "sglang", "evalscope", "inspect", "simple-evals", "opencompass"), "run"
    ),
    **dict.fromkeys(("gsm8k", "mmlu", "gpqa", "humaneval"), "run"),
    **dict.fromkeys(("diff", "ab", "a-b", "versus", "vs"), "compare"),
    **dict.fromkeys(("health", "ping", "probe", "status-check"), "smoke"),
    **dict.fromkeys(("same", "identity", "fingerprint"), "verify"),
    **dict.fromkeys(("why", "explain", "debug", "analyze", "analyse"), "diagnose"),
    **dict.fromkeys(("samples", "inspect-sample", "log", "logs", "replay", "curl"), "show"),
    **dict.fromkeys(("guidellm", "genai-perf", "aiperf", "trtllm-bench", "concurrency"), "load"),
    **dict.fromkeys(("worker", "workers", "replicas"), "workers"),
    **dict.fromkeys(("monitor", "alert", "canary"), "watch"),
    **dict.fromkeys(
        ("ui", "dashboard", "report", "html", "results", "history", "compare-runs"), "view"
    ),
    **dict.fromkeys(("trend", "plot", "chart"), "trend"),
    **dict.fromkeys(("csv", "table"), "table"),
    **dict.fromkeys(("rejudge", "re-judge", "threshold"), "judge"),
    **dict.fromkeys(("baseline", "baselines", "reference", "record"), "references"),
    **dict.fromkeys(("launch", "start", "up", "trtllm-serve", "deploy"), "serve"),
    **dict.fromkeys(("stop", "down", "kill"), "stop"),
    **dict.fromkeys(("ps", "status"), "ps"),
    **dict.fromkeys(("download", "fetch", "dataset"), "fetch"),
    **dict.fromkeys(("tasks", "ls", "models", "ls-tasks"), "tasks"),
    **dict.fromkeys(("launchers",), "launchers"),
    **dict.fromkeys(("new", "create", "config", "configure"), "init"),
    **dict.fromkeys(("info", "env", "check-env"), "doctor"),
    **dict.fromkeys(("quickstart", "example", "tutorial"), "demo"),
    **dict.fromkeys(("install-completion", "autocomplete"), "completion"),
    **dict.fromkeys(("sample-size", "samplesize", "mde"), "power"),
}
"""A word that people type as the command, and the answer below that it gets."""
_WITHIN: Mapping[str, str] = {
    "data verify": "check",
    "data datasets": "list datasets",
    "data tasks": "list tasks",
    "data presets": "list presets",
    "data launchers": "list launchers",
    "data download": "fetch",
    "runs list": "view",
    "runs show": "view",
    "runs drift": "trend",
    "runs collect": "table",
    "runs csv": "table",
    "check attribute": "workers",
    "check concurrency": "load",
    "setup config": "init",
    "setup plan": "init",
}
"""A word that people type below a group, and the words that are right there."""
_ANSWERS: Mapping[str, str] = {
    "load": f"check load {URL} --concurrency 1,32",
    "workers": "check workers",
    "view": "runs view outputs",
    "trend": "runs trend outputs",
    "table": "runs table outputs",
    "judge": "judge",
    "references": f"references take {URL}",
    "stop": "serve --stop ID",
    "ps": "serve --list",
    "fetch": "data fetch gsm8k",
    "tasks": "data list tasks",
    "launchers": "data list launchers",
    "init": f"setup init {URL}",
    "doctor": "setup doctor",
    "demo": "setup demo",
    "completion": "setup completion bash",
    "power": "references power --total 1319",
    "compare": "compare http://A:8000 http://B:8000",
    "smoke": f"smoke {URL}",
    "verify": "verify http://A:8000 http://B:8000",
    "diagnose": "diagnose",
    "show": "show",
    "watch": f"watch {URL}",
    "serve": "serve trtllm",
}
_TASK_WORDS = ("gsm8k", "mmlu", "gpqa", "humaneval")
_ADDRESSES = ("base-url", "url", "target", "endpoint", "server", "model-url", "api-url", "host")
_VALUES: Mapping[str, str] = {
    **dict.fromkeys(("tasks", "task", "t", "eval-name"), "--tasks"),
    **dict.fromkeys(("model", "model-name", "model-id", "model-path", "m"), "--model"),
    **dict.fromkeys(_ADDRESSES, "--base-url"),
    **dict.fromkeys(
        ("concurrency", "num-concurrent", "max-concurrency", "parallelism", "num-threads"),
        "--concurrency",
    ),
    **dict.fromkeys(("limit", "num-examples", "limit-samples", "num-samples"), "--limit"),
    **dict.fromkeys(("num-fewshot", "num-shots"), "--num-fewshot"),
    **dict.fromkeys(("output-path", "output-dir", "output", "o", "out-dir"), "-o"),
}
"""Options of other tools, and the option of `run` with the same value."""
_BACKENDS = frozenset(
    [
        "local-completions",
        "local-chat-completions",
        "openai-completions",
        "openai-chat-completions",
        "hf",
        "vllm",
        "sglang",
        "openai",
    ]
)


def answer(before: Sequence[str], args: Sequence[str]) -> PlanError:
    """Return the error for a line whose next word names no command, with the right line.

    `before` are the words of the group, none for `serve-eval` itself.
    """
    word, *rest = args
    name = word.lower().replace("_", "-")
    said = f"there is no command {' '.join((*before, word))!r}"
    if not before and name in ("help", "version"):
        asked = [*rest, "--help"] if name == "help" else ["--version"]
        return PlanError(said, hint=f"See {join_words(['serve-eval', *asked])}")
    if (line := _find_line(before, name, args)) is not None:
        return PlanError(said, hint=f"Write: {line}")
    from serve_eval.cli._usage import find_commands, list_commands

    question = " ".join([word, *(one for one in rest if not one.startswith("-"))])
    if found := [
        one for one in find_commands(question) if one.command.split()[: len(before)] == [*before]
    ]:
        return PlanError(said, hint="\n".join([f"For {question!r}, see:", *list_commands(found)]))
    return PlanError(said, hint=f"{' '.join(('serve-eval', *before))} --help lists the commands.")


def _find_line(before: Sequence[str], name: str, args: Sequence[str]) -> str | None:
    """Return the line that was meant, or None. `name` is the first word in the usual spelling."""
    from serve_eval.plugins.registry import find_closest

    word, *rest = args
    if before:
        entry = find_entry(before)
        below = entry.commands if isinstance(entry, Family) else {}
        close = _WITHIN.get(" ".join((*before, name))) or next(iter(find_closest(name, below)), "")
        return join_words(["serve-eval", *before, *close.split(), *rest]) if close else None
    if re.search(r"\.ya?ml$", word):
        return join_words(["serve-eval", "run", *args])
    if re.match(r"https?://|[\w.-]+:\d+(/|$)", word):
        return join_words(["serve-eval", "smoke", *args])
    if name in FORMER:
        return join_words(rewrite_former(name, rest))
    if (line := translate([name, *rest])) is not None:
        return line
    for close in find_closest(name, (*COMMANDS, *FORMER)):
        former = close in FORMER
        return join_words(rewrite_former(close, rest) if former else ["serve-eval", close, *rest])
    return None


def rewrite_former(name: str, rest: Sequence[str]) -> list[str]:
    """Return the line of today for one of before the first release."""
    rest = list(rest)
    if name == "capsule":
        return ["serve-eval", "show", *_as_capsule(rest)]
    if name == "datasets" and rest[:1] in (["list"], ["verify"]):
        rest[:1] = ["list", "datasets"] if rest[0] == "list" else ["check"]
    if name in ("datasets", "collect", "init", "cases"):
        rest = ["-o" if one in ("--to", "--output") else one for one in rest]
    if name == "datasets":
        rest = ["--dataset-root" if one == "--root" else one for one in rest]
    return ["serve-eval", *FORMER[name].split(), *rest]


def _as_capsule(rest: Sequence[str]) -> list[str]:
    """Return the words of `show --capsule` for those of the former `capsule`."""
    words, samples = [], []
    given = iter(
        one
        for word in rest
        for one in (word.split("=", 1) if word.startswith("--sample=") else [word])
    )
    for one in given:
        if one == "--sample":
            samples.append(next(given, "ID"))
        else:
            words.append(one)
    return [*words, *samples, "--capsule"]


def translate(args: Sequence[str]) -> str | None:
    """Return the line of serve-eval for one of another tool, or None if it is not known.

    The address, the model, the tasks, the limit and the concurrency are taken along.
    """
    words = list(args)
    if words[0] in ("python", "python3"):
        words = words[words.index("-m") + 1 :] if "-m" in words else words[1:]
        if not words:
            return None
        words[0] = words[0].partition(".")[0].replace("_", "-")
    name = words[0]
    if special := _SPECIAL.get(name):
        return special(words[1:])
    meant = _WORDS.get(name)
    if meant is None:
        return None
    if meant != "run":
        url = next((text for key, text in _read_options(words) if key in _ADDRESSES), URL)
        return f"serve-eval {_ANSWERS[meant]}".replace(URL, quote_word(url))
    task = [name] if name in _TASK_WORDS else []
    return _write_run(words[1:], tasks=task)


def _write_run(words: Sequence[str], *, tasks: Sequence[str], launcher: str = "") -> str:
    """Return the `run` with the values that the options of another tool have."""
    given: dict[str, str] = {}
    plans = [one for one in words if re.search(r"\.ya?ml$", one)]
    for key, value in _read_options(words):
        for name, text in _read_pairs(key, value):
            if name == "model" and text in _BACKENDS:
                continue
            if option := _VALUES.get(name):
                given.setdefault(option, text)
    if plans and not given:
        return f"serve-eval run {join_words(plans[:1])}"
    if launcher:
        given = {"--launcher": launcher, **given}
        given.pop("--base-url", None)
    else:
        given = {"--base-url": URL, **given}
        given["--base-url"] = re.sub(r"(/v1)/.*$", r"\1", given["--base-url"])
    if tasks:
        given.setdefault("--tasks", ",".join(tasks))
    given.setdefault("--tasks", "gsm8k")
    return join_words(["serve-eval", "run", *(one for pair in given.items() for one in pair)])


def _read_options(words: Sequence[str]) -> list[tuple[str, str]]:
    """Return the options of a line with their values; flags without a value are left out."""
    found = []
    for at, word in enumerate(words):
        if not word.startswith("-"):
            continue
        key, equals, value = word.partition("=")
        if not equals:
            value = words[at + 1] if at + 1 < len(words) else ""
        if value and (equals or not value.startswith("-")):
            found.append((key.lstrip("-").replace("_", "-"), value))
    return found


def _read_pairs(key: str, value: str) -> list[tuple[str, str]]:
    """Return the values of an option; `--model_args a=b,c=d` and overrides have several."""
    if key not in ("model-args", "override", "overrides", "o") or "=" not in value:
        return [(key, value)]
    pairs = [one.partition("=") for one in value.split(",")]
    names = {"pretrained": "model", "model_id": "model"}
    return [
        (names.get(last := name.rpartition(".")[2], last).replace("_", "-"), text)
        for name, _, text in pairs
    ]


def _answer_vllm(words: Sequence[str]) -> str:
    if words[:1] == ["bench"]:
        return f"serve-eval {_ANSWERS['load']}"
    return _write_serve("vllm", words[1:] if words[:1] == ["serve"] else words)


def _answer_trtllm_serve(words: Sequence[str]) -> str:
    if words[:1] == ["disaggregated"]:
        return _write_serve("trtllm_disaggregated", words[1:])
    return _write_serve("trtllm", words[1:] if words[:1] == ["serve"] else words)


def _write_serve(launcher: str, words: Sequence[str]) -> str:
    values = {value for _, value in _read_options(words)}
    named = [one for one in words if not one.startswith("-") and one not in values][:1]
    model = dict(_read_options(words)).get("model") or (named[0] if named else "MODEL")
    return join_words(["serve-eval", "serve", launcher, "--model", model])


def _answer_trtllm_eval(words: Sequence[str]) -> str:
    values = {value for _, value in _read_options(words)}
    tasks = [one for one in words if not one.startswith("-") and one not in values]
    return _write_run(
        words, tasks=[one.replace("gpqa_diamond", "gpqa") for one in tasks], launcher="trtllm"
    )


_SPECIAL: Mapping[str, Callable[[Sequence[str]], str]] = {
    "vllm": _answer_vllm,
    "trtllm-serve": _answer_trtllm_serve,
    "trtllm-eval": _answer_trtllm_eval,
    "trtllm-llmapi-launch": lambda words: "serve-eval run PLAN.yaml --write-job DIR",
    "srun": lambda words: "serve-eval run PLAN.yaml --write-job DIR",
    "sbatch": lambda words: "serve-eval run PLAN.yaml --write-job DIR",
}
"""The tools whose lines need more than the values of their options."""
