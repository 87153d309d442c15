"""Documents of what was written in another format."""

from pathlib import Path

from serve_eval.workflows.export import make_document

RUNS = [Path("outputs/run")]


def make_documents(text="some text"):
    """Return a document for each form of result, with `text` where a name comes from others."""
    safe = text.replace("/", "")
    files = [Path("outputs/run/lm-eval") / f"{safe}_{i}.jsonl" for i in range(30)]
    rows = {file: 100 * i for i, file in enumerate(files[1:])}
    table = Path("table.csv")
    return {
        "files": make_document("lm-eval", files, runs=RUNS, rows=rows, left_out=[text, "b", "c"]),
        "table": make_document("csv", [table], runs=RUNS * 9, rows={table: 1}, notes=[text]),
        "printed": make_document("csv", [], runs=RUNS, rows={Path("csv"): 3}),
        "nothing": make_document("biochatter", [table], runs=RUNS, rows={}),
    }
