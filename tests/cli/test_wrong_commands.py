"""Test that wrong commands end with cause and fix, and leave finished results alone.

Words in braces are addresses of servers. Files and folders are those that `prepare` writes into the
current folder.
"""

import re
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from tests.cli.command import serve_eval
from tests.scripted_server import EVERY_PATH, ScriptedServer, answer, fail, models, raw
from tests.thinking.commands import flavour_in_thread, write_sums

HERE = "--tasks word_problems --set word_problems.num_samples=4"
ASK = f"run --base-url {{ok}} -m m {HERE} --no-reference"
RUN_HINT = "Name the folder that serve-eval run -o wrote, such as outputs/RUN."
SERVER_HINT = "Check that this is the port of an OpenAI-compatible server."

FILES = {
    "tab.yaml": "model: m\ntasks:\n\t- word_problems\n",
    "list.yaml": "- word_problems\n",
    "torn.yaml": "model: m\ntasks: [word_problems\n",
    "key.yaml": "model: m\ntask: [word_problems]\n",
    "type.yaml": "model: m\ntasks: [word_problems]\nlimits: {concurrency: many}\n",
    "none.yaml": "model: m\n",
    "binary.yaml": "\x00\x01",
    "variable.yaml": 'tasks: [word_problems]\nlauncher: {name: external, base_url: "${URL}"}\n',
    "cases.yaml": "capitals:\n  cases:\n    - {case: paris, prompt: Where?}\n",
    "bad/gsm8k/test.jsonl": '{"q": "1+1?", "a": 2}\n',
    "bad/gsm8k/train.jsonl": '{"q": "1+1?", "a": 2}\n',
    "file": "",
    "compared/compare.json": "{}",
    "suites/suite.json": "{}",
}


@dataclass(frozen=True, kw_only=True)
class WrongCommand:
    """A command line after `serve-eval`, its exit code, and words of the cause and the fix."""

    words: str
    cause: str
    fix: str
    code: int = 2
    environ: dict[str, str] = field(default_factory=dict)


def _wrong(words, cause, fix, code=2, **environ):
    return WrongCommand(words=words, cause=cause, fix=fix, code=code, environ=environ)


def prepare(folder):
    """Write the files of the table."""
    for name, text in FILES.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (folder / "folder").mkdir()


