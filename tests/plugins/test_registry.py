"""Test how launchers, tasks and rules are registered and reach their callers."""

from __future__ import annotations

import os
import re
from typing import Literal

import pytest

from serve_eval.errors import PlanError
from serve_eval.plugins import extensions, registry
from serve_eval.plugins.values import (
    VERDICTS,
    list_rules,
    load_launcher,
    load_verdict_rule,
    rules_with_early_stop,
    rules_with_pairs,
)
from serve_eval.protocol.shared import build_task
from serve_eval.schema import Spec


def _example(
    first,
    *,
    count: int = 3,
    share: float | None = None,
    kind: Literal["a", "b"] = "a",
    needed: str,
    names: list[str] = [],  # noqa: B006
):
    """Take some options."""


def test_names_are_the_files_without_an_underscore():
    assert {"gsm8k", "mmlu"} <= set(registry.names("serve_eval.tasks"))
    assert not [name for name in registry.names("serve_eval.tasks") if name.startswith("_")]


def test_files_that_come_and_go_are_noticed(tmp_path):
    folder = "serve_eval.tasks"
    before = registry.list_shipped(folder)
    shipped = registry.places([folder])
    registry.look_in({folder: [*shipped[folder], str(tmp_path)]})
    try:
        assert registry.list_shipped(folder) == before
        new = tmp_path / "a_new_task.py"
        new.write_text("")
        os.utime(tmp_path, ns=(1, 1))  # the clock of a file system may be coarse
        assert set(registry.list_shipped(folder)) - set(before) == {"a_new_task"}
        new.unlink()
        os.utime(tmp_path, ns=(2, 2))
        assert registry.list_shipped(folder) == before
    finally:
        registry.look_in(shipped)


def test_an_unknown_name_comes_with_the_nearest():
    with pytest.raises(PlanError, match=r"unknown task .gsm8.\. Did you mean .gsm8k.\?"):
        registry.load("serve_eval.tasks", "gsm8")


def test_options_are_the_keyword_only_parameters():
    assert list(registry.options_of(_example)) == ["count", "share", "kind", "needed", "names"]


def test_options_are_converted_to_their_types():
    checked = registry.check_options(
        _example, {"needed": "x", "share": 1, "names": ["a"], "kind": "b"}, "t"
    )
    assert checked == {"needed": "x", "share": 1.0, "names": ["a"], "kind": "b"}
    assert isinstance(checked["share"], float)


def test_every_bad_option_is_reported():
    with pytest.raises(PlanError) as caught:
        registry.check_options(_example, {"count": "3", "kind": "c", "cuont": 1}, "tasks[0].x")
    assert len(caught.value.problems) == 4
    text = str(caught.value)
    assert "tasks[0].x.count: " in text
    assert "tasks[0].x.kind: " in text
    assert "tasks[0].x.cuont: unknown option. Did you mean 'count'?" in text
    assert "tasks[0].x.needed: required" in text


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("c", "Invalid enum value 'c'. Known: a, b."),
        ("bb", "Invalid enum value 'bb'. Did you mean 'b'?"),
    ],
)
def test_a_word_that_is_no_choice_comes_with_those_that_are(value, said):
    def either(*, kind: bool | Literal["a", "b"] | None = None):
        pass

    def plain(*, kind: Literal["a", "b"] = "a"):
        pass

    for function in (either, plain):
        with pytest.raises(PlanError) as caught:
            registry.check_options(function, {"kind": value}, "t")
        assert caught.value.problems == [f"t.kind: {said}"]


@pytest.mark.parametrize(
    ("value", "taken"), [(500, "500"), ("500", "500"), (1.5, "1.5"), ("html", "html"), (None, None)]
)
def test_a_word_that_looks_like_a_number_may_be_written_as_one(value, taken):
    def plain(*, kind: Literal["500", "1.5", "html"] | None = None):
        pass

    assert registry.check_options(plain, {"kind": value}, "t") == {"kind": taken}


@pytest.mark.parametrize("value", [501, 5.5, True, ["html"], {"html": 1}])
def test_a_value_that_is_no_word_comes_with_all_words_that_are(value):
    words = Literal["500", "a", "b", "c", "d", "e", "f", "g", "h", "i"]

    def plain(*, kind: words = "a"):
        pass

    plain.__annotations__["kind"] = words
    with pytest.raises(PlanError) as caught:
        registry.check_options(plain, {"kind": value}, "t")
    [problem] = caught.value.problems
    assert problem.startswith(f"t.kind: Expected one of its words, got {value!r}")
    assert "Did you mean '500'?" in problem or "Known: 500, a, b, c, d, e, f, g, h, i." in problem


