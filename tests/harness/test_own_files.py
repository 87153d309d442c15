"""Test user files in lm-eval's format, also those whose code sets an alarm.

Oddities are reported, and the code that they run is recorded.

An alarm works only in the main thread of a process.
"""

import asyncio
import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.errors import PlanError, ServeEvalError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.prepare import prepare
from serve_eval.plugins import extensions
from serve_eval.plugins.scope import open_scope, scope
from serve_eval.schema import Plan, Spec, VerdictOutcome
from serve_eval.tasks._lm_eval_documents import load_parts
from serve_eval.workflows.export import export
from serve_eval.workflows.references import register
from tests.cli.command import in_a_process
from tests.harness.made_tasks import write

pytest.importorskip("lm_eval", reason="needs the optional extra lm-eval")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

ASKS = """
dataset_path: json
dataset_kwargs: {data_files: {test: rows.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{q}}"
doc_to_target: "{{a}}"
"""
ACCURACY = "metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]\n"
CODE = """
from functools import partial

def first(docs, count):
    return docs.select(range(count))

two = partial(first, count=2)

def none_of_the_second(doc, results):
    return {"acc": None if doc["q"] == "Q1?" else 1.0}

def needs_data(doc, results):
    if doc["q"] != "Q0?":
        raise LookupError(
            "\\n*****\\n  Resource 'words' not found.\\n\\n"
            "  Searched in:\\n    - '/a'\\n*****\\n"
        )
    return {"acc": 1.0}

def leaves(doc, results):
    raise SystemExit(3)
"""


def _write(root, name, text):
    folder = root / "lm_eval"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.jsonl").write_text(
        "".join(json.dumps({"q": f"Q{i}?", "a": f"A{i}"}) + "\n" for i in range(4))
    )
    (folder / "code.py").write_text(CODE)
    (folder / "leaves.py").write_text("raise SystemExit(3)\n")
    (folder / f"{len(list(folder.iterdir()))}.yaml").write_text(f"task: {name}\n{text}")
    return root


def _plan(name, *folders):
    server = Spec(name="simulated", options={"accuracy": 1.0})
    paths = tuple(map(str, folders))
    extensions.include(paths)
    task = Spec(name=f"lm_eval:{name}")
    return Plan(model="m", launcher=server, tasks=(task,), include_path=paths, no_reference=True)


def _run(plan, out):
    return asyncio.run(evaluate(plan, out, environ={}))


def test_the_fingerprint_of_a_function_bound_to_arguments_is_that_of_every_process(
    tmp_path,
):
    more = "process_docs: !function code.two\nfewshot_config: {process_docs: !function code.two}\n"
    folder = _write(tmp_path, "bound", ASKS + more)
    code = (
        "import sys; from serve_eval.plugins import extensions; from serve_eval.tasks.lm_eval"
        " import task; pad = [object() for _ in range(int(sys.argv[2]))];"
        " extensions.include([sys.argv[1]]); print(task('bound').protocol['config'])"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code, folder, pad], capture_output=True, text=True, check=True
        ).stdout
        for pad in ("0", "200000")
    }
    assert len(told) == 1
    [p] = prepare(_plan("bound", folder))
    assert {p.fingerprint["config"]} == {json.dumps(one.strip()) for one in told}
    (folder / "lm_eval/code.py").write_text(CODE.replace("range(count)", "range(1, count)"))
    again = subprocess.run(
        [sys.executable, "-c", code, folder, "0"], capture_output=True, text=True, check=True
    ).stdout
    assert again not in told


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ASKS + "num_fewshots: 3\n", "rejects its file: TypeError: .*num_fewshots"),
        (
            ASKS + "generation_kwargs: {until: [], max_gen_toks: x}\n",
            "generation_kwargs: invalid literal for int",
        ),
        (
            ASKS.replace("generate_until", "nonsense"),
            "output_type 'nonsense' is not one of generate_until, ",
        ),
        (
            ASKS + "metric_list: [{metric: nobodys, aggregation: mean}]\n",
            "nobodys: not a metric of lm-eval, and ",
        ),
        (ASKS + "metadata: hello\n", "metadata must be a mapping"),
        (ASKS + "process_results: !function leaves.f\n", "cannot be loaded: SystemExit: 3"),
        (
            ASKS + "process_results: !function code.leaves\n" + ACCURACY,
            "cannot score an answer: SystemExit: 3",
        ),
    ],
)
def test_an_odd_file_is_told_as_what_it_is(tmp_path, text, said):
    with pytest.raises(ServeEvalError, match=said):
        prepare(_plan("odd", _write(tmp_path, "odd", text)))


def test_a_document_without_a_figure_is_no_wrong_answer(tmp_path):
    text = ASKS + "process_results: !function code.none_of_the_second\n" + ACCURACY
    result = (
        _run(_plan("lacking", _write(tmp_path / "d", "lacking", text)), tmp_path / "out")
        .tasks[0]
        .result
    )
    assert result.failures == {"scorer_error": 1}
    [error] = result.scorer_errors
    assert "acc,none of an answer is None, which is not a number" in error.told


