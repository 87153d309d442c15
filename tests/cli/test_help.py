"""Test the help of commands and the completion of their words in a shell."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from serve_eval.cli._commands import COMMANDS, Family, find_entry, walk
from serve_eval.cli._described import WIDTH, describe_plugin, describe_task
from serve_eval.cli.app import make_command
from serve_eval.cli.setup_completion import SCRIPTS, complete
from serve_eval.datasets.local import find_sources
from serve_eval.datasets.source import KNOWN
from serve_eval.errors import DatasetError
from serve_eval.plugins import registry
from serve_eval.plugins.declarations import options
from serve_eval.protocol import shared
from serve_eval.report.document.listing import LINES
from serve_eval.schema import DataRoots, Spec
from serve_eval.verdicts.references import find_shipped_dir
from tests.cli.command import environment, serve_eval

ALONE = [" ".join(words) for words, _ in walk()]
LONG = [name for name in ALONE if make_command(*name.split()).usual]
OF_GROUPS = ("", "data cases", *(name for name, one in COMMANDS.items() if isinstance(one, Family)))
PATHS = [*OF_GROUPS, *ALONE]


def _flags(text):
    """Return the flags of the lines that describe options."""
    typed = re.findall(r"^(?:  -\w,|   {3}) (--.*?)(?:  .*)?$", text, re.MULTILINE)
    return {word.strip(",") for line in typed for word in line.split() if word.startswith("--")}


def test_the_commands_with_many_options_are_those_that_have_a_short_help():
    many = [name for name in ALONE if sum(not one.hidden for one in _options(name)) > 17]
    assert sorted(many) == sorted(LONG)


def _options(name):
    return [one for one in make_command(*name.split()).params if one.param_type_name == "option"]


@pytest.mark.parametrize("name", ALONE)
def test_help_fits_a_terminal_and_shows_no_type_of_a_flag(name):
    for flag in ["--help", *(["--help-all"] if name in LONG else [])]:
        said = serve_eval(*name.split(), flag, COLUMNS="80").stdout
        assert max(map(len, said.splitlines())) <= 80
        assert not re.search(r"<(bool|str|int|float|path|list)", said)


@pytest.mark.parametrize("name", LONG)
def test_the_short_help_shows_few_options_and_where_the_rest_is(name):
    short = serve_eval(*name.split(), "--help").stdout
    assert 10 <= len(make_command(*name.split()).usual) <= 16
    assert short.splitlines()[-1].endswith(f"{name} --help-all")
    every = serve_eval(*name.split(), "--help-all").stdout
    known = {
        flag
        for one in _options(name)
        if not one.hidden
        for flag in (*one.opts, *one.secondary_opts)
    }
    assert _flags(every) == {flag for flag in known if flag.startswith("--")} | {"--help"}
    assert _flags(short) < _flags(every)


@pytest.mark.parametrize("path", PATHS)
def test_every_help_has_two_examples_that_are_understood(path):
    """Each example is parsed as its command would parse it, and nothing runs."""
    said = serve_eval(*path.split(), "--help", COLUMNS="80").stdout
    assert max(map(len, said.splitlines())) <= 80
    block = re.search(r"^Examples:\n((?:  .*\n)+)", said, re.MULTILINE)
    assert block, said
    texts, lines = block[1].splitlines()[::2], block[1].splitlines()[1::2]
    assert 2 <= len(lines) <= 5
    assert all(re.fullmatch(r"  [A-Z].*:", text) for text in texts)
    assert all(
        line.startswith(f"    serve-eval {path}".rstrip()) or path in OF_GROUPS for line in lines
    )
    for line in lines:
        _parse(shlex.split(re.split(r" [|>] ", line)[0])[1:])


def _parse(words):
    """Parse a command line by its command. Raises click's UsageError if it is not understood."""
    count = next(
        n for n in range(1, len(words) + 1) if not isinstance(find_entry(words[:n]), Family)
    )
    make_command(*words[:count]).make_context(words[count - 1], words[count:]).close()


