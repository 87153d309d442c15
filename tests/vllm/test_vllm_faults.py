"""Test that each real fault of docs/real-faults.md is found and named by its cheapest command."""

from __future__ import annotations

import random
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.schema import DataRoots
from serve_eval.tasks.word_problems import task as word_problems
from tests.vllm.conftest import TABLE, skipping
from tests.vllm.deployments import Deployments
from tests.vllm.fault_table.causes import CAUSES
from tests.vllm.fault_table.commands import COMMANDS
from tests.vllm.fault_table.disturbing import count_answers
from tests.vllm.fault_table.faults import FAULTS, MANY
from tests.vllm.fault_table.stage import Stage
from tests.vllm.fault_table.system import System
from tests.vllm.faulty_transfer import choose_one_in

pytestmark = [pytest.mark.slow, pytest.mark.vllm]
RARE = "other requests' blocks for 1 %"
OTHER_FILES = "KV files of other prompts for 10 %"
CHEAPEST: Mapping[str, tuple[str, ...]] = {
    "other requests' blocks for 10 %": ("compare", "equal tokens"),
    "other requests' blocks for 1 %": ("compare", "equal tokens"),
    "last block dropped": ("verify",),
    "block sizes 32 and 64": ("verify",),
    "decode prefills again": ("compare", "path proof"),
    "one of two with int3": ("verify",),
    "one of two with W8A8": ("verify",),
    "one of two with KV fp8": ("compare",),
    "decode restarted with int3": ("compare",),
    "prefill killed": ("compare",),
    "prefill with another template": ("compare", "diagnose"),
    OTHER_FILES: ("compare", "equal tokens"),
    "KV files rounded to four bits": ("verify",),
    "prefix cache off": ("compare", "path proof"),
    "no draft accepted": ("compare", "path proof"),
}
"""The commands of each fault, of which the last one names it."""
ENOUGH: Mapping[str, int] = {
    RARE: 600,
    OTHER_FILES: 300,
    "one of two with KV fp8": 50,
    "decode restarted with int3": 60,
}
"""Prompts of a comparison, where other than the fault's own suffice."""
MISSED: Mapping[str, float] = {RARE: 1 - 0.874, OTHER_FILES: 1 - 0.576}
"""Probability that an answer is the right one although the prompt was hit, at most: 68 of 69 and 30
of 36 prompts that were hit got another text, with these exact bounds of confidence .999."""


@pytest.fixture(scope="module")
def stage(pairs: Deployments, reference: Path, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    top = tmp_path_factory.mktemp("faults")
    (top / "references").mkdir()
    shutil.copy(reference, top / "references/text_0.json")
    return Stage(pairs, top)


@pytest.mark.parametrize(("name", "one_in", "shots"), [(RARE, 100, 0), (OTHER_FILES, 10, 2)])
def test_a_fault_of_some_requests_hits_enough_prompts(name: str, one_in: int, shots: int) -> None:
    """Find the probability with which all hit prompts are answered as if they were not.

    The hash of a prompt decides whether it is hit, so that their number is known. One in a hundred
    hits 8 of these 600, and 2 of the 100 that would be asked otherwise: .126 ** 8 is 6e-8.
    """
    plan = System(a="", b="", shots=shots).plan("", 0, ENOUGH[name])
    [task] = plan["tasks"]
    options = {key: value for key, value in task.items() if key != "name"}
    data = word_problems(**options).load(DataRoots(), task["num_samples"])
    drawn = random.Random(f"{plan['seed']}:word_problems")
    chosen = drawn.sample(range(len(data.samples)), plan["limit"])
    is_hit = choose_one_in(one_in)
    hit = sum(is_hit({"prompt": data.samples[place].prompt}, 0) for place in chosen)
    assert hit > 0
    assert MISSED[name] ** hit < 1e-6


def test_every_fault_has_a_test() -> None:
    assert list(CHEAPEST) == list(FAULTS)


@pytest.mark.parametrize("name", CHEAPEST)
def test_a_fault_is_found_and_named(stage: Stage, name: str) -> None:
    began = time.monotonic()
    folder = stage.top / name.replace(" ", "_") / "0"
    folder.mkdir(parents=True)
    with skipping(), FAULTS[name].open(stage) as opened:
        system = replace(opened, prompts=ENOUGH.get(name, opened.prompts))
        for command in CHEAPEST[name]:
            told = COMMANDS[command](system, 0, folder)
    cause = re.search(CAUSES[name][command], told.text)
    took = time.monotonic() - began
    TABLE.append(f"{name} | {' and '.join(CHEAPEST[name])} | exit {told.code} | {took:.0f} s")
    assert cause is not None, told.text
    if name == "prefill killed":
        _check_nothing_unanswered_is_wrong(folder / "compared/b")


def _check_nothing_unanswered_is_wrong(run: Path) -> None:
    answered = count_answers(run)
    assert 0 < answered < MANY
    scored = [line for file in run.glob("scores/*") for line in file.read_text().splitlines()]
    assert len(scored) <= answered
