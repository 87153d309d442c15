"""Compare with BioChatter's benchmark: expanded cases, matched results, compared answers.

BIOCHATTER is a checkout of its repository. Its own code runs there, in its own process (see
_biochatter.py).
"""

import csv
import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from serve_eval.cases import file
from serve_eval.cases.case_scorers import scorer_of
from serve_eval.cases.questions import questions
from serve_eval.schema import Response, Spec
from tests.oracle import part
from tests.oracle.part import Compared

KNOWN = "917f4c38"
"""The commit that DIGEST belongs to."""
DIGEST = "2576007e79472048c287da194638418b8d5b096da5d1ae1daad796dee872d7e3"
"""SHA-256 of the sorted MD5s of its cases, one per line."""
_SETTINGS = {
    "text_extraction": {"prompt": "${query}"},
    "biocypher_query_generation": {"system_messages": ["x"]},
    "api_calling": {"system_messages": ["x"]},
    "mcp_edam_qa": {"system_messages": ["x"]},
    "longevity_geriatric_case_assessment": {"scorer": Spec(name="judge", options={"judges": [{}]})},
}
"""Options for all cases of these modules, so that their turns can be compared."""
_TESTS = {
    "medical_exam": "medical_exam",
    "rag_interpretation": "explicit_relevance_of_single_fragments",
    "biocypher_query_generation": "naive_query_generation_using_schema",
    "mcp_edam_qa": "mcp_edam_qa_baseline",
}
"""Tests that compare answers, by module."""


def compare():
    """Compare cases, prompts, results and scores.

    Raises Skipped without a checkout.
    """
    checkout = part.checkout(
        "BIOCHATTER", "github.com/biocypher/biochatter", "benchmark/load_dataset.py"
    )
    theirs = {
        name: cases for name, cases in _run(checkout, "cases").items() if isinstance(cases, list)
    }
    files = file.read([str(checkout / "benchmark" / "data")])
    asked = {name: questions(files, name, **_SETTINGS.get(name, {})) for name in files.modules}
    return [
        _expansion(theirs, {name: questions(files, name) for name in files.modules}),
        _prompts(theirs, asked),
        _results(checkout, theirs, asked),
        *_scorings(checkout, theirs, asked, files),
    ]


def _run(checkout, what, given=None):
    """Return the output of BioChatter's code, run in its checkout."""
    script = Path(__file__).with_name("_biochatter.py")
    environment = {
        key: value for key, value in os.environ.items() if key != "HOLD_OUT_TEST_DATA_PRIVATE_KEY"
    }
    done = subprocess.run(
        [sys.executable, str(script), what],
        cwd=checkout,
        input=json.dumps(given),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=600,
    )
    if done.returncode:
        raise RuntimeError(
            f"BioChatter's code ended with {done.returncode}:\n{done.stderr[-2000:]}"
        )
    return json.loads(done.stdout)


def _expansion(theirs, ours):
    """Compare names and keys of all cases, expanded without options.

    Notes hold the counts by module.
    """
    compared = Compared(
        what="names and MD5s of BioChatter's cases, expanded by its load_dataset.py"
    )
    for name, cases in theirs.items():
        one = ours[name]
        found = {case.md5: case.name for case in (*one.asked, *one.skipped)}
        for case in cases:
            compared.add(f"{name}: {case['case']}", found.pop(case["hash"], None), case["case"])
        compared.differences += [
            f"{name}: {case} of ours is no case of theirs" for case in found.values()
        ]
        reasons = Counter(skipped.reason.partition(": --set")[0] for skipped in one.skipped)
        told = "; ".join(f"{count} skipped: {reason}" for reason, count in reasons.items())
        compared.notes.append(f"{name}: {len(one.asked)} asked{'; ' * bool(told)}{told}")
    digest = hashlib.sha256("\n".join(sorted(_hashes(theirs))).encode()).hexdigest()
    compared.notes.append(
        f"sha256 of the sorted MD5s: {digest}, {'as' if digest == DIGEST else 'other than'} at"
        f" {KNOWN}"
    )
    return compared


def _hashes(theirs):
    return (case["hash"] for cases in theirs.values() for case in cases)


def _prompts(theirs, asked):
    """Compare the turns of modules whose tests send prompts in the form of the expanded cases."""
    compared = Compared(what="turns that BioChatter's tests send of a case alone")
    for name in ("medical_exam", "rag_interpretation", "longevity_geriatric_case_assessment"):
        ours = {question.md5: question for question in asked[name].asked}
        for case in theirs[name]:
            if case["hash"] in ours:
                turns = [(turn.role, turn.text) for turn in ours[case["hash"]].turns]
                compared.add(case["case"], turns, _sent(case))
    return compared


def _sent(case):
    messages = case["input"]["system_messages"]
    if case["case"].startswith("rag:"):
        messages = [message.format(contexts=case["contexts"]) for message in messages]
    return [*(("system", message) for message in messages), ("user", case["input"]["prompt"])]


