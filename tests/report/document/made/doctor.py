"""Documents of what was found on a machine."""

from serve_eval.workflows.doctor import EXTRAS, PROGRAMS, DoctorFinding, make_document


def make_documents(text="some text"):
    """Return a document for each outcome, with `text` where the machine names something."""
    sound = [
        DoctorFinding(name="serve-eval", state="ok", text=text),
        DoctorFinding(name="[servers]", state="ok", text=text),
        *(DoctorFinding(name=one, state="absent", text=text) for one in PROGRAMS),
        *(DoctorFinding(name=f"[{one}]", state="absent", text=text, fix=text) for one in EXTRAS),
    ]
    files = DoctorFinding(name="open files", state="problem", text=text, fix="ulimit -Hn 4096")
    found = {"READY": sound, "PROBLEM": [*sound, files], "bare": sound[2:]}
    return {name: make_document(one) for name, one in found.items()}