def test_an_example_with_a_wrong_option_would_be_noticed():
    with pytest.raises(Exception, match="No such option"):
        _parse(["data", "fetch", "gsm8k", "--into", "DIR"])


def test_what_is_hidden_is_shown_nowhere():
    for name in ("run", "compare", "smoke", "watch"):
        assert "--api-key " not in serve_eval(*name.split(), "--help-all").stdout
    assert "--invariants" not in serve_eval("compare --help-all").stdout


def test_a_structure_gets_flags_variables_and_repeated_options():
    """--resume excludes -o, from the command line and from the environment.

    A list takes one value per line of its variable.
    """
    serve_eval("run --resume x -o y", exits=2, tells="do not give a plan file or -o")
    known = serve_eval("run --dry-run", SERVE_EVAL_TASKS="gsmk\nmlu", SERVE_EVAL_LIMIT="0")
    for text in ("unknown task 'gsmk'", "unknown task 'mlu'", "limit: must be 1 or more"):
        assert text in known.stderr


def test_defaults_are_told_and_no_sentence_of_a_group_is_cut_off():
    said = serve_eval("references power --help").stdout
    assert "--repeats (default 1)." in said
    assert "(default None)" not in said
    group = serve_eval("references --help", COLUMNS="80").stdout
    assert "..." not in group.partition("Commands:")[2]


KINDS = ("tasks", "scorers", "launchers", "verdicts", "presets")


def _list(arguments="", *, code=0):
    done = serve_eval(f"data list {arguments}", COLUMNS="80", exits=code)
    return done.stdout


@pytest.mark.parametrize(
    "command", [*(("data", "list", kind) for kind in KINDS), ("data", "list", "datasets")]
)
def test_a_list_has_few_lines_and_all_of_it_in_other_forms(command):
    done = serve_eval(*command, COLUMNS="80")
    assert (done.returncode, len(done.stdout.splitlines()) <= LINES) == (0, True), done.stdout
    found = json.loads(serve_eval(*command, "--json").stdout)
    names = serve_eval(*command, "-q").stdout.splitlines()
    assert names == [one["name"] for one in found["entries"]]
    whole = serve_eval(*command, "-v", COLUMNS="80").stdout
    for one in found["entries"]:
        assert one["name"] in done.stdout
        assert f"\n  {one['name']}: " in whole
        assert all(line in whole for line in one["more"])
    assert "\x1b" not in whole


def test_the_list_of_all_kinds_counts_them_and_has_all_of_them_with_v():
    shown = _list()
    assert len(shown.splitlines()) <= LINES
    names = {one["name"]: one["text"].split(", ") for one in json.loads(_list("--json"))["entries"]}
    assert tuple(names) == KINDS
    whole = _list("-v")
    for kind in KINDS:
        assert f"{len(names[kind])} {kind}" in shown.splitlines()[0]
        assert _list(f"{kind} -v") in whole
    assert _list("-q").split() == list(KINDS)


def test_the_list_has_every_task():
    told = _list("tasks -v")
    assert all(f"\n  {name}:" in told for name in registry.names("serve_eval.tasks"))
    assert "\n  cases:NAME: " in told
    assert "options that every task has: " in told


def test_the_list_has_every_scorer_and_says_where_options_are():
    told = _list("scorers")
    assert all(f"\n  {name} " in told for name in registry.names(registry.SCORERS))
    assert "whole_words" not in told
    assert "\n  options of one: serve-eval data list scorers NAME\n" in told
    assert "whole_words" in _list("scorers words")
    [one] = json.loads(_list("scorers words --json"))["entries"]
    assert "whole_words" in "\n".join(one["more"])


def test_a_name_that_cannot_be_used_is_in_every_list(tmp_path):
    (tmp_path / "scorers").mkdir()
    (tmp_path / "scorers/broken.py").write_text("raise OSError('no way')\n")
    for kind in ("all", "scorers"):
        told = _list(f"{kind} --include-path {tmp_path}", code=2)
        assert "  broken" in told
        assert "no way" in told


