"""Test what a plan may do and reach if another user saved its folder.

It is harmless, or it can run something or reach somewhere and needs consent.
"""

import shutil
import typing
from dataclasses import fields, replace

import pytest

from serve_eval.cli._suite_run import _open
from serve_eval.errors import PlanError, WithheldCodeError
from serve_eval.evaluation import reach
from serve_eval.evaluation.trust import adopt_code, to_follow, to_read
from serve_eval.plugins import registry
from serve_eval.protocol.shared import OPTIONS as CHOICES
from serve_eval.schema import Connection, Limits, Plan, Spec, Suite, SuiteRun
from serve_eval.storage.run_folder import open_folder
from serve_eval.storage.story_results import write_suite


def _plan(*, allow_hub):
    launcher = Spec(name="external", options={"base_url": "http://127.0.0.1:9/v1"})
    tasks = (Spec(name="word_problems"),)
    return Plan(model="m", launcher=launcher, tasks=tasks, allow_hub=allow_hub)


@pytest.mark.parametrize("allowed", [False, True])
def test_a_command_that_reads_a_folder_uses_the_hub_only_where_this_user_allowed_it(
    tmp_path, allowed
):
    plan = _plan(allow_hub=allowed)
    with open_folder(tmp_path / "own", plan, {"word_problems": {}}, own=True):
        pass
    shutil.copytree(tmp_path / "own", tmp_path / "copied")
    found = {name: to_read(tmp_path / name, ()).allow_hub for name in ("own", "copied")}
    assert found == {"own": allowed, "copied": False}


@pytest.mark.parametrize("allowed", [False, True])
def test_a_command_that_shows_a_suite_uses_the_hub_only_where_this_user_allowed_it(
    tmp_path, allowed
):
    own = tmp_path / "own"
    own.mkdir()
    write_suite(own, Suite(name="s", runs=(SuiteRun(name="one", plan=_plan(allow_hub=allowed)),)))
    shutil.copytree(own, tmp_path / "copied")
    found = {
        name: _open(None, tmp_path / name, allow_code_execution=False, follow=False)[0]
        .runs[0]
        .plan.allow_hub
        for name in ("own", "copied")
    }
    assert found == {"own": allowed, "copied": False}


def _foreign(folder, plan):
    """Return a run folder that another user saved."""
    with open_folder(folder / "saved", plan, {spec.name: {} for spec in plan.tasks}, own=True):
        pass
    shutil.copytree(folder / "saved", folder / "copied")
    return folder / "copied"


QUIET = Spec(name="simulated")
STARTING = Spec(name="embedded", options={"server": "/evil"})
SERVING = Spec(name="llama_cpp")
READING = Spec(name="lm_eval", options={"data_files": {"test": "/evil"}})


@pytest.mark.parametrize(
    ("plan", "settings", "asks"),
    [
        ({}, {}, "launcher.base_url"),
        ({}, {"base_url": "http://127.0.0.1:8/v1"}, None),
        ({}, {"set": ["launcher.base_url=http://127.0.0.1:8/v1"]}, None),
        ({}, {"set": ["launcher.other=1", "launcher.base_url=x=y"]}, None),
        ({}, {"set": ["launcher.other=launcher.base_url"]}, "launcher.base_url"),
        ({}, {"launcher": "simulated"}, None),
        ({"launcher": STARTING}, {}, "launcher.server"),
        ({"launcher": STARTING}, {"base_url": "http://127.0.0.1:8/v1"}, None),
        ({"launcher": STARTING}, {"launcher": "embedded"}, "launcher.server"),
        ({"launcher": SERVING}, {}, "launcher"),
        ({"launcher": SERVING}, {"base_url": "http://127.0.0.1:8/v1"}, None),
        ({"launcher": QUIET}, {}, None),
        ({"launcher": QUIET, "allow_hub": True}, {}, "allow_hub"),
        ({"launcher": QUIET, "allow_hub": True}, {"allow_hub": False}, None),
        ({"launcher": QUIET, "tasks": (READING, Spec(name="mmlu"))}, {}, "lm_eval.data_files"),
        ({"launcher": QUIET, "tasks": (READING, Spec(name="mmlu"))}, {"tasks": ["mmlu"]}, None),
    ],
)
def test_what_a_foreign_plan_reaches_is_asked_unless_the_command_replaces_it(
    tmp_path, plan, settings, asks
):
    folder = _foreign(tmp_path, replace(_plan(allow_hub=False), **plan))
    if asks is None:
        to_follow(folder, settings, trust_plan=False)
    else:
        with pytest.raises(PlanError, match=f"\n  {asks}: "):
            to_follow(folder, settings, trust_plan=False)
    assert to_follow(folder, settings, trust_plan=True).model == "m"


