"""Derive flags and settings from structures of options."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import pytest

from serve_eval.cli._commands import walk
from serve_eval.cli._options import command, settings_of
from serve_eval.cli._own_settings import take_own
from serve_eval.cli.app import make_command
from serve_eval.errors import PlanError
from serve_eval.plan.options import AskedOptions, ConnectionOptions, JudgedOptions, ProtocolOptions
from serve_eval.plugins.setting import Setting, list_declared
from tests.cli.command import serve_eval


@dataclass(frozen=True, kw_only=True)
class Fruit:
    """Example options."""

    title: ClassVar[str] = "Fruit"
    apples: Annotated[int | None, Setting("How many.", key="limits.apples_kg")] = None
    pears: Annotated[list[str] | None, Setting("Which.", variable="always")] = None
    plums: Annotated[bool, Setting("", refused=("no plums", "Take pears."))] = False


def test_names_flags_variables_and_types_follow_from_a_field() -> None:
    apples, pears, _ = list_declared(Fruit)
    assert (apples.flags, apples.variable, apples.key, apples.kind) == (
        ("--apples",),
        "SERVE_EVAL_APPLES",
        "limits.apples_kg",
        int,
    )
    assert (apples.repeated, pears.repeated, pears.key) == (False, True, "pears")


def test_a_command_gets_its_structures_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[tuple[Fruit, str]] = []

    @command()
    def pick(fruit: Fruit, basket: str = "b") -> None:
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


def test_settings_have_the_last_part_of_the_key_and_nothing_that_was_not_given() -> None:
    assert settings_of(Fruit(apples=0)) == {"apples_kg": 0}
    assert settings_of(Fruit(apples=0, pears=["a"]), only={"pears"}) == {"pears": ["a"]}


def test_two_options_with_one_key_are_joined() -> None:
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
def test_what_cannot_be_read_is_refused(section: object, message: str) -> None:
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


def test_a_key_on_the_command_line_is_refused() -> None:
    for arguments in (["run", "--tasks", "gsm8k"], ["smoke"], ["watch"]):
        said = serve_eval(*arguments, "--api-key", "sk-abcdefgh")
        assert said.returncode == 2
        assert "is visible to every user of this machine" in said.stderr
        assert "sk-abcdefgh" not in said.stderr


def test_the_page_lists_each_option_of_a_command_without_a_flag() -> None:
    page = (Path(__file__).parents[2] / "docs/run.md").read_text(encoding="utf-8")
    table = page.partition("## Keys without a flag")[2]
    own = re.findall(r"^\| `(\w+\.\w+)` \| `(--[\w-]+)` \| `([a-z ]+)` \|$", table, re.MULTILINE)
    assert own == sorted(
        (one.place, one.flags[0].partition("/")[0], " ".join(words))
        for words, _ in walk()
        for one in getattr(make_command(*words), "own", ())
    )


def test_the_options_of_a_command_itself_are_set_by_set() -> None:
    refused = serve_eval("watch", "127.0.0.1:9", "--passes", "3")
    assert refused.returncode == 2
    assert refused.stderr == "error: there is no option --passes: write --set watch.passes=3\n"
    watch = ("watch", "127.0.0.1:9", "--dry-run", "--set", "watch.smoke=false")
    usual, fewer = serve_eval(*watch), serve_eval(*watch, "--set", "watch.passes=3")
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
def test_a_value_of_an_option_is_that_of_its_flag(text: str, found: dict[str, object]) -> None:
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
def test_a_value_of_another_kind_is_refused(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=re.escape(message)):
        take_own([text], {one.place: one for one in list_declared(OwnOptions)})


def test_a_flag_that_is_gone_is_answered_by_the_key() -> None:
    refused = serve_eval("run", "--rate-limit", "5")
    assert refused.returncode == 2
    assert "there is no option --rate-limit: write --set limits.rate_limit=5" in refused.stderr
    assert "a variable as SERVE_EVAL_RATE_LIMIT" in refused.stderr
    of_two = serve_eval("verify", "127.0.0.1:9", "--no-stream")
    assert "there is no option --no-stream: write --set limits.stream=false" in of_two.stderr
    assert "A plan has it as limits.stream.\n" in of_two.stderr  # only run reads its variable