def test_without_a_near_name_the_known_ones_are_listed():
    assert registry.nearest("zzz", ["alpha", "beta"]) == " Known: alpha, beta."
    assert registry.nearest("ALPHA", ["alpha", "beta"]) == " Did you mean 'alpha'?"
    assert registry.nearest("x", []) == ""
    assert registry.nearest("zzz", ["alpha", "beta", "alpha"]) == " Known: alpha, beta."


def test_an_option_before_the_star_is_named_with_what_to_write(tmp_path):
    for kind in ("task", "scorer"):
        file = tmp_path / f"{kind}s/usual.py"
        file.parent.mkdir()
        file.write_text(f'"""Usual."""\n\n\ndef {kind}(count: int = 3):\n    return None\n')
    extensions.include([str(tmp_path)])
    for kind in ("task", "scorer"):
        with pytest.raises(PlanError) as caught:
            registry.load(f"serve_eval.{kind}s", "usual")
        assert str(caught.value) == (
            f"{tmp_path}/{kind}s/usual.py:4: count has a default, so it is an option, but only"
            " parameters behind `*` are options: write `*, count`"
        )


def test_a_defect_of_a_task_of_ours_is_named_with_its_line():
    load = build_task(Spec(name="gsm8k")).load
    with pytest.raises(AttributeError) as caught:
        load(None, 1)
    assert re.match(
        r"This is a defect of serve-eval, at .*/serve_eval/tasks/\S+\.py:\d+\. Set",
        extensions.defect(caught.value),
    )


LAUNCHER = """
def commands(context, **options):
    return [["serve", str(options.get("port", 0))]]


async def launch(context, *, port: int = 0):
    yield None
"""
STRUCTURED = """
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from serve_eval.plugins.setting import Setting


@dataclass(frozen=True, kw_only=True)
class Side:
    count: Annotated[int, Setting("How many there are.")] = 1


@dataclass(frozen=True, kw_only=True)
class MineOptions:
    file: Annotated[str, Setting("Where the address is.")]
    side: Annotated[Side | None, Setting("The others.")] = None
    unexplained: bool = False


def commands(context, options: MineOptions):
    return [["serve", options.file, str(options.side.count if options.side else 0)]]


def files(context, options: MineOptions):
    return {options.file: "text"}


def beginning(options: MineOptions):
    return options.file


async def launch(context, options: MineOptions):
    yield None
"""
RULE = "def judge(result, reference, hypothesis, pairs, *, points: float = 5.0): ...\n"


NEEDS = {
    "anchors": (None, True, False, 2),
    "classic": ("mean", False, False, 1),
    "noninferiority": ("pairs", True, False, 1),
    "paired": ("pairs", True, False, 1),
    "tokens": (None, True, True, 1),
}
"""By rule: its early stop, its need of pairs and of texts, and of how many runs."""


def test_our_rules_say_what_they_need_and_how_they_may_be_decided_early():
    told = {name: load_verdict_rule(name) for name in NEEDS}
    assert {
        name: (rule.early_stop, rule.needs_pairs, rule.needs_texts, rule.min_reference_runs)
        for name, rule in told.items()
    } == NEEDS
    assert set(rules_with_early_stop()) >= {"classic", "noninferiority", "paired"}
    assert {"anchors", "tokens"}.isdisjoint(rules_with_early_stop())
    assert set(rules_with_pairs()) >= NEEDS.keys() - {"classic"}
    assert list_rules() == registry.list_shipped(VERDICTS)
    with pytest.raises(
        PlanError, match=r"verdict\.paired\.margn: unknown option\. Did you mean 'margin'\?"
    ):
        told["paired"].check_options({"margn": 1.0})
    check = told["noninferiority"].check
    assert check is not None
    with pytest.raises(PlanError):
        check(margin=-1.0)


def test_a_launcher_of_ours_has_its_functions_and_the_meanings_of_its_options():
    simulated, slurm, external = (
        load_launcher(name) for name in ("simulated", "slurm", "external")
    )
    assert set(simulated.meanings) == set(simulated.options)
    assert simulated.beginning(puts_beginning=True) is True
    assert slurm.files is not None
    assert external.files is None
    assert external.beginning is None
    assert external.check_options({"base_url": "http://h:1/v1"}) == {"base_url": "http://h:1/v1"}
    with pytest.raises(PlanError, match=r"launcher\.external\.base_url: required"):
        external.check_options({})