def test_what_every_answer_lacks_is_told_once(tmp_path):
    text = ASKS + "process_results: !function code.needs_data\n" + ACCURACY
    result = (
        _run(_plan("lacking", _write(tmp_path / "d", "lacking", text)), tmp_path / "out")
        .tasks[0]
        .result
    )
    [error] = result.scorer_errors
    assert (error.count, result.scored) == (3, 1)
    assert "an answer: LookupError: Resource 'words' not found. Searched in: - '/a'." in error.told
    written = export(tmp_path / "out", include_path=[str(tmp_path / "d")])
    assert len(written.files[1].read_text().splitlines()) == 1
    assert written.notes[0].startswith("lacking: 3 answers cannot be scored and are not exported: ")


def test_a_name_with_a_key_in_quotes_is_found_without_reading_every_file(tmp_path, monkeypatch):
    from lm_eval.tasks import _index

    monkeypatch.setattr(_index.TaskIndex, "build", None)
    folder = _write(tmp_path, "plain", ASKS)
    quoted = folder / "lm_eval/quoted.yaml"
    quoted.write_text(f'"task": "in quotes"\n{ASKS}')
    [p] = prepare(_plan("in quotes", folder))
    assert len(p.dataset.samples) == 4
    assert ("in quotes", quoted) in extensions.lm_eval_tasks()


def test_two_folders_that_have_a_task_of_one_name_are_an_error(tmp_path):
    folders = [_write(tmp_path / name, "twice", ASKS) for name in ("a", "b")]
    with pytest.raises(
        PlanError,
        match=r"two files offer the task 'lm_eval:twice': .*/a/lm_eval/.* and .*/b/lm_eval/",
    ):
        prepare(_plan("twice", *folders))


def test_the_code_of_a_folder_is_noted_and_its_change_is_told(tmp_path):
    folder = _write(tmp_path / "d", "noted", ASKS)
    report = _run(_plan("noted", folder), tmp_path / "out")
    [line] = [text for text in report.warnings if "lm_eval" in text]
    assert line.startswith(f"tasks.lm_eval:noted is from {folder / 'lm_eval'}/")
    (folder / "lm_eval/code.py").write_text(CODE + "\n# changed\n")
    again = _run(_plan("noted", folder), tmp_path / "out")
    assert any(
        "lm_eval:noted" in text and "earlier answers were made with" in text
        for text in again.warnings
    )


def test_two_runs_in_one_process_share_no_documents(tmp_path):
    folder = _write(tmp_path, "shared", ASKS)

    def load():
        plan, found = _plan("shared", folder), []
        for _ in range(2):
            prepare(plan)
            found.append(load_parts("shared", {})[0])
        return found

    runs = []
    for _ in range(2):
        with scope():
            runs.append(load())
    for first, second in runs:
        assert first is second, "loading takes seconds and happens once in a run"
    assert runs[0][0] is not runs[1][0]
    assert runs[0][0].items is not runs[1][0].items
    extensions.include([str(folder)])
    with pytest.raises(KeyError):
        load_parts("shared", {})


def test_a_later_run_reads_the_file_of_a_task_again(tmp_path):
    folder = _write(tmp_path, "edited", ASKS)
    [file] = (folder / "lm_eval").glob("*.yaml")

    def read():
        with scope():
            [p] = prepare(_plan("edited", folder))
            return {str(sample.prompt) for sample in p.dataset.samples}, p.fingerprint["config"]

    prompts, before = read()
    assert prompts == {f"Q{i}?" for i in range(4)}
    file.write_text(file.read_text().replace("{{q}}", "Again: {{q}}"))
    prompts, after = read()
    assert prompts == {f"Again: Q{i}?" for i in range(4)}
    assert after != before
    file.rename(file.with_name("moved.yaml"))
    assert read() == (prompts, after)


def test_a_name_with_a_slash_is_exported(tmp_path):
    folder = _write(tmp_path / "d", "sl/ash", ASKS)
    _run(_plan("sl/ash", folder), tmp_path / "out")
    written = export(tmp_path / "out", include_path=[str(folder)])
    assert [file.parent for file in written.files] == [written.files[0].parent] * 2
    assert written.files[1].name.startswith("samples_sl__ash_")


def test_a_run_is_registered_and_the_next_one_is_compared_with_it(tmp_path):
    plan = _plan("known", _write(tmp_path / "d", "known", ASKS))
    _run(plan, tmp_path / "out")
    [entry] = register(
        [tmp_path / "out"], tmp_path / "refs", wanted=1, include_path=plan.include_path
    )
    assert (entry.value, entry.file.name) == (100.0, "lm_eval-known.yaml")
    judged = replace(plan, no_reference=False, references_dir=str(tmp_path / "refs"))
    [task] = _run(judged, tmp_path / "again").tasks
    assert (task.verdict.outcome, task.verdict.reference) == (VerdictOutcome.PASS, 100.0)


