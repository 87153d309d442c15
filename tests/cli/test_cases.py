import json
import re
from pathlib import Path

import jsonschema
import pytest

from tests.cases.made import write_biochatter
from tests.cli.command import serve_eval
from tests.json_files import read_json

pytestmark = pytest.mark.usefixtures("simulated_here")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_example_is_written_listed_and_runs_as_it_says():
    serve_eval("data cases new mine.yaml", exits=0)
    listed = serve_eval("data cases expand mine.yaml")
    assert (
        "10 cases of 2 tasks, 0 skipped; nothing was sent\n"
        "  cases:capitals: 7 cases, scored by exact, words\n      europe:france\n" in listed.stdout
    )
    command = next(
        line for line in Path("mine.yaml").read_text().splitlines() if "run --launcher" in line
    )
    done = serve_eval(*command.split()[2:], "-o", "out", "--set", "launcher.accuracy=1.0")
    assert done.returncode == 3, done.stderr  # no reference
    report = read_json("out/report.json")
    assert [task["result"]["value"] for task in report["tasks"]] == [100.0, 100.0]
    assert report["tasks"][0]["result"]["breakdown"]["country"]["japan"] == {
        "value": 100.0,
        "scored": 2,
    }


def test_a_file_that_is_there_is_not_written_over():
    Path("mine.yaml").write_text("mine")
    done = serve_eval("data cases new mine.yaml")
    assert (done.returncode, Path("mine.yaml").read_text()) == (2, "mine")
    assert "mine.yaml already exists" in done.stderr


def test_the_schema_that_is_printed_is_one():
    jsonschema.Draft202012Validator.check_schema(json.loads(serve_eval("data cases schema").stdout))


def test_what_is_expanded_says_what_would_be_sent_and_what_is_skipped():
    write_biochatter(Path("data"))
    options = [
        "--set",
        'cases:text_extraction.prompt="${caption} ${query}"',
        "--set",
        "cases:text_extraction.scorer=exact",
    ]
    text = serve_eval("data cases expand data -v", *options).stdout
    assert (
        "cases:text_extraction: 8 cases, scored by exact\n      extraction:gene:one:short\n" in text
    )
    assert (
        "      1 skipped (implicit): BioChatter uses a model as a judge of its answer;"
        " name a scorer:\n       "
        " --set 'cases:rag_interpretation.scorer={judge: {judges: [{model: MODEL, base_url:"
        " URL}]}}'\n" in text
    )
    lines = json.loads(serve_eval("data cases expand data --json").stdout)["result"]
    first = next(line for line in lines if line["case"] == "relevant:short")
    assert first["messages"][-1] == {"role": "user", "content": "Is it?"}
    assert (first["expected"], len(first["compat_md5"])) == ({"answer": "yes"}, 32)
    skipped = {(line["task"], line["case"]) for line in lines if "skipped" in line}
    assert {("cases:odd", "a"), ("cases:rag_interpretation", "implicit")} <= skipped
    assert all(len(line["compat_md5"]) == 32 for line in lines if line["case"] != "number 1")


def test_a_bad_file_is_told_with_exit_code_2():
    Path("bad.yaml").write_text("c:\n  - {case: a, input: {prompt: x}, expect: y}\n")
    for command in ("data cases expand bad.yaml", "run --cases bad.yaml --launcher simulated"):
        serve_eval(
            command,
            exits=2,
            tells="bad.yaml:2: c: case a: expect: unknown key. Did you mean 'expected'?",
        )


def test_a_file_that_takes_too_long_is_told_with_what_to_do():
    case = "  - {case: c%d, input: {prompt: 'Say %d'}, expected: '%d'}\n"
    Path("many.yaml").write_text("c:\n" + "".join(case % (i, i, i) for i in range(100)))
    done = serve_eval(
        "data cases expand many.yaml",
        SERVE_EVAL_READING_TIMEOUT="0.0000001",
        exits=2,
        tells="error: many.yaml: took longer than 1e-07 s; it had done ",
    )
    assert (
        "Split it into smaller files, or allow more time: SERVE_EVAL_READING_TIMEOUT=2e-07"
        in done.stderr
    )
    assert "100 cases of 1 tasks" in serve_eval("data cases expand many.yaml").stdout


def _results(file, *hashes):
    """Write a result file in which these cases have full marks in two iterations."""
    head = "model_name,subtask,score,iterations,md5_hash,datetime,biochatter_version\n"
    rows = (f"simulated,x,1;1/1,2,{md5},2025-01-02 03:04:05,0.5\n" for md5 in hashes)
    Path(file).write_text(head + "".join(rows))


