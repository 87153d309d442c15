import pytest

from serve_eval.errors import ReferenceFileError
from serve_eval.schema import AccuracySpec
from serve_eval.verdicts import references
from serve_eval.verdicts.references import reference_file

GOOD = """\
org/big:
  - accuracy: 90
  - quant_algo: FP8
    accuracy: 88.5
    num_samples: 100
  - {quant_algo: FP8, kv_cache_quant_algo: FP8, accuracy: 87}
org/small:
  - dtype: bfloat16
    spec_dec_algo: Eagle3
    accuracy: 50.25
"""
FP8 = AccuracySpec(quant_algo="FP8")


def _write(directory, name, text):
    directory.mkdir(exist_ok=True)
    file = directory / f"{name}.yaml"
    file.write_text(text, "utf-8")
    return file


def _problems(text):
    with pytest.raises(ReferenceFileError) as caught:
        references.parse(text, "f.yaml")
    assert caught.value.hint
    return str(caught.value).splitlines()


# -------------------------------------------------------------------------------------------------------  # noqa: E501
# loading


def test_entries_keep_the_order_of_the_file_and_know_their_lines(tmp_path):
    file = _write(tmp_path, "gsm8k", GOOD)
    loaded = references.load(file)
    assert list(loaded) == ["org/big", "org/small"]
    assert [(r.value, r.line) for r in loaded["org/big"]] == [(90.0, 2), (88.5, 3), (87.0, 6)]
    small = loaded["org/small"][0]
    assert small.spec == AccuracySpec(dtype="bfloat16", spec_dec_algo="Eagle3")
    assert (small.task, small.model, small.file, small.num_samples) == (
        "gsm8k",
        "org/small",
        str(file),
        None,
    )


def test_every_allowed_key_is_read():
    text = """\
m:
  - quant_algo: null
    wer: 6
    alpha: 0.01
    beta: 0.1
    sigma: 0
    num_samples: 32
    higher_is_better: false
    threshold: 9
    reference_note: why
    source: somewhere
    date: 2026-02-03
    protocol: {shots: 5}
    old: true
"""
    (entry,) = references.parse(text, "voxpopuli.yaml")["m"]
    assert (entry.value, entry.alpha, entry.beta, entry.sigma, entry.num_samples) == (
        6.0,
        0.01,
        0.1,
        0.0,
        32,
    )
    assert (entry.higher_is_better, entry.threshold, entry.old) == (False, 9.0, True)
    assert (entry.reference_note, entry.source, entry.date) == ("why", "somewhere", "2026-02-03")
    assert entry.protocol == {"shots": 5}
    assert isinstance(entry.value, float)
    assert isinstance(entry.threshold, float)


