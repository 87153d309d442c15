from __future__ import annotations

import pytest

from serve_eval.cli.listing import NOT_BUILT, listing
from serve_eval.plugins import registry
from serve_eval.verdicts.references import find_shipped_dir, load


def test_the_list_has_every_task_and_says_what_is_not_built(
    capfd: pytest.CaptureFixture[str],
) -> None:
    listing("tasks")
    told = capfd.readouterr().out
    assert all(f"\n  {name}:" in told for name in registry.names("serve_eval.tasks"))
    assert "\n  cases:NAME: " in told
    assert (
        "not implemented, although their references can be imported:"
        " videomme, mixed_modality_*" in told
    )


def test_the_list_has_every_scorer_of_cases_with_its_options(
    capfd: pytest.CaptureFixture[str],
) -> None:
    listing("scorers")
    told = capfd.readouterr().out
    assert all(f"\n  {name}: " in told for name in registry.names(registry.SCORERS))
    assert "\n  words: The answer has certain words" in told
    assert "\n      whole_words: False\n" in told


@pytest.mark.parametrize("name", NOT_BUILT)
def test_the_references_of_what_is_not_built_are_there(name: str) -> None:
    files = list(find_shipped_dir().glob(f"{name}.yaml"))
    assert files
    assert all(load(file) is not None for file in files)
    assert name not in registry.names("serve_eval.tasks")
