"""Test options and JSON Schemas, which are derived from the structures of the code."""

import inspect
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import pytest
import typer
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from serve_eval.cli._commands import walk
from serve_eval.cli._help import HelpedCommand
from serve_eval.cli._options import command, settings_of, take_own
from serve_eval.cli.app import make_command
from serve_eval.cli.setup import KINDS
from serve_eval.errors import PlanError
from serve_eval.plan.options import AskedOptions, ConnectionOptions, JudgedOptions, ProtocolOptions
from serve_eval.plan.plan_file import KEYS
from serve_eval.plan.resolve import resolve
from serve_eval.plugins.setting import Setting, list_declared
from serve_eval.yaml_source import read
from tests.cli.command import serve_eval
from tests.json_files import read_json


@dataclass(frozen=True, kw_only=True)
class Fruit:
    """Example options."""

    title: ClassVar[str] = "Fruit"
    apples: Annotated[int | None, Setting("How many.", key="limits.apples_kg")] = None
    pears: Annotated[list[str] | None, Setting("Which.", variable="always")] = None
    plums: Annotated[bool, Setting("", refused=("no plums", "Take pears."))] = False


def test_names_flags_variables_and_types_follow_from_a_field():
    apples, pears, _ = list_declared(Fruit)
    assert (apples.flags, apples.variable, apples.key, apples.kind) == (
        ("--apples",),
        "SERVE_EVAL_APPLES",
        "limits.apples_kg",
        int,
    )
    assert (apples.repeated, pears.repeated, pears.key) == (False, True, "pears")


def test_a_command_gets_its_structures_filled_in(monkeypatch):
    got = []

    @command()
    def pick(fruit: Fruit, basket: str = "b"):
        got.append((fruit, basket))

    assert list(inspect.signature(pick.function).parameters) == [
        "apples",
        "pears",
        "plums",
        "basket",
    ]
    monkeypatch.setenv("SERVE_EVAL_PEARS", "a\n\nb\n")
    monkeypatch.setenv("SERVE_EVAL_APPLES", "3")
    pick.function(apples=None, pears=None, plums=False, basket="c")
    assert got == [(Fruit(apples=None, pears=["a", "b"]), "c")]
    with pytest.raises(PlanError, match="no plums"):
        pick.function(apples=None, pears=None, plums=True, basket="c")
    assert len(got) == 1


def test_settings_have_the_last_part_of_the_key_and_nothing_that_was_not_given():
    assert settings_of(Fruit(apples=0)) == {"apples_kg": 0}
    assert settings_of(Fruit(apples=0, pears=["a"]), only={"pears"}) == {"pears": ["a"]}


def test_two_options_with_one_key_are_joined():
    assert settings_of(AskedOptions(settings=["a.b=1"]), JudgedOptions(margin=2.0)) == {
        "set": ["a.b=1", "verdict.margin=2.0"]
    }
    assert settings_of(JudgedOptions(early_stop=True, early_stop_eps=0.02)) == {"early_stop": 0.02}
    assert settings_of(JudgedOptions(early_stop_eps=0.02)) == {"early_stop": 0.02}
    assert settings_of(JudgedOptions(early_stop=False, early_stop_eps=0.02)) == {
        "early_stop": False
    }


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (ConnectionOptions(header=["X-Team"]), "--header: expected 'Name: value'"),
        (ProtocolOptions(extra_body="{"), "protocol.extra_body is not valid JSON"),
        (ProtocolOptions(extra_body="[]"), "protocol.extra_body: expected a JSON object"),
    ],
)
def test_what_cannot_be_read_is_refused(section, message):
    with pytest.raises(PlanError) as caught:
        settings_of(section)
    assert message in str(caught.value)


@dataclass(frozen=True, kw_only=True)
class OwnOptions:
    """Options of a command c."""

    command: ClassVar[str] = "c"
    number: Annotated[int | None, Setting("")] = None
    share: Annotated[float, Setting("")] = 0.5
    on: Annotated[bool, Setting("")] = False
    file: Annotated[Path | None, Setting("")] = None
    name: Annotated[str | None, Setting("")] = None
    sizes: Annotated[list[int] | None, Setting("")] = None


def test_a_key_on_the_command_line_is_refused():
    for arguments in ("run --tasks gsm8k", "smoke", "watch"):
        said = serve_eval(
            f"{arguments} --api-key sk-abcdefgh",
            exits=2,
            tells="is visible to every user of this machine",
        )
        assert "sk-abcdefgh" not in said.stderr