def test_old_results_become_references_that_judge_a_run():
    write_biochatter(Path("data"))
    listed = json.loads(serve_eval("data cases expand data --json").stdout)["result"]
    hashes = [
        line["compat_md5"]
        for line in listed
        if line["task"] == "cases:rag_interpretation" and "id" in line
    ]
    _results("rag.csv", *hashes, "f" * 32)
    done = serve_eval(
        "data cases import-results rag.csv --cases data --references-dir refs", exits=0
    )
    assert (
        done.stdout == "3 of 4 rows matched a case; 1 belong to no case that is asked\n"
        "  cases:rag_interpretation: simulated: 100.000 over 3 of 3 cases, 2 runs\n"
    )
    run = [
        "run",
        "--launcher",
        "simulated",
        "--cases",
        "data",
        "--tasks",
        "cases:rag_interpretation",
    ]
    run += ["--references-dir", "refs", "--set", "launcher.accuracy=1.0", "-o", "out"]
    serve_eval(*run, exits=0)
    verdict = read_json("out/report.json")["tasks"][0]["verdict"]
    assert (verdict["outcome"], verdict["reference"], verdict["paired"]["pairs"]) == (
        "PASS",
        100.0,
        3,
    )


def test_no_run_that_is_scored_otherwise_is_judged_by_an_imported_reference():
    write_biochatter(Path("data"))
    listed = json.loads(serve_eval("data cases expand data --json").stdout)["result"]
    _results(
        "exam.csv", *(line["compat_md5"] for line in listed if line["task"] == "cases:medical_exam")
    )
    serve_eval("data cases import-results exam.csv --cases data --references-dir refs", exits=0)
    run = "run --launcher simulated --cases data --tasks cases:medical_exam -o out"
    serve_eval(
        f"{run} --references-dir refs --set cases:medical_exam.as_biochatter=false",
        exits=3,
        tells="as_biochatter is None here and True with the reference",
    )
    entry = Path("refs/cases-medical_exam.yaml")
    # Files imported by an early version have no protocol.
    entry.write_text(re.sub(r"    protocol:\n(     .*\n)+", "", entry.read_text()))
    serve_eval(
        f"{run} --references-dir refs --set cases:medical_exam.as_biochatter=false",
        exits=3,
        tells="which is assumed (as BioChatter scores): as_biochatter is None here and True",
    )


def test_results_of_cases_that_lack_an_option_say_which_and_what_fits():
    write_biochatter(Path("data"))
    listed = json.loads(serve_eval("data cases expand data --json").stdout)["result"]
    _results(
        "some.csv", *(line["compat_md5"] for line in listed if line["task"] == "cases:mcp_edam_qa")
    )
    setting = 'cases:mcp_edam_qa.system_messages=["Answer with ..."]'
    command = "data cases import-results some.csv --references-dir refs --cases data"
    lacking = serve_eval(command, exits=2)
    assert (
        lacking.stderr.splitlines()[0] == "error: some.csv: no row belongs to a case that is asked"
    )
    assert lacking.stderr.splitlines()[1].startswith(
        "1 rows belong to cases that are not asked: BioChatter asks it with"
    )
    assert f"to ask without them, set your own system messages: --set '{setting}'" in lacking.stderr
    serve_eval(
        f"{command} --set",
        setting,
        exits=0,
        prints="1 of 1 rows matched a case",
        tells="cases:mcp_edam_qa: BioChatter used the prompts of its Python code",
    )
    _results("some.csv", "f" * 32)
    serve_eval(command, exits=2, tells="none of the 1 rows belongs to a case of these files")


def test_iterations_is_another_name_of_repeats():
    Path("c.yaml").write_text("c:\n  - {case: a, input: {prompt: x}, expected: y}\n")
    run = "run --launcher simulated --cases c.yaml --no-reference -o out --iterations 4"
    serve_eval(run, exits=3)
    assert len(Path("out/samples/cases-c.jsonl").read_text().splitlines()) == 4
    done = serve_eval(f"{run} --rerun all")
    assert "4 records are in archive/" in done.stderr + done.stdout
    serve_eval(f"{run} --rerun sometimes", exits=2)


def test_what_is_skipped_as_a_whole_is_said_before_the_run():
    write_biochatter(Path("data"))
    done = serve_eval("run --launcher simulated --cases data --no-reference --dry-run")
    assert (
        "cases:api_calling: all 1 cases are skipped: BioChatter asks it through an agent"
        in done.stderr
    )
    note = "note: 1 skipped (implicit): BioChatter uses a model as a judge of its answer"
    assert note in done.stdout
