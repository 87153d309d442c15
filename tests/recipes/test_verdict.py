"""Take a recipe from its file to the stand-in for trtllm-serve and to a verdict, as processes."""

from pathlib import Path

import msgspec
import pytest

from tests.cli.command import in_a_process
from tests.standin.deployments import environment

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).parent / "examples"


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_recipe_is_converted_started_and_judged(tmp_path):
    in_a_process(f"setup init --from {EXAMPLES}/orchestrator.yaml", exits=0)
    Path("references").mkdir()
    Path("references/word_problems.yaml").write_text(
        "org/model:\n  - accuracy: 90.0\n    source: declared by the tests\n"
    )
    asked = "--limit 200 --references-dir references"
    in_a_process(
        "run --launcher simulated --model org/model --tasks word_problems"
        f" --set launcher.accuracy=0.9 -o simulated {asked}",
        exits=0,
    )
    answers = tmp_path / "simulated/logs/simulated.answers.jsonl"
    gpus = "--set 'launcher.gpus=[0, 1, 2]'"
    for name, faults, verdict in (
        ("sound", {}, "PASS"),
        ("corrupt", {"corrupt_after": 20, "when": {"gpus": "1"}}, "FAIL"),
    ):
        env = environment(faults=faults, answers=answers, XDG_CACHE_HOME=str(tmp_path))
        more = {key: value for key, value in env.items() if key.startswith(("STANDIN", "SERVE"))}
        in_a_process(
            f"run plan.yaml -o {name} {asked} {gpus}",
            PATH=env["PATH"],
            XDG_CACHE_HOME=str(tmp_path),
            **more,
            exits=0 if verdict == "PASS" else 1,
        )
        report = msgspec.json.decode((tmp_path / name / "report.json").read_bytes())
        assert report["tasks"][0]["verdict"]["outcome"].upper() == verdict
        assert list(report["endpoint"]["info"]["servers"]) == [
            *("context_0", "generation_0", "generation_1", "orchestrator")
        ]