TYPED = {
    "command": _wrong(
        "rum plan.yaml", "there is no command 'rum'", "Write: serve-eval run plan.yaml"
    ),
    "subcommand": _wrong(
        "data get gsm8k", "there is no command 'data get'", "see: serve-eval data fetch"
    ),
    "output": _wrong("run --output out", "no option --output.", "Did you mean --output-dir?"),
    "option": _wrong("run --task gsm8k", "no option --task:", "write --tasks NAME"),
    "value-missing": _wrong("run --tasks", "the option '--tasks' needs a value", "See serve-eval"),
    "no-sample": _wrong(
        "show done --capsule", "name a sample", "serve-eval show RUN lists the ids"
    ),
    "sample": _wrong("show done 9 --capsule", "9: the run has no such sample", "Known: test-0"),
    "limit-word": _wrong(f"{ASK} --limit many", "'--limit': expected a whole", "not 'many'"),
    "limit-0": _wrong(f"{ASK} --limit 0", "limit: must be 1 or more", "not 0"),
    "concurrency": _wrong(f"{ASK} --concurrency -1", "limits.concurrency:", "must be above 0"),
    "no-task": _wrong("run", "name at least one task", "All: serve-eval data list tasks"),
    "task": _wrong("run --tasks gsmk", "unknown task 'gsmk'", "Did you mean 'gsm8k'?"),
    "family": _wrong("run --tasks cases", "cases is a family of tasks", "cases:NAME"),
    "task-option": _wrong(
        "run --tasks gsm8k --set gsm8k.num_shots=2", "num_shots: unknown option", "'num_fewshot'?"
    ),
    "set-form": _wrong(f"{ASK} --set gsm8k.x", "expected NAME.OPTION=VALUE", "num_samples=100"),
    "rule": _wrong(f"{ASK} --verdict classical", "unknown verdict rule", "mean 'classic'?"),
    "launcher": _wrong("run --launcher trtlm --tasks gsm8k", "unknown launcher", "'trtllm'?"),
    "launcher-option": _wrong(
        "run --launcher trtllm --tasks gsm8k --set launcher.tpp=2", "launcher.tpp: unknown", "'tp'?"
    ),
    "launcher-model": _wrong(
        f"run --launcher trtllm {HERE} --no-reference", "model: required", "Add --model NAME."
    ),
    "serve": _wrong("serve trtlm", "unknown launcher 'trtlm'", "Did you mean 'trtllm'?"),
    "kind": _wrong("data list task", "unknown kind 'task'", "Did you mean 'tasks'?"),
    "dataset": _wrong("data fetch gsmk", "unknown data set 'gsmk'", "Did you mean 'gsm8k'?"),
    "one-side": _wrong(
        "compare host:8000", "name A and B", "serve-eval check invariants host:8000"
    ),
}
PLANS = {
    "plan-key": _wrong("run key.yaml", "key.yaml:2: task: unknown key", "Did you mean 'tasks'?"),
    "plan-type": _wrong("run type.yaml", "type.yaml:3: limits.concurrency", "a number or auto"),
    "plan-torn": _wrong("run torn.yaml", "but got the end of the file", "Check indentation"),
    "plan-tab": _wrong("run tab.yaml", "tab.yaml:3: a tab where", "Replace the tabs"),
    "plan-list": _wrong("run list.yaml", "expected a mapping", "tasks: [gsm8k]"),
    "plan-binary": _wrong("run binary.yaml", "a control character", "on this line"),
    "plan-missing": _wrong("run plam.yaml", "No such file", "Check the path"),
    "plan-address": _wrong(
        "run host:8000", "host:8000: is not a plan file", "--base-url host:8000"
    ),
    "plan-url": _wrong("run http://h:8/v1", "is not a plan file", "--base-url http://h:8/v1"),
    "plan-folder": _wrong("run folder", "folder: cannot be read: Is a directory", "must be a file"),
    "plan-no-task": _wrong("run none.yaml", "name at least one task", "--tasks gsm8k"),
    "plan-variable": _wrong("run variable.yaml", "holds a variable", "set SERVE_EVAL_BASE_URL"),
    "cases-key": _wrong(f"{ASK} --cases cases.yaml", "paris: prompt: unknown key", "Known: case"),
}
ENDPOINTS = {
    "scheme": _wrong(f"run --base-url htp://h {HERE}", "base_url", "expected host:port"),
    "port": _wrong(
        f"run --base-url h:80000 {HERE}", "check its host and port", "http://host:8000/v1"
    ),
    "silent-port": _wrong(
        f"run --base-url 127.0.0.1:9 {HERE}", "nothing listens", "Check that the server is up", 4
    ),
    "https-on-http": _wrong(
        f"run --base-url https://{{ok}} {HERE}", "its answer is not TLS", "use http://{ok}", 4
    ),
    "path": _wrong(
        f"run --base-url http://{{host}}/api -m m {HERE} --no-reference",
        "HTTP 404",
        "try http://{host}/api/v1",
        4,
    ),
    "key-typed": _wrong(f"{ASK} --api-key sk-123", "visible to every user", "OPENAI_API_KEY"),
    "key-missing": _wrong(f"run --base-url {{locked}} {HERE}", "HTTP 401", "No key was sent", 4),
    "key-wrong": _wrong(
        f"run --base-url {{locked}} {HERE}", "401", "check OPENAI_API_KEY", 4, OPENAI_API_KEY="k-1"
    ),
    "key-variable": _wrong(f"{ASK} --api-key-env KEY", "has no KEY", "export it first"),
    "model": _wrong(
        f"run --base-url {{picky}} -m mm {HERE} --no-reference",
        "does not list the model 'mm'",
        "Known: m-7b.",
        4,
    ),
    "page": _wrong(f"run --base-url {{page}} {HERE}", "an HTML page", SERVER_HINT, 4),
    "loading": _wrong(f"run --base-url {{loading}} {HERE}", "HTTP 503", "try again later", 4),
    "redirect": _wrong(f"run --base-url {{moved}} {HERE}", "302: a redirect", "curl -sI", 4),
}
DATA = {
    "data": _wrong(
        "run --base-url {ok} -m m --tasks gsm8k --no-reference --dataset-root folder",
        "the data set GSM8K was not found",
        "serve-eval data fetch gsm8k -o DIR",
    ),
    "root": _wrong(
        "run --base-url {ok} -m m --tasks gsm8k --no-reference --dataset-root nowhere",
        "there is no folder",
        "then add --dataset-root DIR",
    ),
    "form": _wrong(
        "run --base-url {ok} -m m --tasks gsm8k --no-reference --dataset-root bad",
        "row 1: no column question; its columns are: ",
        "docs/tasks.md shows its form",
    ),
    "reference": _wrong(
        f"run --base-url {{ok}} -m m {HERE} -o r", "has no model 'm'", "--references-dir", 3
    ),
    "protocol": _wrong(
        "run --base-url {ok} -m embedded --tasks word_problems"
        " --set word_problems.temperature=1 -o p",
        "temperature",
        "--allow-mismatch",
        3,
    ),
    "references-dir": _wrong(
        f"{ASK} --references-dir nowhere", "nowhere is not a folder", "<task>.yaml files"
    ),
}
FOLDERS = {
    "other-plan": _wrong(
        f"{ASK} -o done --set word_problems.random_seed=9", "done holds another run", "with -o"
    ),
    "other-limit": _wrong("run --resume done --limit 2", "plan.limit: was null", "Use another"),
    "out-file": _wrong(f"{ASK} -o file", "file: cannot be used", "Choose another folder"),
    "out-full": _wrong(f"{ASK} -o bad", "bad is not empty and holds no run", "with -o"),
    "out-closed": _wrong(f"{ASK} -o /proc/run", "/proc/run: cannot be used", "Choose another"),
    "resume-missing": _wrong("run --resume nowhere", "no such folder", RUN_HINT),
    "resume-file": _wrong("run --resume file", "it is a file, not a folder", RUN_HINT),
    "rescore-compared": _wrong(
        "judge --rescore compared",
        "the folder of a comparison",
        "It has no run yet: repeat the command",
    ),
    "export-suite": _wrong(
        "runs export suites", "the folder of a suite", "It has no run yet: repeat the command"
    ),
    "compare-tasks": _wrong(
        "compare done keys -o c", "only A has this task", "--allow-mismatch FIELD", 3
    ),
    "compare-empty": _wrong("compare done folder -o c", "the folder is empty", RUN_HINT),
}
TABLE = {**TYPED, **PLANS, **ENDPOINTS, **DATA, **FOLDERS}