def test_an_empty_mapping_and_a_model_without_entries_are_fine():
    assert references.parse("{}", "f.yaml") == {}
    assert references.parse("m: []", "f.yaml") == {"m": []}


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        ("{accuracy: 1, quant_alg: FP8}", "unknown key 'quant_alg'. Did you mean 'quant_algo'?"),
        ("{accuracy: 1, mtp_enabled: true}", "unknown key 'mtp_enabled'"),
        ("{accuracy: 1, measured: []}", "measured must be a list of the values"),
        ("{accuracy: 1, measured: [x]}", "measured must be a list of the values"),
        ("{accuracy: 1, 7: x}", "unknown key 7"),
        ("{accuracy: yes}", "accuracy must be a finite number, not True"),
        ("{accuracy: .nan}", "accuracy must be a finite number, not nan"),
        ("{accuracy: -.inf}", "accuracy must be a finite number, not -inf"),
        ("{accuracy: null}", "accuracy must be a finite number, not None"),
        ("{accuracy: good}", "accuracy must be a finite number, not 'good'"),
        ("{accuracy: 'nan'}", "accuracy must be a finite number, not 'nan'"),
        (f"{{accuracy: 1{'0' * 400}}}", "accuracy must be a finite number"),
        ("{accuracy: '90.5'}", "accuracy is text, not a number: write 90.5 instead of '90.5'"),
        (
            "{accuracy: 1, alpha: '5e-2'}",
            "alpha is text, not a number: write 0.05 instead of '5e-2'",
        ),
        ("{accuracy: 1, alpha: 0}", "alpha must be between 0 and 1"),
        ("{accuracy: 1, beta: 1.0}", "beta must be between 0 and 1"),
        ("{accuracy: 1, sigma: -1}", "sigma must be at least 0"),
        ("{accuracy: 1, num_samples: 0}", "num_samples must be a whole number of at least 1"),
        ("{accuracy: 1, num_samples: 5.0}", "num_samples must be a whole number of at least 1"),
        ("{accuracy: 1, num_samples: true}", "num_samples must be a whole number of at least 1"),
        ("{accuracy: 1, higher_is_better: 1}", "higher_is_better must be true or false"),
        ("{accuracy: 1, threshold: high}", "threshold must be a finite number"),
        ("{accuracy: 1, dtype: null}", "dtype must be text"),
        (
            "{accuracy: 1, quant_algo: 8}",
            "quant_algo must be text (put it in quotes) or null, not 8",
        ),
        ("{accuracy: 1, protocol: strict}", "protocol must be a mapping"),
        ("{accuracy: 1, old: 'yes'}", "old must be true or false"),
        ("{quant_algo: FP8}", "the entry has no value; give one of accuracy"),
        ("{acuracy: 5}", "unknown key 'acuracy'. Did you mean 'accuracy'?"),
        ("{accuracy: 1, wer: 2}", "the entry has 2 values (accuracy, wer)"),
        ("90.5", "an entry must be a mapping"),
    ],
)
def test_a_wrong_entry_is_an_error_that_names_file_line_and_model(entry, what):
    problems = _problems(f"m:\n  - {entry}\n")
    assert problems[0].startswith("f.yaml:2: m: ")
    assert what in problems[0]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("m: {accuracy: 1}", "f.yaml:1: m: must be a list of entries"),
        ("m:\n", "f.yaml:1: m: must be a list of entries"),
        ("5: []", "f.yaml:1: 5: a model's name must be text"),
        ("- accuracy: 1", "f.yaml:1: must map model names to entries"),
        ("", "f.yaml:1: must map model names to entries"),
    ],
)
def test_a_file_of_another_shape_is_an_error(text, what):
    assert _problems(text)[0].startswith(what)


def test_all_problems_of_a_file_are_listed_in_its_order():
    text = "a:\n  - {accuracy: x}\n  - accuracy: 1\n    alfa: 0.1\n    sigma: -1\nb: 3\n"
    places = [problem.split(" ")[0] for problem in _problems(text)]
    assert places == ["f.yaml:2:", "f.yaml:4:", "f.yaml:5:", "f.yaml:6:"]


def test_a_shadowed_duplicate_is_an_error_with_both_lines():
    text = (
        "m:\n  - {quant_algo: FP8, accuracy: 1}\n  - accuracy: 1\n  - quant_algo: FP8\n    dtype:"
        " auto\n    accuracy: 2"
    )
    (problem,) = _problems(text)
    assert problem.startswith(
        "f.yaml:4: m: this entry can never match: line 2 has the same spec (quant_algo=FP8)"
    )


def test_one_spec_may_stand_under_two_models_and_in_another_case():
    references.parse(
        "a: [{accuracy: 1, quant_algo: FP8}, {accuracy: 1, quant_algo: fp8}]\nb: [{accuracy: 1}]",
        "f",
    )


# -------------------------------------------------------------------------------------------------------  # noqa: E501
# look-up


def test_the_first_entry_with_equal_spec_is_found(tmp_path):
    _write(tmp_path, "t", GOOD)
    found = references.find("t", "org/big", FP8, [tmp_path])
    assert (found.value, found.line) == (88.5, 3)


@pytest.mark.parametrize(
    ("model", "spec"),
    [
        ("org/big", AccuracySpec(quant_algo="fp8")),
        ("org/big", AccuracySpec(dtype="float16")),
        ("org/big", AccuracySpec(extra_acc_spec="x")),
        ("ORG/big", AccuracySpec()),
        ("org/small", AccuracySpec()),
    ],
)
def test_nothing_but_plain_equality_matches(tmp_path, model, spec):
    _write(tmp_path, "t", GOOD)
    assert references.find("t", model, spec, [tmp_path]) is None