def test_questions_on_one_text_are_a_group(tmp_path):
    how = ACCURACY.replace("acc,", "exact_match,")
    folder = _write(tmp_path, "passages", ASKS.replace("{{q}}", "{{text}} {{q}}") + how)
    rows = [{"text": f"{i // 3} {'long ' * 50}", "q": f"Q{i}?", "a": f"A{i}"} for i in range(12)]
    (folder / "lm_eval/rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    [p] = prepare(_plan("passages", folder))
    groups = [sample.group for sample in p.dataset.samples]
    assert len(set(groups)) == 4
    assert all(groups[i] == groups[i // 3 * 3] for i in range(12))
    assert not any("shared_text" in note for note in p.notes)


pytest.importorskip("lm_eval", reason="needs the optional extra lm-eval")

MATHS = [
    {
        "problem": f"What is {i}/3 + 1/3?",
        "solution": f"It is $\\boxed{{\\frac{{{i + 1}}}{{3}}}}$.",
        "answer": "",
    }
    for i in range(1, 5)
]


def _told(*arguments, codes=(0, 3)):
    done = in_a_process(*arguments)
    assert done.returncode in codes, done.stderr
    assert "noise" not in done.stdout
    assert "higher_is_better" not in done.stderr
    return done.stdout


def _all_ways(flags, out, include):
    """Return the result of a run and of its resumption, and the lines of its export."""
    first = json.loads(_told("run", *flags, "-o", out, "--json"))["result"]["tasks"][0]["result"]
    again = json.loads(_told("run", "--resume", out, *include, "--json"))["result"]["tasks"][0][
        "result"
    ]
    assert (again["value"], again["secondary"], again["scored"]) == (
        first["value"],
        first["secondary"],
        first["scored"],
    )
    [rescored] = json.loads(_told("judge", "--rescore", out, *include, "--json"))["result"]["tasks"]
    assert (rescored["before"], rescored["after"], rescored["moves"]) == (
        first["value"],
        first["value"],
        [],
    )
    told = json.loads(_told("runs", "export", out, *include, "-o", out / "exported", "--json"))
    samples = Path(told["result"]["files"][1]["file"])
    return first, [json.loads(line) for line in samples.read_text().splitlines()]


def test_a_task_that_sets_an_alarm_works_in_every_command(tmp_path):
    folder = write(tmp_path / "tasks")
    flags = [
        "--launcher",
        "simulated",
        "--set",
        "launcher.accuracy=0.5",
        "--model",
        "m",
    ]
    flags += ["--tasks", "lm_eval:made_alarm", "--no-reference", "--include-path", folder]
    dry = json.loads(_told("run", *flags, "--dry-run", "--json"))
    assert dry["tasks"][0]["task"] == "lm_eval:made_alarm"
    result, lines = _all_ways(flags, tmp_path / "out", ["--include-path", folder])
    assert (result["scored"], result["failures"]) == (8, {})
    assert 0.0 < result["value"] < 100.0, "an expired alarm affects only its own answer"
    values = [line["exact_match"] for line in lines if line["filter"] == "strict-match"]
    assert 100.0 * sum(values) / 8 == result["value"]


def test_a_run_that_prepares_in_a_thread_still_tells_of_a_package_that_is_missing(
    tmp_path,
):
    folder = write(tmp_path / "tasks")
    code = (folder / "lm_eval/alarm.py").read_text()
    extensions.include([str(folder)])
    task = Spec(name="lm_eval:made_alarm")
    plan = Plan(model="m", launcher=Spec(name="simulated"), tasks=(task,), no_reference=True)
    before = signal.getsignal(signal.SIGALRM)
    [p] = asyncio.run(asyncio.to_thread(prepare, plan))
    assert len(p.dataset.samples) == 8
    assert signal.getsignal(signal.SIGALRM) is before
    (folder / "lm_eval/alarm.py").write_text(
        code.replace("print(", "import no_such_package\n    print(")
    )
    with pytest.raises(
        ServeEvalError, match=r"cannot score an answer: ModuleNotFoundError: .*no_such_package"
    ):
        _prepare_again(plan)


def _prepare_again(plan):
    """Forget earlier code, as in a new process."""
    open_scope().loaded.clear()
    open_scope().kept.clear()
    asyncio.run(asyncio.to_thread(prepare, plan))


def test_minerva_math500_is_scored_by_math_verify(tmp_path):
    pytest.importorskip("math_verify")
    (tmp_path / "math.jsonl").write_text("".join(json.dumps(row) + "\n" for row in MATHS))
    name = "lm_eval:minerva_math500"
    flags = [
        "--launcher",
        "simulated",
        "--set",
        "launcher.accuracy=1.0",
        "--model",
        "m",
    ]
    flags += [
        "--tasks",
        name,
        "--set",
        f"{name}.metric=math_verify",
        "--no-reference",
        "--dataset-root",
        tmp_path,
    ]
    flags += ["--set", f"{name}.data_files={{train: math.jsonl, test: math.jsonl}}"]
    result, lines = _all_ways(flags, tmp_path / "out", [])
    assert (result["scored"], result["value"], result["failures"]) == (4, 1.0, {})
    assert [line["math_verify"] for line in lines] == [1, 1, 1, 1]
