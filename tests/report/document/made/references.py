"""Documents of references: registered, listed, checked and imported."""

from dataclasses import replace
from pathlib import Path

from serve_eval.workflows.references import Registered
from serve_eval.workflows.references.document import (
    make_check_document,
    make_document,
    make_entries_document,
    make_import_document,
    make_list_document,
)
from serve_eval.workflows.references.import_published import ImportReport
from serve_eval.workflows.references.shown import CheckedFile, ShownEntry, ShownFile
from serve_eval.workflows.references.trtllm_rows import FileCount

OWN = Path("my-references")


def make_documents(text="some text"):
    """Return a document for each outcome, with `text` where a server or a file wrote it."""
    one = Registered(
        task="gsm8k",
        model=text,
        file=OWN / "gsm8k.yaml",
        scores=OWN / "samples/gsm8k.json",
        value=1e-05,
        values=(1e-05, 1e-05, 1e-05),
        samples=1319,
        flip_rate=0.034,
        seeds="no sampling seed: the server drew",
        taken=text,
        reason=text,
        warnings=(text, "2 of 3 runs"),
    )
    several = [replace(one, task=f"task_{i}", scores=None) for i in range(30)]
    use = "serve-eval run --base-url localhost:8000 -t gsm8k --references-dir my-references"
    taken = {"command": "serve-eval references take", "use": use}
    entry = ShownEntry(
        name=text,
        value=59.3,
        spec="quant_algo=FP8",
        details=("num_samples=1319", text),
        facts=(("taken at", text), ("runs", "3 runs of 1319 samples")),
        warnings=(text,),
    )
    length = ShownEntry(name=text, value=1.3, least=1.1)
    bad = CheckedFile(file=OWN / "a.yaml", problems=(text, "2"))
    good = CheckedFile(file=OWN / "b.yaml", problems=(), runs=(text,), warnings=(text,))
    count = FileCount(models=1, entries=2, written=2)
    imported = ImportReport(
        oddities=(text, "odd"), lost=(text,), counts={"gsm8k.yaml": count},
        written=(OWN,), new=(OWN,), updated=(),
    )  # fmt: skip
    return {
        "taken": make_document([one], OWN, **taken, folder=Path("outputs/taken")),
        "several": make_document(several, OWN, **taken),
        "entry": make_entries_document("gsm8k", [entry], ""),
        "entries": make_entries_document("gsm8k", [entry] * 2, ""),
        "many": make_entries_document("gsm8k", [entry] * 25, ""),
        "lengths": make_entries_document("acceptance_length", [length] * 40, ""),
        "list": make_list_document(
            [ShownFile(folder=OWN, name=f"t{i}", models=3, entries=i) for i in range(40)], ""
        ),
        "FAIL": make_check_document(OWN, [bad, good]),
        "PASS": make_check_document(OWN, [good]),
        "imported": make_import_document(imported, Path("checkout"), OWN),
    }