def _results(checkout, theirs, asked):
    """Compare, row by row of its result files, whether a case has the key.

    Its own keys and ours are tried.
    """
    compared = Compared(what="rows of BioChatter's result files that are of a case")
    known = set(_hashes(theirs))
    ours = {case.md5 for one in asked.values() for case in (*one.asked, *one.skipped)}
    csv.field_size_limit(1 << 30)
    rows = 0
    for path in sorted((checkout / "benchmark" / "results").glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as content:
            hashes = [row["md5_hash"] for row in csv.DictReader(content) if row.get("md5_hash")]
        if hashes:
            rows += len(hashes)
            compared.add(
                path.name, sum(one in ours for one in hashes), sum(one in known for one in hashes)
            )
    compared.notes.append(f"{rows} rows in all")
    return compared


def _scorings(
    checkout,
    theirs,
    asked,
    files,
):
    """Compare scores of many answers to every case that one of its tests compares.

    Its code and our scorers score them.
    """
    wanted, tried = [], []
    for name, test in _TESTS.items():
        ours = {question.md5: question for question in asked[name].asked}
        for case in theirs[name]:
            question = ours.get(case["hash"])
            if question is None or (
                name == "rag_interpretation" and "explicit" not in case["case"]
            ):
                continue
            answers = list(dict.fromkeys(_forms(question)))
            tried.append((question, answers))
            wanted.append(
                (
                    test,
                    case,
                    answers,
                    files.resources.get("kg_schemas") if "kg_schema" in case["input"] else None,
                )
            )
    plain = {q.md5: q for q in questions(files, "medical_exam", as_biochatter=False).asked}
    found = {}
    usual = {}
    for (question, answers), scores in zip(tried, _run(checkout, "scores", wanted), strict=True):
        kind = question.scorer.name + (", as_biochatter" if question.scorer.options else "")
        compared = found.setdefault(
            kind, Compared(what=f"scores of answers by BioChatter's tests and by {kind}")
        )
        other = plain.get(question.md5)
        for answer, score in zip(answers, scores, strict=True):
            compared.add(f"{question.name}: {answer[:60]!r}", _score(question, answer), score)
            if other is not None and score is not None and (mine := _score(other, answer)) != score:
                usual.setdefault(kind, Counter())["higher" if mine > score else "lower"] += 1
    for kind, counts in usual.items():
        found[kind].notes.append(
            f"without as_biochatter {counts.total()} differ: {counts['higher']} higher here,"
            f" {counts['lower']} lower"
        )
    return list(found.values())


def _score(question, answer):
    return (
        scorer_of(question.scorer)
        .score(question.expected, Response(text=answer, finish_reason="stop"))
        .value
    )


def _forms(question):
    """Return right and wrong answers as models write them."""
    expected = question.expected
    if "parts_of_query" in expected:
        yield from _queries(expected["parts_of_query"])
        return
    if "words_in_response" in expected:
        words = [
            word if isinstance(word, str) else word[0] for word in expected["words_in_response"]
        ]
        texts = [
            ", ".join(words),
            *words,
            ", ".join(words[1:]),
            *map("-".join, words),
            "",
            "0",
            "I do not know.",
        ]
    else:
        texts = [str(expected["answer"]), f"not {expected['answer']}", "", "?"]
    for text in texts:
        yield from (
            text,
            text.lower(),
            text.upper(),
            text.capitalize(),
            text.swapcase(),
            text.title(),
        )
        yield from (
            f"{text}.",
            f"{text}!",
            f"{text}?",
            f"{text},",
            f"{text}:",
            f"{text})",
            f"({text})",
            f"{text}\n",
        )
        yield from (
            f"**{text}**",
            f"`{text}`",
            f'"{text}"',
            f"'{text}'",
            f" \t{text} ",
            f"{text}. Because it is.",
        )
        yield from (
            f"Answer: {text}",
            f"The answer is {text}.",
            ".".join(text),
            text.replace(" ", "  "),
            f"- {text}",
        )


def _queries(parts):
    """Return texts that have some of the parts."""
    plain = [
        part.replace("\\", "").replace("^", "").replace(".*", "x").replace("[a-zA-Z]*", "g")
        for part in parts
    ]
    alternatives = [part.partition("|")[0].replace("([", "(").replace(")?", ")") for part in plain]
    for texts in (plain, alternatives):
        for count in range(len(texts) + 1):
            yield " ".join(texts[:count])
            yield "\n".join(texts[count:])
            yield " ".join(texts[:count]).lower()
    yield (
        "MATCH (g:Gene)-[:PERTURBED]->(d:Disease {name: 'Mucoviscidosis'}) WHERE d.ICD10 = 'E10'"
        " RETURN g.name"
    )
    yield " match (g:Gene) return g"
