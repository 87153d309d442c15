"""Launchers and verdict rules reach their callers in one form, whatever file defines them."""

from __future__ import annotations

from pathlib import Path

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


NEEDS: dict[str, tuple[str | None, bool, bool, int]] = {
    "anchors": (None, True, False, 2),
    "classic": ("mean", False, False, 1),
    "noninferiority": ("pairs", True, False, 1),
    "paired": ("pairs", True, False, 1),
    "tokens": (None, True, True, 1),
}
"""By rule: its early stop, its need of pairs and of texts, and of how many runs."""


def test_our_rules_say_what_they_need_and_how_they_may_be_decided_early() -> None:
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


def test_a_launcher_of_ours_has_its_functions_and_the_meanings_of_its_options() -> None:
    simulated, slurm, external = (
        load_launcher(name) for name in ("simulated", "slurm", "external")
    )
    assert set(simulated.meanings) == set(simulated.options)
    assert simulated.beginning is not None
    assert simulated.beginning(puts_beginning=True) is True
    assert slurm.files is not None
    assert external.files is None
    assert external.beginning is None
    assert external.check_options({"base_url": "http://h:1/v1"}) == {"base_url": "http://h:1/v1"}
    with pytest.raises(PlanError, match=r"launcher\.external\.base_url: required"):
        external.check_options({})


def test_a_file_of_the_user_becomes_the_same_value(tmp_path: Path) -> None:
    _write(tmp_path, "launchers", LAUNCHER + 'MEANINGS = {"port": "Where it listens."}\n')
    _write(tmp_path, "verdicts", RULE + "NEEDS_PAIRS = True\nNEEDS_REFERENCE_RUNS = 3\n")
    extensions.include([str(tmp_path)])
    launcher, rule = load_launcher("mine"), load_verdict_rule("mine")
    assert launcher.commands(None, **launcher.check_options({"port": 7})) == [["serve", "7"]]
    assert launcher.meanings == {"port": "Where it listens."}
    assert (rule.needs_pairs, rule.min_reference_runs, rule.check) == (True, 3, None)
    assert rule.default("points") == 5.0


def test_a_file_of_the_user_takes_its_options_as_a_structure(tmp_path: Path) -> None:
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
    assert launcher.files is not None
    assert launcher.files(None, **options) == {"f": "text"}
    assert launcher.beginning is not None
    assert launcher.beginning(**options) == "f"
    with pytest.raises(
        PlanError,
        match=r"mine\.side\.cuont: unknown option\. Did you mean launcher\.mine\.side\.count\?",
    ):
        launcher.check_options({"file": "f", "side": {"cuont": 2}})
    with pytest.raises(PlanError, match=r"launcher\.mine\.file: required"):
        launcher.check_options({"unexplained": True})


def test_keyword_parameters_are_explained_by_a_setting_or_by_meanings(tmp_path: Path) -> None:
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
def test_a_structure_that_is_none_is_refused(
    tmp_path: Path, before: str, after: str, said: str
) -> None:
    _write(tmp_path, "launchers", STRUCTURED.replace(before, after))
    extensions.include([str(tmp_path)])
    with pytest.raises(PlanError, match=rf"launchers/mine\.py: launch: .*{said}"):
        load_launcher("mine")


def test_the_bets_of_an_early_stop_are_taken_for_rules_of_ours_alone(tmp_path: Path) -> None:
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
def test_what_a_file_says_in_another_form_is_refused_with_its_name(
    tmp_path: Path, kind: str, text: str, said: str
) -> None:
    _write(tmp_path, kind, text)
    extensions.include([str(tmp_path)])
    load = load_launcher if kind == "launchers" else load_verdict_rule
    with pytest.raises(PlanError, match=rf"{kind}/mine\.py: {said}"):
        load("mine")


def _write(folder: Path, kind: str, text: str) -> None:
    (folder / kind).mkdir()
    (folder / kind / "mine.py").write_text(text)