def test_every_published_reference_has_a_task():
    files = {file.stem for file in find_shipped_dir().glob("*.yaml")}
    named = {"SlimPajama-6B", "acceptance_length", "gpqa_diamond"}  # their tasks have other names
    assert not files - named - set(registry.names("serve_eval.tasks"))


LAUNCHERS = registry.list_shipped("serve_eval.launchers")
TASKS = registry.list_shipped(shared.TASKS)
WITHOUT_LOAD = ("cases", "lm_eval", "longbench_v1", "requests")
"""Families, and tasks that need the extra lm-eval or a file of the user before their data."""


def _list_described(arguments=""):
    done = serve_eval(f"data list {arguments}", COLUMNS="80", exits=0)
    return done.stdout


@pytest.mark.parametrize("name", LAUNCHERS)
def test_every_option_of_every_launcher_is_described(name):
    found = options(registry.function("serve_eval.launchers", name))
    paths = [option.path for option in found]
    assert [
        option.path for option in found if not re.fullmatch(r"[A-Za-z].*\.", option.meaning)
    ] == []
    lines = describe_plugin("serve_eval.launchers", name)
    assert max(map(len, lines)) <= WIDTH
    shown = [line for line in lines if re.match(r"  \S", line)]
    assert [line.split()[0] for line in shown] == paths
    assert not re.search(r"NoneType|Struct|typing|<", "\n".join(lines))


def test_nested_options_are_described_by_type_and_default():
    told = _list_described("launchers trtllm_disaggregated")
    for text in (
        (
            "  context_servers (has its own options, listed below)\n      Servers that process"
            " prompts.\n"
        ),
        "  generation_servers.num_instances (whole number; 1)\n      Number of these servers.\n",
        "  generation_servers.env (mapping of texts; empty)\n",
        "  gpus (auto or list of whole numbers or texts; not set)\n",
        "  cache_transceiver (mapping; {backend: UCX})\n",
        "  ready_timeout_s (number; 3600)\n",
        "\nSet them with --set launcher.OPTION=VALUE, or below launcher in a plan.\n",
    ):
        assert text in told


def test_the_list_of_launchers_is_short():
    told = _list_described("launchers").splitlines()
    assert len(told) <= 2 * len(LAUNCHERS) + 2
    assert "context_servers" not in "".join(told)
    assert told[-2] == "  options of one: serve-eval data list launchers NAME"


def test_what_is_called_alike_may_mean_something_else():
    lines = describe_plugin("serve_eval.launchers", "slurm")
    at = lines.index("  container.engine (pyxis or docker or podman; pyxis)")
    assert "plug-in of SLURM" in lines[at + 1]
    assert "  image (text; required)" not in lines
    assert "  container.image (text; required)" in lines


@pytest.mark.parametrize("name", TASKS)
def test_every_task_is_described_with_its_data_and_every_option(name):
    found = options(registry.function(shared.TASKS, name))
    assert [one.path for one in found if not re.fullmatch(r"[A-Z].*\.", one.meaning)] == []
    lines = describe_task(name)
    assert max(map(len, lines)) <= WIDTH
    below = lines[lines.index("Options:") :]
    shown = [line.split()[0] for line in below if re.match(r"  \S", line)]
    assert shown == [one.path for one in found]
    assert not re.search(r"NoneType|typing|Annotated", "\n".join(lines))


@pytest.mark.parametrize("name", [name for name in TASKS if name not in WITHOUT_LOAD])
def test_a_task_names_its_data_if_it_cannot_do_without(name, tmp_path):
    task = shared.usual_task(Spec(name=name))
    if not task.datasets:
        assert task.load(DataRoots(roots=(tmp_path,)), 2).samples
        return
    with pytest.raises(DatasetError) as caught:
        task.load(DataRoots(roots=(tmp_path,)), 2)
    source, hint = find_sources()[task.datasets[0]], caught.value.hint
    fetch = f"serve-eval data fetch {task.datasets[0]}"
    assert (fetch if source.urls or source.hub else f"Put a copy from {source.homepage}") in hint