def test_folders_of_code_are_those_of_the_command(tmp_path):
    (tmp_path / "mine" / "tasks").mkdir(parents=True)
    mine = str(tmp_path / "mine")
    saved = replace(_plan(allow_hub=False), include_path=("/evil",))
    folder = _foreign(tmp_path, saved)
    assert to_read(folder, ()).include_path == ()
    assert to_read(folder, (mine,)).include_path == (mine,)
    settings = {"include_path": [mine], "base_url": "http://127.0.0.1:8/v1"}
    assert to_follow(folder, settings, trust_plan=False).include_path == (mine,)


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ({"launcher": Spec(name="nowhere")}, {"base_url": "http://127.0.0.1:8/v1"}),
        ({"launcher": Spec(name="nowhere")}, {"launcher": "simulated"}),
        ({"verdict": Spec(name="nowhere")}, {"verdict": "paired"}),
    ],
)
def test_code_that_the_command_replaces_is_not_looked_for(tmp_path, fields, settings):
    saved = replace(_plan(allow_hub=False), include_path=("/evil",), **fields)
    folder = _foreign(tmp_path, saved)
    assert to_follow(folder, settings, trust_plan=True).include_path == ()
    with pytest.raises(WithheldCodeError, match="nowhere"):
        to_follow(folder, {}, trust_plan=True)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"tasks": (Spec(name="nowhere"),)}, "task 'nowhere'"),
        ({"tasks": (Spec(name="nowhere:part"),)}, "task 'nowhere:part'"),
        ({"tasks": (Spec(name="lm_eval:mine"),)}, "task 'lm_eval:mine'"),
        ({"launcher": Spec(name="nowhere")}, "launcher 'nowhere'"),
        ({"verdict": Spec(name="nowhere")}, "verdict rule 'nowhere'"),
    ],
)
def test_what_the_plans_own_folders_of_code_hold_must_be_named_again(tmp_path, fields, named):
    saved = replace(_plan(allow_hub=False), include_path=("/evil",), **fields)
    with pytest.raises(WithheldCodeError, match=f"takes its .*{named}.* from /evil") as caught:
        adopt_code(saved, ())
    assert caught.value.hint == "If you trust it: --include-path /evil"
    (tmp_path / "lm_eval").mkdir()
    if named == "task 'lm_eval:mine'":
        assert adopt_code(saved, (str(tmp_path),)).include_path == (str(tmp_path),)


TEXTS = (str, list, tuple, dict, typing.Any)


def _can_hold_text(hint):
    """Return True if a type takes more than numbers and fixed words."""
    if typing.get_origin(hint) is typing.Literal:
        return False
    inner = typing.get_args(hint)
    return hint in TEXTS or typing.get_origin(hint) in TEXTS or any(map(_can_hold_text, inner))


@pytest.mark.parametrize("launcher", registry.list_shipped("serve_eval.launchers"))
def test_every_option_of_a_launcher_is_classified(launcher):
    options = set(registry.options_of(registry.load("serve_eval.launchers", launcher)))
    harmless = reach.HARMLESS[launcher]
    assert options <= harmless | reach.OPTIONS.keys(), "list it in serve_eval/evaluation/reach.py"
    assert harmless <= options, "it was removed"


def test_every_field_of_a_plan_is_classified():
    listed = [*reach.ASKING_FIELDS, *reach.ANEW_FIELDS, *reach.HARMLESS_FIELDS]
    assert sorted(listed) == sorted(field.name for field in fields(Plan)), (
        "list it in serve_eval/evaluation/reach.py"
    )
    ways = {*reach.CONNECTION, *reach.HARMLESS_CONNECTION}
    assert ways == {field.name for field in fields(Connection)}, (
        "list it in serve_eval/evaluation/reach.py"
    )
    hints = typing.get_type_hints(Limits).items()
    compared = {"known_finish_reasons"}  # with what a server says; nothing else is done with them
    assert {name for name, hint in hints if _can_hold_text(hint)} == compared


@pytest.mark.parametrize("task", registry.list_shipped("serve_eval.tasks"))
def test_every_option_of_a_task_that_can_hold_a_text_is_classified(task):
    make = registry.function("serve_eval.tasks", task)
    hints = typing.get_type_hints(make)
    texts = {f"{task}.{name}" for name in registry.options_of(make) if _can_hold_text(hints[name])}
    own = {name for name in texts if name.partition(".")[2] not in CHOICES}
    known = {*reach.JUDGED_BY, *reach.ASKING_OPTIONS, *reach.HARMLESS_OPTIONS}
    assert own <= known, "list it in serve_eval/evaluation/reach.py"
    assert {name for name in known if name.startswith(f"{task}.")} <= own, "it was removed"


def test_every_choice_that_can_hold_a_text_is_classified():
    assert {
        name for name, hint in CHOICES.items() if _can_hold_text(hint)
    } <= reach.HARMLESS_CHOICES
    assert CHOICES.keys() >= reach.HARMLESS_CHOICES


def test_options_of_launchers_and_tasks_that_are_not_ours_ask():
    task = Spec(name="towns", options={"where": "x", "max_tokens": 3})
    plan = Plan(model="m", launcher=Spec(name="theirs", options={"port": 1}), tasks=(task,))
    assert [(one.field, one.value) for one in reach.list_reached(plan)] == [
        ("launcher", "theirs"),
        ("launcher.port", 1),
        ("towns.where", "x"),
    ]