PAGE = raw(b"<html>It works!</html>", content_type="text/html")
INTERNAL = re.compile(
    r"Traceback|\bserve_eval\.|msgspec|pydantic|\b_ssl|Errno|<class|\bNone\b|object at 0x"
)


@pytest.fixture(scope="module")
def addresses(tmp_path_factory):
    """Yield the addresses of servers, in a folder with the files and runs of the table."""
    place = tmp_path_factory.mktemp("place")
    prepare(place)
    servers = {
        "ok": ScriptedServer([answer("#### 1")], routes={"/v1/models": lambda _: models("m")}),
        "picky": ScriptedServer(
            [fail(404, "The model does not exist")], routes={"/v1/models": lambda _: models("m-7b")}
        ),
        "page": ScriptedServer(
            [raw(b"<html>It works!</html>", content_type="text/html")], paths=EVERY_PATH
        ),
        "loading": ScriptedServer([fail(503, "Model is loading")], paths=EVERY_PATH),
        "locked": ScriptedServer([fail(401, "Incorrect API key")], paths=EVERY_PATH),
        "moved": ScriptedServer([raw(status=302, headers={"Location": "/v2"})], paths=EVERY_PATH),
    }
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        found = {
            name: stack.enter_context(server.serve_in_thread()).removeprefix("http://")
            for name, server in servers.items()
        }
        found["host"] = found["ok"].removesuffix("/v1")
        for task, out in (("word_problems", "done"), ("passkey_short", "keys")):
            words = f"run --base-url {found['ok']} -m m --tasks {task} --no-reference"
            serve_eval(*words.split(), "--set", f"{task}.num_samples=2", "-o", out, exits=3)
        yield found


def test_the_table_has_66_commands():
    assert len(TABLE) == 66


@pytest.mark.parametrize("wrong", TABLE.values(), ids=TABLE.keys())
def test_the_message_names_the_cause_and_the_fix(addresses, wrong):
    words = wrong.words.format(**addresses).split()
    done = serve_eval(*words, terminal=True, COLUMNS="80", **wrong.environ, exits=wrong.code)
    told = " ".join(done.stderr.split())
    assert wrong.cause.format(**addresses) in told
    assert wrong.fix.format(**addresses) in told
    assert INTERNAL.search(done.stderr) is None
    lines = [line for line in map(str.strip, done.stderr.splitlines()) if len(line) > 80]
    assert [one for one in lines if " " in one and not one.startswith("serve-eval ")] == []


@pytest.fixture(scope="module")
def url():
    with flavour_in_thread("never") as found:
        yield found


@pytest.fixture(scope="module")
def finished(url, tmp_path_factory):
    """A folder with a run, a comparison and a smoke test, each finished in a folder of its own."""
    folder = tmp_path_factory.mktemp("finished")
    cases = write_sums(folder, 100, 4)
    asked = f"--model M --cases {cases}"
    serve_eval(f"run --base-url {url} --no-reference -o {folder}/run {asked}")
    with flavour_in_thread("never") as other:
        serve_eval(f"compare {url} {other} --self 0 -o {folder}/both {asked}")
    serve_eval(f"smoke {url} -o {folder}/smoke")
    assert all((folder / name / "summary.md").exists() for name in ("run", "both", "smoke"))
    return folder


def _read(folder):
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


WRONG = {
    "limit": ["run", "--resume", "RUN", "--limit", "0"],
    "option": ["run", "--resume", "RUN", "--set", "cases:sums.nosuch=1"],
    "junit": ["run", "--resume", "RUN", "--junit", "/nowhere/x.xml"],
    "task": ["check", "load", "URL", "-t", "nosuch", "-o", "RUN"],
    "cases": ["compare", "URL", "URL", "--cases", "/nowhere.yaml", "-o", "BOTH"],
    "level": ["smoke", "URL", "--level", "nosuch", "-o", "SMOKE"],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_usage_error_keeps_the_summary_of_a_finished_result(name, finished, url):
    places = {"URL": url, **{word.upper(): finished / word for word in ("run", "both", "smoke")}}
    before = _read(finished)
    serve_eval(*(places.get(word, word) for word in WRONG[name]), exits=2)
    assert _read(finished) == before


def test_a_usage_error_is_still_told_where_the_command_asks_for_it(finished, tmp_path):
    junit = tmp_path / "junit.xml"
    serve_eval(f"run --resume {finished}/run --limit 0 --junit {junit}", exits=2)
    assert "limit: must be 1 or more" in junit.read_text()