def test_the_page_lists_each_option_of_a_command_without_a_flag():
    page = (Path(__file__).parents[2] / "docs/run.md").read_text(encoding="utf-8")
    table = page.partition("## Keys without a flag")[2]
    own = re.findall(r"^\| `(\w+\.\w+)` \| `(--[\w-]+)` \| `([a-z ]+)` \|$", table, re.MULTILINE)
    assert own == sorted(
        (one.place, one.flags[0].partition("/")[0], " ".join(words))
        for words, _ in walk()
        for one in getattr(make_command(*words), "own", ())
    )


def test_the_options_of_a_command_itself_are_set_by_set():
    refused = serve_eval("watch 127.0.0.1:9 --passes 3", exits=2)
    assert refused.stderr == "error: there is no option --passes: write --set watch.passes=3\n"
    watch = "watch 127.0.0.1:9 --dry-run --set watch.smoke=false"
    usual, fewer = serve_eval(watch), serve_eval(f"{watch} --set watch.passes=3")
    assert "asks 200 prompts 8 times" in usual.stdout
    assert "asks 200 prompts 3 times" in fewer.stdout
    assert "no smoke test" in fewer.stdout


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("c.number=3", {"number": 3}),
        ("c.share=1e-3", {"share": 0.001}),
        ("c.share=2", {"share": 2.0}),
        ("c.on=true", {"on": True}),
        ("c.file=a.txt", {"file": Path("a.txt")}),
        ("c.name=007", {"name": "007"}),
        ("c.sizes=512", {"sizes": [512]}),
        ("c.sizes=[1, 2]", {"sizes": [1, 2]}),
    ],
)
def test_a_value_of_an_option_is_that_of_its_flag(text, found):
    own = {one.place: one for one in list_declared(OwnOptions)}
    assert take_own([text], own) == ([], found)
    assert take_own(["c.sizes=1", text, "c.sizes=2"], own)[1]["sizes"][0] == 1
    assert take_own(["limits.stream=false"], own) == (["limits.stream=false"], {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("c.number=3.5", "expected a whole number"),
        ("c.number=true", "expected a whole number"),
        ("c.share=much", "expected a number"),
        ("c.share=", "expected a number"),
        ("c.on=7", "expected true or false"),
        ("c.numbr=3", "Did you mean 'c.number'?"),
    ],
)
def test_a_value_of_another_kind_is_refused(text, message):
    with pytest.raises(PlanError, match=re.escape(message)):
        take_own([text], {one.place: one for one in list_declared(OwnOptions)})


def test_a_flag_that_is_gone_is_answered_by_the_key():
    refused = serve_eval(
        "run --rate-limit 5",
        exits=2,
        tells="there is no option --rate-limit: write --set limits.rate_limit=5",
    )
    assert "a variable as SERVE_EVAL_RATE_LIMIT" in refused.stderr
    of_two = serve_eval("verify 127.0.0.1:9 --no-stream")
    assert "there is no option --no-stream: write --set limits.stream=false" in of_two.stderr
    assert "A plan has it as limits.stream.\n" in of_two.stderr  # only run reads its variable


KINDS_OPTIONS = [int, float, str, Path, bool]
TEXTS = [
    *("7", "-7", "+7", "007", " 7 ", "7_000", "7.0", "7.", ".7", "-7.25", "1e3", "0x7", "٣"),
    *("", " ", "-", "--", "nan", "inf", "None", "true", "no", "9" * 15, "9" * 16, "9" * 400),
    *("0.1", "0.30000000000000004", "1.0000000000000001", "7,5", "7\n", "ü", "a b", "/", "absent"),
]


def _read(cls, kind, *texts, **how):
    """Return the value that a command of this class gets, or the error and its message."""
    got = []
    default = how.pop("default", None)

    def take(value=default):
        got.append(value)

    take.__annotations__ = {"value": Annotated[kind, typer.Option("--value", **how)]}
    app = typer.Typer(add_completion=False)
    app.command(cls=cls)(take)
    arguments = [f"--value={text}" for text in texts]
    try:
        typer.main.get_command(app).main(arguments, standalone_mode=False)
    except Exception as error:
        return type(error).__name__, getattr(error, "message", str(error))
    [value] = got
    inner = [type(one) for one in value] if isinstance(value, list) else None
    return f"{type(value)} {inner}", repr(value)


