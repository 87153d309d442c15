"""Test that the files of each released version are read, and that today's have all of their keys.

tests/released/VERSION holds a plan, its run and a reference as that version wrote them
(`python -m tests.released`), and CHANGELOG.md promises that they stay.
"""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from serve_eval.cli._commands import walk
from serve_eval.verdicts import exit_code
from tests.cli.command import serve_eval
from tests.released.__main__ import write
from tests.root import ROOT

HERE = Path(__file__).resolve().parent
VERSIONS = sorted(one.name for one in HERE.iterdir() if one.name[0].isdigit())
COMMANDS = """
run, compare, verify, smoke, diagnose, show, bisect, check load, check invariants, check tools,
check workers, watch, runs view, runs table, runs trend, runs export, runs merge, judge,
references take, references register, references list, references show, references check,
references import, references power, serve, data fetch, data path, data check, data cases new,
data cases expand, data cases schema, data cases encrypt, data cases import-results, data list,
setup init, setup doctor, setup completion, setup schema, setup demo
"""
SCHEMAS = {"plan": 1, "suite": 1, "report": 2, "journal": 1, "events": 1, "document": 1}


@pytest.fixture(params=VERSIONS)
def released(request, tmp_path, monkeypatch):
    """Return a copy of what a version wrote, and make it the current folder."""
    shutil.copytree(HERE / request.param, tmp_path / "released")
    monkeypatch.chdir(tmp_path / "released")
    return tmp_path / "released"


def test_the_first_release_is_among_them():
    assert "0.1.0" in VERSIONS


def test_commands_exit_codes_and_schemas_are_those_of_the_release():
    named = {" ".join(one.split()) for one in COMMANDS.split(",")}
    assert named <= {" ".join(words) for words, _ in walk()}
    codes = ("PASS", "FAIL", "USAGE", "UNDECIDED", "INFRASTRUCTURE", "NOTHING_SCORED")
    assert [getattr(exit_code, name) for name in codes] == [0, 1, 2, 3, 4, 5]
    assert exit_code.INTERRUPTED == 130
    for kind, version in SCHEMAS.items():
        schema = json.loads((ROOT / f"docs/schemas/{kind}.json").read_text())
        assert schema["$id"] == f"urn:serve-eval:{kind}:{version}"


@pytest.mark.parametrize(
    ("command", "code", "prints"),
    [
        ("judge run --references-dir references", 0, "PASS   word_problems  ● 90.0"),
        ("judge run --rescore", 0, "90.0"),
        ("show run --wrong", 0, "wrong    test-3"),
        ("diagnose run", 0, "asked"),
        ("runs export run", 0, "20 rows"),
        ("runs table .", 0, "word_problems"),
        ("references show word_problems --references-dir references", 0, "90"),
        ("run plan.yaml --dry-run --references-dir references -o x", 0, "reference: 90.000"),
        ("run plan.yaml --no-reference", 3, "nothing was asked"),
    ],
)
def test_a_command_reads_what_a_release_wrote(released, command, code, prints):
    done = serve_eval(command)
    assert (done.returncode, prints in done.stdout + done.stderr) == (code, True), done


@pytest.mark.slow
def test_a_run_of_a_release_goes_on_and_is_compared_with_its_reference(released):
    for name in ("samples", "scores"):
        file = released / f"run/{name}/word_problems.jsonl"
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:12]))
    (released / "run/report.json").unlink()
    serve_eval("run plan.yaml --no-reference", exits=3, prints="word_problems  ● 90.0")
    serve_eval("run plan.yaml -o now --references-dir references", exits=0, prints="(paired)")
    serve_eval("compare run now", exits=0, prints="+0.0")


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_files_of_today_have_every_key_of_the_release(version, tmp_path):
    write(tmp_path)
    old, new = (
        {file.relative_to(top).as_posix(): file for file in _files(top)}
        for top in (HERE / version, tmp_path)
    )
    for name, file in old.items():
        now = new[name] if name in new else next(tmp_path.glob(f"{Path(name).parent}/*.json"))
        for then, today in zip(_read(file), _read(now), strict=True):
            assert sorted(_missing(then, today)) == [], name


def _files(top):
    return [one for one in top.rglob("*") if one.suffix in (".json", ".jsonl", ".yaml")]


def _read(file):
    """Return the values of a JSON or YAML file, or those of the lines of a journal."""
    text = file.read_text()
    if file.suffix == ".jsonl":
        return [json.loads(line) for line in sorted(text.splitlines())]
    return [json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)]


def _missing(then, today, place=""):
    """Yield the places of keys that are gone or have a value of another type."""
    if type(then) is not type(today) and None not in (then, today):
        yield f"{place}: {type(then).__name__} is {type(today).__name__}"
    elif isinstance(then, dict) and today is not None:
        for key, value in then.items():
            if key in today:
                yield from _missing(value, today[key], f"{place}.{key}")
            else:
                yield f"{place}.{key}"
    elif isinstance(then, list) and today is not None:
        for one, other in zip(then, today, strict=False):
            yield from _missing(one, other, f"{place}[]")
