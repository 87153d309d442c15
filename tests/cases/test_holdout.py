"""A hold-out set cannot be read without the key; no report and no scores contain its texts."""

import json
import shutil

import pytest

from serve_eval.cases import file
from serve_eval.cases.questions import questions
from serve_eval.errors import PlanError
from tests.cases.made import counting
from tests.cli.command import serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")

fernet = pytest.importorskip("cryptography.fernet", reason="the extra holdout is not installed")
KEY = "cw_0x689RpI-jtRR7oE8h_eQsKImvJapLeSbXpwF4e4="
OTHER = "A" * 43 + "="
CASES = (
    "secret:\n  cases:\n    - {case: a:one, input: {prompt: 'Question of the vault?'}, expected:"
    " {answer: vault}}\n"
)


@pytest.fixture
def sealed(tmp_path):
    """Return the encrypted file; the plain one is deleted."""
    plain = tmp_path / "secret.yaml"
    plain.write_text(CASES)
    done = serve_eval("data", "cases", "encrypt", plain, SERVE_EVAL_HOLDOUT_KEY=KEY)
    assert done.returncode == 0, done.stderr
    plain.unlink()
    return tmp_path / "secret.yaml.enc"


def test_the_file_tells_nothing_and_the_key_tells_all(sealed, monkeypatch):
    assert b"vault" not in sealed.read_bytes()
    monkeypatch.setenv(file.VARIABLE, KEY)
    [one] = questions(file.read([str(sealed)]), "secret").asked
    assert (one.turns[-1].text, one.holdout) == ("Question of the vault?", True)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("", "secret.yaml.enc: is encrypted, but SERVE_EVAL_HOLDOUT_KEY is not set"),
        (
            OTHER,
            (
                "secret.yaml.enc: cannot be decrypted: the key in SERVE_EVAL_HOLDOUT_KEY is wrong"
                ", or the file is damaged"
            ),
        ),
        ("short", "SERVE_EVAL_HOLDOUT_KEY is not a key"),
    ],
)
def test_without_the_right_key_nothing_is_read(sealed, key, message, monkeypatch):
    monkeypatch.setenv(file.VARIABLE, key)
    with pytest.raises(PlanError) as error:
        file.read([str(sealed)])
    assert message in str(error.value)
    assert error.value.hint


def test_a_damaged_file_is_told(sealed, monkeypatch):
    monkeypatch.setenv(file.VARIABLE, KEY)
    sealed.write_bytes(sealed.read_bytes()[:-20])
    with pytest.raises(PlanError, match="cannot be decrypted"):
        file.read([str(sealed)])


def test_encrypting_needs_a_key_and_a_file_that_is_right(tmp_path):
    plain = tmp_path / "a.yaml"
    plain.write_text(CASES)
    done = serve_eval("data", "cases", "encrypt", plain)
    assert (done.returncode, "SERVE_EVAL_HOLDOUT_KEY is not set" in done.stderr) == (2, True)
    assert "openssl rand -base64 32" in done.stderr
    plain.write_text("secret: 3\n")
    assert serve_eval("data", "cases", "encrypt", plain, SERVE_EVAL_HOLDOUT_KEY=KEY).returncode == 2
    assert not (tmp_path / "a.yaml.enc").exists()


def test_no_file_of_the_run_but_the_journal_of_answers_has_its_texts(sealed, tmp_path):
    out = tmp_path / "out"
    with counting() as endpoint:
        arguments = [
            "--cases",
            sealed,
            "--base-url",
            endpoint.url,
            "--model",
            "m",
            "--no-reference",
            "-o",
            out,
        ]
        done = serve_eval("run", *arguments, SERVE_EVAL_HOLDOUT_KEY=KEY)
        assert done.returncode == 3, done.stderr
        assert endpoint.taken() == {"Question of the vault?": 1}
        shown = serve_eval("run", *arguments, "--dry-run", SERVE_EVAL_HOLDOUT_KEY=KEY)
        listed = serve_eval("data", "cases", "expand", "--json", sealed, SERVE_EVAL_HOLDOUT_KEY=KEY)
    assert "● 100.0" in done.stdout
    assert "a:one" in listed.stdout
    for text in (done.stdout, done.stderr, shown.stdout, listed.stdout):
        assert "vault" not in text.lower()
        assert KEY not in text
    for path in (path for path in out.rglob("*") if path.is_file()):
        assert KEY.encode() not in path.read_bytes()
        if path.parent.name != "samples":
            assert b"vault" not in path.read_bytes().lower(), path
    done = serve_eval(
        "runs", "export", out, "-o", tmp_path / "exported", SERVE_EVAL_HOLDOUT_KEY=KEY
    )
    assert done.returncode == 0, done.stderr
    written = [path for path in (tmp_path / "exported").rglob("*") if path.is_file()]
    assert len(written) == 2
    assert not [path for path in written if b"vault" in path.read_bytes().lower()]
    _check_that_show_hides(out, "not shown: part of a hold-out set")
    shutil.rmtree(out / "prompts")  # as in a folder of an older version
    _check_that_show_hides(out, "not shown: part of a hold-out set")


def _check_that_show_hides(run, told):
    name = json.loads((run / "samples/cases-secret.jsonl").read_text().splitlines()[0])["id"]
    for flags in ([name], [name, "--json"], [name, "-v"], []):
        shown = serve_eval("show", run, *flags)
        assert shown.returncode == 0, shown.stderr
        assert "vault" not in shown.stdout.lower()
        assert told in shown.stdout or not flags or flags == [name, "--json"]
        if "--json" in flags:
            [sample] = json.loads(shown.stdout)["result"]["samples"]
            assert sample["prompt_note"] == told
    for text in ("vault", "Question"):
        assert "none of 1 samples matches" in serve_eval("show", run, "--grep", text).stdout


def test_a_comparison_counts_its_flips_and_shows_none(sealed, tmp_path):
    for name, accuracy in (("right", 1), ("wrong", 0)):
        endpoint = [
            "--launcher",
            "simulated",
            "--set",
            f"launcher.accuracy={accuracy}",
            "--no-reference",
        ]
        serve_eval(
            "run", "--cases", sealed, *endpoint, "-o", tmp_path / name, SERVE_EVAL_HOLDOUT_KEY=KEY
        )
    sides = [tmp_path / "right", tmp_path / "wrong"]
    done = serve_eval("compare", *sides, "-o", tmp_path / "out", SERVE_EVAL_HOLDOUT_KEY=KEY)
    written = (tmp_path / "out" / "comparison.json").read_text()
    assert "1 flips belong to a hold-out set and are not listed" in done.stdout, done.stderr
    assert "vault" not in (done.stdout + written).lower()