def test_directories_are_searched_in_order_and_fall_through(tmp_path):
    own, shipped = tmp_path / "own", tmp_path / "shipped"
    _write(own, "t", "org/big: [{accuracy: 1}]")
    _write(shipped, "t", GOOD)
    first = references.find("t", "org/big", AccuracySpec(), [own, shipped])
    second = references.find("t", "org/big", FP8, [own, shipped])
    assert first.value == 1.0
    assert second.value == 88.5


def test_a_task_without_file_has_no_reference(tmp_path):
    assert references.find("none", "m", AccuracySpec(), [tmp_path]) is None


def test_a_directory_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ReferenceFileError, match="gone: no such directory"):
        references.find("t", "m", AccuracySpec(), [tmp_path / "gone"])


@pytest.mark.parametrize(
    ("name", "model", "spec", "what"),
    [
        ("gsm9k", "m", AccuracySpec(), "there is no reference file gsm9k.yaml in {dir}"),
        (
            "gsm8k",
            "org/bigg",
            AccuracySpec(),
            (
                "gsm8k.yaml has no model 'org/bigg'. Did you mean 'org/big'? To list all"
                " models: serve-eval references show gsm8k."
            ),
        ),
        (
            "gsm8k",
            "org/big",
            AccuracySpec(quant_algo="NVFP4"),
            (
                "gsm8k.yaml has the model 'org/big', but not with the spec 'quant_algo=NVFP4'. "
                "Registered: default; quant_algo=FP8; quant_algo=FP8 kv_cache_quant_algo=FP8."
            ),
        ),
        (
            "gsm8k",
            "org/big",
            AccuracySpec(quant_algo="fp8"),
            (
                "gsm8k.yaml has the model 'org/big', but not with the spec 'quant_algo=fp8'. "
                "Did you mean 'quant_algo=FP8'?"
            ),
        ),
    ],
)
def test_a_missing_reference_is_explained(tmp_path, name, model, spec, what):
    _write(tmp_path, "gsm8k", GOOD)
    _write(tmp_path, "acceptance_length", "{}")
    assert references.explain_missing(name, model, spec, [tmp_path]) == what.format(dir=tmp_path)


def test_a_spec_is_told_by_what_differs_from_the_default():
    assert references.spec_text(AccuracySpec()) == "default"
    spec = AccuracySpec(dtype="float16", quant_algo="FP8", extra_acc_spec="beam_width=4")
    assert references.spec_text(spec) == "dtype=float16 quant_algo=FP8 extra_acc_spec=beam_width=4"


def test_known_files_come_in_the_order_of_search(tmp_path):
    own, shipped = tmp_path / "z_own", tmp_path / "a_shipped"
    files = [_write(own, "t", "{}"), _write(shipped, "s", "{}"), _write(shipped, "t", "{}")]
    assert references.list_files([own, shipped]) == files


def test_a_wheel_has_the_files_inside_the_package(tmp_path, monkeypatch):
    module = tmp_path / "serve_eval" / "verdicts" / "references" / "reference_file.py"
    monkeypatch.setattr(reference_file, "__file__", str(module))
    assert references.find_shipped_dir() == tmp_path / "references"
    (tmp_path / "serve_eval" / "references").mkdir(parents=True)
    assert references.find_shipped_dir() == tmp_path / "serve_eval" / "references"


# --------------------------------------------------------------------------------- acceptance
# length and checking


def test_acceptance_lengths_are_read_by_test(tmp_path):
    text = "A::b[c]: {ref_al: 2, min_al: 1.9}\nD::e: {ref_al: 2, min_al: 1, source: x, old: true}\n"
    file = _write(tmp_path, "acceptance_length", text)
    assert references.load_acceptance_length(file) == {
        "A::b[c]": references.AcceptanceLength(ref_al=2.0, min_al=1.9),
        "D::e": references.AcceptanceLength(ref_al=2.0, min_al=1.0, source="x", old=True),
    }


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        ("{ref_al: 2}", "min_al is missing"),
        ("{ref_al: x, min_al: 1}", "ref_al must be a finite number"),
        ("{ref_al: 2, min_al: 1, minal: 1}", "unknown key 'minal'. Did you mean 'min_al'?"),
        ("{ref_al: 2, min_al: 2.5}", "min_al 2.5 is above ref_al 2"),
        ("2", "must be a mapping with ref_al and min_al"),
        ("{ref_al: 2, min_al: 1, source: 3}", "source must be text"),
        ("{ref_al: 2, min_al: 1, old: 1}", "old must be true or false"),
    ],
)
def test_a_wrong_acceptance_length_is_an_error(tmp_path, entry, what):
    right = "A::a: {ref_al: 2, min_al: 1}"
    file = _write(tmp_path, "acceptance_length", f"{right}\nA::b: {entry}\n")
    with pytest.raises(ReferenceFileError) as caught:
        references.load_acceptance_length(file)
    assert f"{file}:2: A::b: {what}" in str(caught.value)


