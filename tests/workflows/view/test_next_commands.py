"""Each next command of a folder runs as it stands."""

import shlex
import shutil

import pytest

from serve_eval.workflows.view.document import make_document
from serve_eval.workflows.view.overview import read_folder
from tests.cli.command import serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    """Keep what the commands write out of this repository."""
    monkeypatch.chdir(tmp_path)


ASKED = (
    "run --launcher simulated -m org/m -t word_problems"
    " --set word_problems.num_samples=60 --set launcher.seed=7"
)


def _run(out, accuracy, more=""):
    words = shlex.split(f"{ASKED} --set launcher.accuracy={accuracy} {more}")
    done = serve_eval(*words, "-o", out)
    assert done.returncode in (0, 1, 3), done.stderr


def _view(folder):
    return make_document(read_folder(folder))


def _follow(document):
    """Run each command as it is printed, and return the exit codes."""
    codes = []
    for line in document.commands:
        program, *words = shlex.split(line)
        assert program == "serve-eval"
        done = serve_eval(*words)
        assert done.returncode != 2, (line, done.stderr)
        codes.append(done.returncode)
    return codes


def test_a_failure_is_compared_with_the_last_pass_and_diagnosed(tmp_path):
    nights, references = tmp_path / "my nights", tmp_path / "references"
    _run(tmp_path / "taken", 0.95, "--no-reference")
    serve_eval(f"references register {tmp_path}/taken --references-dir {references}")
    for name, accuracy in (("1", 0.95), ("2", 0.3)):
        _run(nights / name, accuracy, f"--references-dir {references}")
    document = _view(nights)
    assert document.verdict == "FAIL"
    first, second = document.commands
    assert first.startswith("serve-eval compare ")
    assert second.startswith("serve-eval diagnose ")
    assert _follow(document) == [1, 0]


def test_a_failed_comparison_is_diagnosed(tmp_path):
    for name, accuracy in (("a", 0.95), ("b", 0.3)):
        _run(tmp_path / "runs" / name, accuracy, "--no-reference")
    runs = tmp_path / "runs"
    serve_eval(f"compare {runs}/a {runs}/b -o {tmp_path}/night/compare", exits=1)
    document = _view(tmp_path / "night")
    assert [line.split()[:2] for line in document.commands] == [["serve-eval", "diagnose"]]
    assert _follow(document) == [0]


def test_a_killed_run_is_resumed(tmp_path):
    _run(tmp_path / "nights/1", 0.9, "--no-reference")
    (tmp_path / "nights/1/report.json").unlink()
    (tmp_path / "nights/1/summary.md").unlink()
    document = _view(tmp_path / "nights")
    assert document.verdict == "KILLED"
    assert [line.split()[:3] for line in document.commands] == [["serve-eval", "run", "--resume"]]
    assert _follow(document) == [3]
    assert _view(tmp_path / "nights").verdict == "NO REFERENCE"


def test_a_folder_of_rehearsals_says_that_nothing_counts(tmp_path):
    _run(tmp_path / "nights/1", 0.9, "--no-reference")
    file = tmp_path / "nights/1/report.json"
    file.write_text(file.read_text().replace('"rehearsal": false', '"rehearsal": true'))
    shutil.copytree(tmp_path / "nights/1", tmp_path / "nights/2")
    serve_eval(
        f"runs view {tmp_path}/nights -o {tmp_path}/v.html",
        exits=0,
        prints="2 rehearsals not counted",
    )