def _same(kind, *texts, **how):
    typers = _read(typer.core.TyperCommand, kind, *texts, **how)
    ours = _read(HelpedCommand, kind, *texts, **how)
    numbers = ("valid integer", "valid number")
    if ours != typers and any(told in str(typers[1]) for told in numbers):
        word = "a whole number" if "integer" in typers[1] else "a number"
        typers = typers[0], f"expected {word}, not "
        ours = ours[0], ours[1][: len(typers[1])]
    assert ours == typers


@pytest.mark.parametrize("kind", KINDS_OPTIONS)
def test_every_spelling_means_the_same_or_ends_in_the_same_error(kind):
    for text in TEXTS:
        _same(kind, text)
        _same(kind | None, text)
        if kind is not bool:
            _same(list[kind], text, "7", text)


@settings(max_examples=50)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12))
@example("9007199254740993")
def test_whatever_is_written_means_the_same(text):
    for kind in (int, float, str, Path):
        _same(kind, text)


@settings(max_examples=50)
@given(st.floats() | st.integers(-(10**20), 10**20) | st.decimals(places=6, allow_nan=False))
def test_numbers_are_the_same_to_the_last_bit(number):
    _same(int, str(number))
    _same(float, str(number))


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        (int, {"min": 1}),
        (int, {"max": 3, "clamp": True}),
        (float, {"min": 0.5, "max": 8}),
        (int, {"parser": lambda text: int(text) + 1}),
        (Path, {"exists": True}),
        (Path, {"dir_okay": False}),
        (Path, {"file_okay": False}),
        (Path, {"resolve_path": True}),
        (int, {"default": 3}),
        (float, {"default": 3}),
        (int, {"default": "3"}),
        (str, {"default": 3}),
        (Path, {"default": "here"}),
        (list[int], {"default": (3, 4)}),
    ],
)
def test_limits_parsers_and_defaults_keep_their_meaning(kind, how):
    for texts in ([], ["0"], ["2"], ["9"], ["/"], [__file__], ["absent"]):
        _same(kind, *texts, **dict(how))


@pytest.mark.skipif(os.getuid() == 0, reason="root may read every file")
def test_an_unreadable_file_is_typers_error(tmp_path):
    (tmp_path / "closed").touch(mode=0)
    _same(Path, str(tmp_path / "closed"))


def test_a_variable_means_what_its_flag_means():
    flag = serve_eval("run --limit many")
    variable = serve_eval("run", SERVE_EVAL_LIMIT="many")
    assert flag.returncode == variable.returncode == 2
    for said in (flag, variable):
        assert "expected a whole number, not 'many'" in said.stderr