def test_a_control_needs_no_reference():
    name = "mixed_modality_video_audio_omni"
    assert f"  references  none needed: compared with {name}" in describe_task(f"{name}_alone")


def test_a_data_set_that_cannot_be_fetched_is_got_by_hand():
    [line] = (one for one in describe_task("videomme") if "by hand" in one)
    assert line.split() == ["by", "hand,", "from", KNOWN["videomme"].homepage]


def test_the_facts_of_a_task_are_its_own():
    told = _list_described("tasks gsm8k")
    for text in (
        "  data        GSM8K: 1319 test, 7473 train\n",
        "              serve-eval data fetch gsm8k\n",
        "  asks        1319 samples; at most 256 tokens each\n",
        "  needs       an endpoint with completions\n",
        "  value       accuracy: mean of the samples, higher is better\n",
        " models\n              serve-eval references show gsm8k\n",
        "  protocol    version 1: fewshot_as_multiturn false, num_fewshot 5,",
        "  num_fewshot (whole number; 5)\n",
        "      Number of solved examples before each question.\n",
        "\nSet them with --set gsm8k.OPTION=VALUE, or in a plan.\n",
    ):
        assert text in told
    told = _list_described("tasks word_problems_perplexity")
    for text in (
        "  data        no data set to fetch\n",
        "; no answer, only log-probabilities\n",
        "  needs       an endpoint with prompt log-probabilities\n",
        "  value       perplexity: mean of the samples, lower is better\n",
        "  references  none registered\n              serve-eval references take host:8000",
    ):
        assert text in told
    assert (
        "one for each NAME\n              serve-eval run --tasks lm_eval:NAME\n"
        in _list_described("tasks lm_eval")
    )


def test_the_documented_description_is_what_is_printed():
    page = (Path(__file__).parents[2] / "docs/tasks.md").read_text()
    [shown] = re.findall(
        r"^\$ serve-eval data list tasks passkey_short\n(.*?)^  \.\.\.\n```", page, re.M | re.S
    )
    assert len(shown.splitlines()) > 10
    assert _list_described("tasks passkey_short").startswith(shown)


def test_scorers_are_described_too():
    assert "  absolute (number; 0)\n" in _list_described("scorers numeric")


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("launchers", "trtlm", "unknown launcher 'trtlm'. Did you mean 'trtllm'?"),
        ("tasks", "gsm", "unknown task 'gsm'. Did you mean 'gsm8k'?"),
        ("all", "trtllm", "all trtllm: name the kind"),
    ],
)
def test_a_name_that_there_is_not_is_refused(kind, name, message):
    serve_eval(f"data list {kind} {name}", exits=2, tells=message)


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("20261101_a", "20261102_b"):
        Path("outputs", name).mkdir(parents=True)
    Path("outputs/latest").symlink_to("20261102_b")


@pytest.mark.parametrize(
    ("before", "incomplete", "offered"),
    [
        ("", "ve", ["verify"]),
        ("", "re", ["references"]),
        ("data cases", "ex", ["expand"]),
        ("check", "", ["load", "invariants", "tools", "workers"]),
        ("", "--v", ["--version"]),
        ("references", "re", ["register"]),
        ("references", "t", ["take"]),
        ("run", "--base", ["--base-url"]),
        ("run", "--api-key", ["--api-key-env"]),
        ("run --tasks", "gsm8k,passkey_s", ["gsm8k,passkey_short"]),
        ("run -t", "longbench_v", ["longbench_v1", "longbench_v2"]),
        ("run --launcher", "trtllm", ["trtllm", "trtllm_disaggregated"]),
        ("run --verdict", "no", ["noninferiority"]),
        ("run --resume", "", ["latest", "outputs/20261102_b", "outputs/20261101_a"]),
        ("show", "outputs/20261101", ["outputs/20261101_a"]),
        ("compare", "l", ["latest"]),
        ("references take host:8000 -t", "passkey_sh", ["passkey_short"]),
        ("references show", "gsm8k_inferencem", ["gsm8k_inferencemax"]),
        ("data fetch", "gsm", ["gsm8k"]),
        ("data list", "l", ["launchers"]),
        ("run --set", "limits.order", ["limits.order=", "limits.order_seed="]),
        ("smoke host:8000 --set", "connection.prox", ["connection.proxy="]),
        ("run -t gsm8k --set", "gsm8k.num_f", ["gsm8k.num_fewshot="]),
        ("run --launcher embedded --set", "launcher.dam", ["launcher.damage="]),
        ("show nothing", "", []),
        ("run", "pla", []),
        ("run --model", "x", []),
        ("nothing", "x", []),
        ("references nothing", "x", []),
    ],
)
@pytest.mark.usefixtures("runs")
def test_the_words_that_are_offered(before, incomplete, offered):
    assert complete(before.split(), incomplete) == offered