def test_a_file_of_the_user_becomes_the_same_value(tmp_path):
    _write(tmp_path, "launchers", LAUNCHER + 'MEANINGS = {"port": "Where it listens."}\n')
    _write(tmp_path, "verdicts", RULE + "NEEDS_PAIRS = True\nNEEDS_REFERENCE_RUNS = 3\n")
    extensions.include([str(tmp_path)])
    launcher, rule = load_launcher("mine"), load_verdict_rule("mine")
    assert launcher.commands(None, **launcher.check_options({"port": 7})) == [["serve", "7"]]
    assert launcher.meanings == {"port": "Where it listens."}
    assert (rule.needs_pairs, rule.min_reference_runs, rule.check) == (True, 3, None)
    assert rule.default("points") == 5.0


def test_a_file_of_the_user_takes_its_options_as_a_structure(tmp_path):
    _write(tmp_path, "launchers", STRUCTURED)
    extensions.include([str(tmp_path)])
    launcher = load_launcher("mine")
    assert list(launcher.options) == ["file", "side", "unexplained"]
    assert launcher.meanings == {
        "file": "Where the address is.",
        "side": "The others.",
        "side.count": "How many there are.",
    }
    options = launcher.check_options({"file": "f", "side": {"count": 2}})
    assert launcher.commands(None, **options) == [["serve", "f", "2"]]
    assert launcher.files(None, **options) == {"f": "text"}
    assert launcher.beginning(**options) == "f"
    with pytest.raises(
        PlanError,
        match=r"mine\.side\.cuont: unknown option\. Did you mean launcher\.mine\.side\.count\?",
    ):
        launcher.check_options({"file": "f", "side": {"cuont": 2}})
    with pytest.raises(PlanError, match=r"launcher\.mine\.file: required"):
        launcher.check_options({"unexplained": True})


def test_keyword_parameters_are_explained_by_a_setting_or_by_meanings(tmp_path):
    annotated = LAUNCHER.replace(
        "port: int", "name: str, port: Annotated[int, Setting('Where it listens.')]"
    )
    imports = "from typing import Annotated\nfrom serve_eval.plugins.setting import Setting\n"
    _write(
        tmp_path,
        "launchers",
        f"{imports}{annotated}MEANINGS = {{'name': 'What it is called.', 'port': 'Lost.'}}\n",
    )
    extensions.include([str(tmp_path)])
    launcher = load_launcher("mine")
    assert launcher.meanings == {"name": "What it is called.", "port": "Where it listens."}
    assert launcher.check_options({"name": "n", "port": 7}) == {"name": "n", "port": 7}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            "launch(context, options: MineOptions)",
            "launch(context, options: dict)",
            "1 arguments before its options",
        ),
        (
            "launch(context, options: MineOptions)",
            "launch(options: MineOptions)",
            "1 arguments before its options",
        ),
        (
            "side: Annotated[Side | None",
            "side: Annotated[Sied | None",
            "the types of its options cannot be read",
        ),
    ],
)
def test_a_structure_that_is_none_is_refused(tmp_path, before, after, said):
    _write(tmp_path, "launchers", STRUCTURED.replace(before, after))
    extensions.include([str(tmp_path)])
    with pytest.raises(PlanError, match=rf"launchers/mine\.py: launch: .*{said}"):
        load_launcher("mine")


def test_the_bets_of_an_early_stop_are_taken_for_rules_of_ours_alone(tmp_path):
    _write(tmp_path, "verdicts", RULE + 'EARLY_STOP = "pairs"\n')
    extensions.include([str(tmp_path)])
    assert load_verdict_rule("mine").early_stop is None


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (
            "launchers",
            LAUNCHER + "MEANINGS = ['port']\n",
            r"MEANINGS must map each option to one line, not",
        ),
        (
            "launchers",
            LAUNCHER + "MEANINGS = {'port': 1}\n",
            r"MEANINGS must map each option to one line, not",
        ),
        ("launchers", LAUNCHER + "beginning = '<s>'\n", r"beginning must be a function, not '<s>'"),
        (
            "verdicts",
            RULE + "NEEDS_PAIRS = 'yes'\n",
            r"NEEDS_PAIRS must be True or False, not 'yes'",
        ),
        (
            "verdicts",
            RULE + "NEEDS_REFERENCE_RUNS = 0\n",
            r"NEEDS_REFERENCE_RUNS must be 1 or more, not 0",
        ),
        ("verdicts", RULE + "check = {}\n", r"check must be a function, not \{\}"),
    ],
)
def test_what_a_file_says_in_another_form_is_refused_with_its_name(tmp_path, kind, text, said):
    _write(tmp_path, kind, text)
    extensions.include([str(tmp_path)])
    load = load_launcher if kind == "launchers" else load_verdict_rule
    with pytest.raises(PlanError, match=rf"{kind}/mine\.py: {said}"):
        load("mine")


def _write(folder, kind, text):
    (folder / kind).mkdir()
    (folder / kind / "mine.py").write_text(text)