ROOT = Path(__file__).resolve().parents[2]
COMMITTED = {kind: read_json(ROOT / f"docs/schemas/{kind}.json") for kind in KINDS}
VALIDATORS = {kind: Draft202012Validator(schema) for kind, schema in COMMITTED.items()}
SUITE_KEYS = {"plans", "matrix"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_committed_schema_is_that_of_the_code(kind):
    """After a change: make task-pages, and see docs/extending.md."""
    printed = serve_eval(f"setup schema {kind}")
    assert json.loads(printed.stdout) == COMMITTED[kind], "run make task-pages"
    Draft202012Validator.check_schema(COMMITTED[kind])
    assert COMMITTED[kind]["$id"].startswith(f"urn:serve-eval:{kind}:")


def test_an_unknown_kind_is_a_wrong_use():
    done = serve_eval("setup schema plam")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no schema of 'plam'. Did you mean 'plan'?" in done.stderr


@pytest.mark.usefixtures("simulated_here")
def test_the_files_of_a_run_fit(tmp_path, monkeypatch):
    done = serve_eval(
        "run --launcher simulated --set launcher.failure_rate=0.5 --tasks word_problems"
        " --limit 30 --model embedded --set limits.max_attempts=1"
        f" --set limits.max_error_rate=1 -o {tmp_path}/out --set",
        "launcher.failure_kind='500'",
    )
    assert (tmp_path / "out/report.json").exists(), done.stderr
    report = read_json(tmp_path / "out/report.json")
    assert list(VALIDATORS["report"].iter_errors(report)) == []
    monkeypatch.chdir(tmp_path)
    Path("outputs").mkdir()
    Path("outputs/latest").symlink_to(tmp_path / "out")
    Path("report.schema.json").write_text(json.dumps(COMMITTED["report"]))
    page = (ROOT / "docs/extending.md").read_text().partition("\n## Schemas\n")[2]
    [example] = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    exec(example, {})
    lines = (tmp_path / "out/samples/word_problems.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert {"failure", "response"} <= {key for record in records for key in record}
    assert [one for r in records for one in VALIDATORS["journal"].iter_errors(r)] == []
    assert report["schema_version"] == int(COMMITTED["report"]["$id"].rpartition(":")[2])
    for broken in ({**report, "exit_code": "0"}, {k: report[k] for k in report if k != "tasks"}):
        assert not VALIDATORS["report"].is_valid(broken)
    assert not VALIDATORS["journal"].is_valid({**records[0], "id": 1})


def _list_examples(tmp_path):
    """Yield each plan and suite of the documentation: its kind, its page and its content."""
    for page in (*(ROOT / "docs").glob("*.md"), ROOT / "README.md"):
        for text in re.findall(r"^```(?:yaml)?\n(.*?)^```", page.read_text(), re.M | re.S):
            file = tmp_path / "block.yaml"
            file.write_text(text)
            try:
                content = read(file, PlanError).value
            except PlanError:
                continue
            known = {*KEYS, "name", "defaults", "plans", "matrix", "exclude", "waivers"}
            if isinstance(content, dict) and content and set(content) <= known:
                yield "suite" if SUITE_KEYS & set(content) else "plan", page, content


def test_the_plans_and_suites_of_the_documentation_fit(tmp_path):
    examples = list(_list_examples(tmp_path))
    assert len([kind for kind, _, _ in examples if kind == "plan"]) > 15
    assert len([kind for kind, _, _ in examples if kind == "suite"]) >= 1
    for file in (ROOT / "docs/vllm").glob("*.yaml"):
        examples.append(("plan", file, read(file, PlanError).value))
    for kind, page, content in examples:
        found = [error.message for error in VALIDATORS[kind].iter_errors(content)]
        assert found == [], (page, content)


@pytest.mark.parametrize(
    ("plan", "place"),
    [
        ({"tsks": ["gsm8k"]}, []),
        ({"tasks": "gsm8k"}, ["tasks"]),
        ({"tasks": [1]}, ["tasks", 0]),
        ({"limit": "many"}, ["limit"]),
        ({"no_reference": "yes"}, ["no_reference"]),
        ({"repeats": {"gsm8k": "two"}}, ["repeats"]),
        ({"accuracy_spec": {"quant": "FP8"}}, ["accuracy_spec"]),
        ({"limits": {"concurency": 3}}, ["limits"]),
        ({"limits": {"order": "backwards"}}, ["limits", "order"]),
        ({"connection": {"headers": {"X": 1}}}, ["connection", "headers", "X"]),
        ({"launcher": {"name": "embedded", "damge": "int3"}}, ["launcher"]),
        ({"launcher": {"embedded": {"damage": "int9"}}}, ["launcher", "embedded", "damage"]),
        ({"launcher": {"name": "trtllm", "tp": "two"}}, ["launcher", "tp"]),
        ({"verdict": []}, ["verdict"]),
    ],
)
def test_a_mistake_is_refused_by_the_schema_and_by_the_code(plan, place):
    whole = {"model": "m", "tasks": ["word_problems"], **plan}
    errors = list(VALIDATORS["plan"].iter_errors(whole))
    assert [list(error.absolute_path) for error in errors] == [place]
    with pytest.raises(PlanError):
        resolve(whole, {}, {})


def test_names_and_options_of_the_user_are_accepted():
    for launcher in ("mine", {"name": "mine", "gpus": 2}, {"mine": {"gpus": 2}}):
        plan = {"launcher": launcher, "tasks": ["mine", {"gsm8k": {"num_fewshot": 8}}]}
        assert VALIDATORS["plan"].is_valid(plan)


@pytest.mark.parametrize(
    "suite",
    [
        {"plan": []},
        {"plans": [{"modl": "m"}]},
        {"plans": [{"model": "m", "output_dir": "out"}]},
        {"defaults": {"limits": {"x": 1}}},
        {"matrix": {"model": []}},
        {"waivers": [{"match": {"task": "mmlu"}, "reason": "issue 12"}]},
        {"exclude": [{"tasks": "mmlu"}]},
        {"max_runs": 0},
    ],
)
def test_a_mistake_in_a_suite_is_refused(suite):
    assert not VALIDATORS["suite"].is_valid({"plans": ["a.yaml"], **suite})