def test_every_command_offers_its_options():
    assert complete([], "") == ["--help", "--version", *COMMANDS]
    for name in COMMANDS:
        offered = complete([name], "--")
        assert "--help" in offered or offered == [], name


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.usefixtures("runs")
def test_bash_completes_commands_options_and_runs(tmp_path):
    """The script is sourced by a bash that then completes as it does on the tab key."""
    program = tmp_path / "bin/serve-eval"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m serve_eval "$@"\n')
    program.chmod(0o755)
    ask = """
eval "$(serve-eval setup completion bash)"
complete -p serve-eval
try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _serve_eval serve-eval; echo "${COMPREPLY[*]}"; }
try serve-eval smo
try serve-eval run --launcher embed
try serve-eval show ''
"""
    variables = environment()
    variables["PATH"] = f"{program.parent}:{variables['PATH']}"
    variables["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = subprocess.run(
        ["bash", "-c", ask], env=variables, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines() == [
        "complete -o bashdefault -o default -F _serve_eval serve-eval",
        "smoke",
        "embedded",
        "latest outputs/20261102_b outputs/20261101_a",
    ]


def test_the_samples_of_a_run_are_offered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = "-t word_problems --limit 4 --no-reference"
    serve_eval(f"run --launcher simulated -o out {asked}", exits=3)
    offered = complete(["show", "out"], "test-")
    assert len(offered) == 4
    assert complete(["show", "--task", "word_problems", "out", offered[0]], "test-") == offered


FISH = """
source SCRIPT
complete -C 'serve-eval smo'
complete -C 'serve-eval run --set limits.outag'
"""
ZSH = """
compadd() { print -r -- "$@" }
compdef() { : }
source SCRIPT
words=(serve-eval smo); CURRENT=2; _serve_eval
words=(serve-eval run --set limits.order_); CURRENT=4; _serve_eval
"""


@pytest.mark.parametrize(
    ("shell", "script", "told"),
    [
        ("fish", FISH, ["smoke", "limits.outage_timeout_s="]),
        ("zsh", ZSH, ["-S  --", "-- smoke", "-S  -- limits.order_seed=", "--"]),
    ],
)
def test_fish_and_zsh_complete(shell, script, told, tmp_path):
    if (program := shutil.which(shell)) is None:
        pytest.skip(f"needs {shell}")
    (tmp_path / "serve-eval").write_text(f'#!/bin/sh\nexec {sys.executable} -m serve_eval "$@"\n')
    (tmp_path / "serve-eval").chmod(0o755)
    (tmp_path / "script").write_text(SCRIPTS[shell])
    variables = environment() | {"PYTHONPATH": str(Path(__file__).parents[2])}
    variables["PATH"] = f"{tmp_path}:{variables['PATH']}"
    asked = script.replace("SCRIPT", str(tmp_path / "script"))
    done = subprocess.run(
        [program, "-c", asked],
        env=variables, capture_output=True, text=True, check=True, timeout=60, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout.splitlines() == told


def test_each_shell_has_a_script_and_another_is_refused():
    for shell, script in SCRIPTS.items():
        assert serve_eval("setup completion", shell).stdout == script
        if program := shutil.which(shell):
            subprocess.run([program, "-n", "-c", script], check=True, timeout=20)
    serve_eval("setup completion zsch", exits=2, tells="Did you mean 'zsh'")
