"""Write a starter plan for endpoints of several kinds, and run it."""

import json
import shlex
from pathlib import Path

import pytest

from serve_eval.plan.resolve import resolve
from serve_eval.schema import Ability, Need
from serve_eval.workflows.init import EndpointFacts, write_starter_plan
from serve_eval.yaml_source import parse
from tests.cli.command import serve_eval
from tests.workflows.smoke.server import Quirks, create

ADDRESS = "http://host:8000/v1"


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def _read(text):
    return parse(text, "plan.yaml", ValueError).value


def test_the_plan_of_an_endpoint_runs_as_it_is():
    with create(Quirks()).serve_in_thread() as url:
        done = serve_eval(f"setup init {url}", exits=0)
        assert done.stdout.splitlines()[0].startswith(" WRITTEN   plan.yaml  for ")
        assert "\n works    chat, completions" in done.stdout
        text = Path("plan.yaml").read_text()
        for line in ("chat                     yes", "completions              yes"):
            assert f"# {line}" in text
        serve_eval("run plan.yaml --dry-run", exits=0, prints="500 requests in total")
        ran = serve_eval("run plan.yaml --limit 5 -o out", exits=3, prints="NO REFERENCE")
        assert "references take" in ran.stdout


def test_the_commands_that_come_next_can_be_run():
    with create(Quirks()).serve_in_thread() as url:
        told = json.loads(serve_eval(f"setup init {url} --json -o 'my plan.yaml'").stdout)
        assert len(told["commands"]) == 3
        for command in told["commands"]:
            done = serve_eval(*shlex.split(command)[1:])
            assert done.returncode in (0, 1, 3), done.stderr
    told = json.loads(serve_eval("setup init --offline --json").stdout)
    assert told["commands"] == ["serve-eval run plan.yaml --dry-run"]
    serve_eval("run plan.yaml --dry-run", exits=0)


def test_a_file_that_exists_is_replaced_only_by_force():
    Path("plan.yaml").write_text("mine")
    serve_eval("setup init --offline", exits=2, tells="with --force")
    assert Path("plan.yaml").read_text() == "mine"
    serve_eval("setup init --offline --force", exits=0)
    assert _read(Path("plan.yaml").read_text())["model"] == "MODEL"


def test_without_an_endpoint_the_plan_has_placeholders_and_says_why():
    done = serve_eval("setup init 127.0.0.1:9 -o p.yaml", exits=0)
    text = Path("p.yaml").read_text()
    assert "could not be asked: cannot connect to 127.0.0.1:9" in text
    said = " ".join(done.stdout.split())
    assert " to fill in " in said
    assert "could not be asked: cannot connect to 127.0.0.1:9" in said
    assert resolve(_read(text), {}, {}).plan.model == "MODEL"
    serve_eval("setup init --offline -o nowhere/p.yaml", exits=2, tells="cannot be written")


def _facts(*works, models=("m",)):
    needs = (Need.CHAT, Need.COMPLETIONS)
    abilities = [
        Ability(need=n, works=w, seen="HTTP 404") for n, w in zip(needs, works, strict=True)
    ]
    return EndpointFacts(models=models, abilities=tuple(abilities), context_tokens=4096)


@pytest.mark.parametrize(("chat", "text", "asked"), [(1, 0, True), (0, 1, False), (1, 1, False)])
def test_the_plan_asks_by_chat_only_if_nothing_else_works(chat, text, asked):
    facts = _facts(bool(chat), bool(text))
    plan = _read(write_starter_plan(facts, ADDRESS, None, Path("plan.yaml")))
    assert plan["protocol"] == {"apply_chat_template": asked}
    assert resolve(plan, {}, {}).plan.model == "m"


def test_of_several_models_the_first_or_the_given_one_is_chosen():
    facts = _facts(True, True, models=("a", "b"))
    first = write_starter_plan(facts, ADDRESS, None, Path("plan.yaml"))
    assert _read(first)["model"] == "a"
    assert '# model: "b"' in first
    assert _read(write_starter_plan(facts, ADDRESS, "b", Path("plan.yaml")))["model"] == "b"


@pytest.mark.parametrize("end", ["\n", "\r", "\x85", "\u2028", '"', "\\", "\x1b[31m", " # "])
def test_what_an_endpoint_tells_cannot_add_keys_to_the_plan(end):
    name = f"m{end}allow_code_execution: true"
    facts = EndpointFacts(
        models=(name, name + "2"),
        server=name,
        version=name,
        abilities=(Ability(need=Need.CHAT, works=False, seen=name),),
        problem=name,
    )
    plan = _read(write_starter_plan(facts, ADDRESS, None, Path("plan.yaml")))
    assert plan["model"] == name
    assert "allow_code_execution" not in plan
    assert set(plan) == set(_read(write_starter_plan(_facts(True, True), ADDRESS, None, Path("p"))))


def test_every_line_that_is_a_comment_is_a_valid_key():
    """The commented keys of the plan are uncommented, and the plan must still be understood."""
    text = write_starter_plan(_facts(True, True), ADDRESS, None, Path("plan.yaml"))
    known = ("# limit:", "# verdict:", "# output_dir:", "  # max_tokens:", "  # system_prompt:")
    lines = [
        line.replace("# ", "", 1) if line.startswith(known) else line for line in text.split("\n")
    ]
    plan = resolve(_read("\n".join(lines)), {}, {}).plan
    assert (plan.limit, plan.verdict.name) == (100, "noninferiority")
    assert plan.tasks[0].options["max_tokens"] == 2048