def test_an_acceptance_length_is_looked_up_in_all_folders_and_a_missing_one_is_named(
    tmp_path,
):
    folders = [tmp_path / "mine", tmp_path / "others"]
    _write(folders[0], "acceptance_length", "A::b: {ref_al: 2, min_al: 1.9}")
    _write(
        folders[1],
        "acceptance_length",
        "A::b: {ref_al: 4, min_al: 3}\nA::c: {ref_al: 3, min_al: 2}",
    )
    assert references.find_acceptance_length("A::b", folders).ref_al == 2.0
    assert references.find_acceptance_length("A::c", folders).ref_al == 3.0
    with pytest.raises(
        ReferenceFileError, match=r"no entry 'A::cc'\. Did you mean 'A::c'"
    ) as caught:
        references.find_acceptance_length("A::cc", folders)
    assert "--references-dir DIR" in caught.value.hint


def test_a_check_lists_the_problems_of_all_files_by_their_shape(tmp_path):
    _write(tmp_path, "acceptance_length", "A::b: {ref_al: 2, min_al: 1}")
    bad = _write(tmp_path, "bad", "m: [{accuracy: x}, {wer: y}]")
    _write(tmp_path, "good", GOOD)
    worse = _write(tmp_path, "worse", "m: [")
    assert [problem.split(" ")[0] for problem in references.check(tmp_path)] == [
        f"{bad}:1:",
        f"{bad}:1:",
        f"{worse}:1:",
    ]
    assert len(references.check(bad)) == 2


def test_a_check_of_nothing_is_an_error(tmp_path):
    for path in (tmp_path, tmp_path / "gone"):
        with pytest.raises(ReferenceFileError):
            references.check(path)


def test_the_shipped_files_have_no_problem():
    assert references.check(references.find_shipped_dir()) == []


@pytest.mark.parametrize(
    ("values", "n", "right"), [("[1.0]", 1, True), ("[]", 1, False), ("[1.0]", 0, False)]
)
def test_the_runs_of_an_entry_are_one_prompt_at_least(tmp_path, values, n, right):
    runs = f"{{values: {values}, n: {n}, sigma: 1.0, samples: s.json, sha256: x}}"
    (tmp_path / "mmlu.yaml").write_text(f"m:\n  - accuracy: 1.0\n    runs: {runs}\n")
    problems = references.check(tmp_path / "mmlu.yaml")
    assert any("has no value" in problem for problem in problems) is not right, problems


@pytest.mark.parametrize(
    ("name", "entry", "what"),
    [
        ("capital", "accuracy: 101", "accuracy must be 0 or more and 100 or less, not 101"),
        ("gsm8k", "accuracy: -1", "accuracy must be 0 or more and 100 or less, not -1"),
        ("gsm8k", "{accuracy: 90, threshold: 104}", "threshold must be 0 or more and 100 or less"),
        ("gsm8k", "{accuracy: 90, threshold: 0.94}", "threshold must be in points from 0 to 100"),
        ("voxpopuli", "wer: -0.1", "wer must be 0 or more, not -0.1"),
        ("voxpopuli", "wer: 130", None),
        ("perplexity", "perplexity: 0.9", "perplexity must be 1 or more, not 0.9"),
        ("perplexity", "perplexity: 4000", None),
        ("lm_eval-wikitext", "accuracy: 130.5", None),
        ("gsm8k", "accuracy: 100", None),
        ("gsm8k", "accuracy: 0", None),
    ],
)
def test_a_value_that_its_metric_cannot_have_is_a_problem(tmp_path, name, entry, what):
    problems = references.check(_write(tmp_path, name, f"m:\n  - {entry}\n"))
    assert bool(problems) == (what is not None)
    if what is not None:
        assert problems[0].startswith(f"{tmp_path / name}.yaml:2: m: {what}")
