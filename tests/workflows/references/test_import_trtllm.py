from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.errors import ReferenceFileError
from serve_eval.schema import AccuracySpec
from serve_eval.verdicts import references
from serve_eval.workflows.references import import_published
from serve_eval.workflows.references.import_published import import_directory
from serve_eval.workflows.references.trtllm_rows import FileCount

REPOSITORY_ROOT = Path(__file__).parents[3]
SNAPSHOT = REPOSITORY_ROOT.parent / "shared" / "trtllm_references"

NEWEST = """\
# a remark of theirs
Org/Model-7B:
  - accuracy: 90.90
  - accuracy: 80
    quant_algo: FP8
  - quant_algo: FP8
    mtp_enabled: true
    accuracy: 80
  - quant_algo: NVFP4
    accuracy: 70.5
    threshold: 69.0
    num_samples: 50
    reference_note: "a note of theirs"
  - quant_algo: NVFP4
    dtype: auto
    accuracy: 71.5
  - quant_algo: W4A16
    spec_dec_algo: Eagle3
    accuracy: 0
model_7b:
  - accuracy: 12.5
    spec_dec_algo: EAGLE3
"""
OLDER = """\
Org/Model-7B:
  - accuracy: 88.0
  - quant_algo: W8A16
    accuracy: 60.0
Gone/Model:
  - accuracy: 33.0
"""


def _source(tmp_path, files):
    for name, text in files.items():
        file = tmp_path / "source" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    return tmp_path / "source"


def _import(source, target, commits=None):
    return import_directory(source, target, commits=commits or {}, read_on="2026-01-31")


def _oddities(tmp_path, files):
    return list(_import(_source(tmp_path, files), tmp_path / "target").oddities)


def test_a_file_is_written_with_its_provenance_and_figures_only(tmp_path):
    source = _source(tmp_path, {"t.yaml": NEWEST, "older/t_0123abcd.yaml": OLDER})
    _import(source, tmp_path / "target", {"t": "feedbeef"})
    text = (tmp_path / "target" / "t.yaml").read_text()
    head, _, body = text.partition("Org/")
    assert "NVIDIA/TensorRT-LLM, tests/integration/defs/accuracy/references/t.yaml" in head
    assert "commit feedbeef, read on 2026-01-31" in head
    assert "Only figures and names were taken" in head
    assert "theirs" not in text
    assert str(tmp_path) not in text
    assert (
        body
        == """\
Model-7B:
  - accuracy: 90.9
  - quant_algo: FP8
    accuracy: 80
  - quant_algo: NVFP4
    accuracy: 70.5
    num_samples: 50
    threshold: 69.0
  - quant_algo: W4A16
    spec_dec_algo: Eagle3
    accuracy: 0
  - quant_algo: W8A16
    accuracy: 60.0
    source: NVIDIA/TensorRT-LLM t.yaml @ 0123abcd
    old: true
model_7b:
  - spec_dec_algo: EAGLE3
    accuracy: 12.5
Gone/Model:
  - accuracy: 33.0
    source: NVIDIA/TensorRT-LLM t.yaml @ 0123abcd
    old: true
"""
    )


def test_an_unknown_commit_is_said_to_be_unknown(tmp_path):
    _import(_source(tmp_path, {"t.yaml": "m: [{accuracy: 1.5}]"}), tmp_path / "target")
    assert "commit not recorded" in (tmp_path / "target" / "t.yaml").read_text()


@pytest.mark.parametrize(
    "oddity",
    [
        "t.yaml: Org/Model-7B: quant_algo=FP8: key 'mtp_enabled' dropped, the suite ignores it",
        (
            "t.yaml: Org/Model-7B: quant_algo=NVFP4: key 'reference_note' dropped,"
            " texts are not imported"
        ),
        "t.yaml: Org/Model-7B: quant_algo=FP8: shadowed duplicate with the same value, dropped",
        (
            "t.yaml: Org/Model-7B: dtype=auto quant_algo=NVFP4: "
            "shadowed duplicate with ANOTHER VALUE (70.5, then 71.5), dropped"
        ),
        "t.yaml: Org/Model-7B: quant_algo=NVFP4: threshold is set to 69.0",
        "t.yaml: Org/Model-7B: quant_algo=NVFP4: num_samples is set to 50",
        "t.yaml: Org/Model-7B: quant_algo=W4A16 spec_dec_algo=Eagle3: accuracy 0 never gates",
        "t.yaml: Org/Model-7B: quant_algo=FP8: the integer 80 among floats",
        "older/t_0123abcd.yaml: Org/Model-7B: default: moved 88.0 -> 90.9, the newer value is kept",
        (
            "*: EAGLE3 / Eagle3: spec_dec_algo is spelt in several ways (EAGLE3 in t.yaml; Eagle3"
            " in t.yaml)"
        ),
    ],
)
def test_what_is_odd_is_told(tmp_path, oddity):
    assert oddity in _oddities(tmp_path, {"t.yaml": NEWEST, "older/t_0123abcd.yaml": OLDER})


@pytest.mark.parametrize(
    ("files", "oddity"),
    [
        ({"t.yaml": "{}"}, "t.yaml: -: the file has no entry"),
        ({"t.yaml": "# nothing"}, "t.yaml: -: the file has no entry"),
        ({"v.yaml": "m: [{wer: 6.2}]"}, "v.yaml: m: default: the value is named 'wer'"),
        (
            {
                "t.yaml": (
                    "m:" + "".join(f"\n  - {{quant_algo: Q{n}, accuracy: 9.5}}" for n in range(4))
                )
            },
            "t.yaml: m: 4 rows have the same value 9.5: declared equal, hardly measured",
        ),
        (
            {
                "a.yaml": "openai/gpt-oss-120b: [{accuracy: 1.5}]",
                "b.yaml": "GPT-OSS/120B-MXFP4: [{accuracy: 1.5}]",
            },
            (
                "*: GPT-OSS/120B-MXFP4 / openai/gpt-oss-120b: several names for what seems to be"
                " one model (GPT-OSS/120B-MXFP4 in b.yaml; openai/gpt-oss-120b in a.yaml)"
            ),
        ),
        (
            {
                "acceptance_length.yaml": (
                    "A::b: {ref_al: 2.0, min_al: 1.5}\nC::d: {ref_al: 2.0, min_al: 1.9}"
                )
            },
            "acceptance_length.yaml: A::b: min_al 1.5 is not 0.95 of ref_al 2.0",
        ),
        (
            {"t.yaml": "m: [{accuracy: 1.5}]", "older/t.yaml": "m: [{accuracy: 1.5}]"},
            "older/t.yaml: -: skipped, since its name is not <task>_<commit>.yaml",
        ),
    ],
)
def test_this_is_the_one_odd_thing(tmp_path, files, oddity):
    assert _oddities(tmp_path, files) == [oddity]


def test_a_plain_file_has_no_oddity(tmp_path):
    assert (
        _oddities(tmp_path, {"t.yaml": "a/m: [{accuracy: 1.5}, {accuracy: 2.5, dtype: float16}]"})
        == []
    )


def test_entries_are_counted_by_source_file(tmp_path):
    report = _import(
        _source(tmp_path, {"t.yaml": NEWEST, "older/t_0123abcd.yaml": OLDER}), tmp_path / "target"
    )
    assert report.counts == {
        "t.yaml": FileCount(models=2, entries=7, written=5),
        "older/t_0123abcd.yaml": FileCount(models=2, entries=3, written=2),
    }
    assert report.written == (tmp_path / "target" / "t.yaml",)


def test_a_task_that_only_an_older_file_has_is_kept_as_old(tmp_path):
    _import(_source(tmp_path, {"older/t_x_0123abcd.yaml": OLDER}), tmp_path / "target")
    found = references.find("t_x", "Gone/Model", AccuracySpec(), [tmp_path / "target"])
    assert found.old


def test_importing_twice_gives_the_same_bytes(tmp_path):
    files = {"t.yaml": NEWEST, "older/t_0123abcd.yaml": OLDER, "e.yaml": "{}"}
    source, target = _source(tmp_path, files), tmp_path / "target"
    first = _import(source, target)
    before = {file: file.read_bytes() for file in first.written}
    assert _import(source, target) == replace(first, new=())
    assert first.new == first.written
    assert {file: file.read_bytes() for file in target.iterdir()} == before


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("m: {accuracy: 1}", "t.yaml:1: m: must be a list"),
        ("m:\n  - 90.5", "t.yaml:2: m: must be a mapping"),
        ("- m", "t.yaml:1: -: must be a mapping"),
        ("m: [{accuracy: high}]", "accuracy must be a finite number"),
        ("m: [{quant_algo: FP8}]", "the entry has no value"),
        ("m: [", "t.yaml:1:"),
    ],
)
def test_nothing_is_written_when_a_file_cannot_be_imported(tmp_path, text, what):
    source = _source(tmp_path, {"a.yaml": NEWEST, "t.yaml": text})
    with pytest.raises(ReferenceFileError) as caught:
        _import(source, tmp_path / "target")
    assert what in str(caught.value)
    assert not (tmp_path / "target").exists()


def test_a_file_of_the_users_own_is_never_overwritten(tmp_path):
    source, target = _source(tmp_path, {"t.yaml": NEWEST}), tmp_path / "target"
    target.mkdir()
    (target / "t.yaml").write_text("mine: [{accuracy: 1}]")
    with pytest.raises(ReferenceFileError, match="not written by an import"):
        _import(source, target)
    assert (target / "t.yaml").read_text() == "mine: [{accuracy: 1}]"


def test_the_source_is_never_overwritten(tmp_path):
    source = _source(tmp_path, {"t.yaml": NEWEST})
    with pytest.raises(ReferenceFileError, match="is also the folder to import from"):
        _import(source, source)
    assert (source / "t.yaml").read_text() == NEWEST


def test_a_folder_without_files_is_an_error(tmp_path):
    with pytest.raises(ReferenceFileError, match="holds no"):
        _import(tmp_path, tmp_path / "target")


OURS = "word_problems"
"""The only shipped file that does not come from TensorRT-LLM: the embedded model's."""


def test_the_shipped_files_tell_where_they_come_from_and_have_a_commit():
    files = {file.stem: file for file in references.list_files([REPOSITORY_ROOT / "references"])}
    assert files.pop(OURS)
    assert set(files) == set(import_published.TRTLLM_COMMITS)
    for file in files.values():
        text = file.read_text("utf-8")
        several = file.stem == references.ACCEPTANCE_LENGTH
        where = text if several else text.partition("read on")[0]
        assert import_published.TRTLLM_COMMITS[file.stem] in where


def test_acceptance_lengths_of_several_files_are_one_table_the_newest_first(tmp_path):
    source = _source(
        tmp_path,
        {
            "acceptance_length.yaml": (
                "T::kept: {ref_al: 2.0, min_al: 1.9}\n"
                "T::moved: {ref_al: 3.0, min_al: 2.85}\n"
                "T::gone: {ref_al: 4.0, min_al: 3.8}\n"
            ),
            "acceptance_length_2026-09.yaml": (
                "T::kept: {ref_al: 2.0, min_al: 1.9}\n"
                "T::moved: {ref_al: 3.2, min_al: 3.0}\n"
                "T::new[sa]: {ref_al: 1.5}\n"
                "T::unmeasured: {ref_al: null, min_al: null}\n"
            ),
            "acceptance_length_disaggregated.yaml": "D::pair: {ref_al: 2.5}\n",
        },
    )
    report = _import(source, tmp_path / "target", {"acceptance_length": "feedbeef"})
    assert sorted(file.name for file in (tmp_path / "target").iterdir()) == [
        "acceptance_length.yaml"
    ]
    length = references.AcceptanceLength
    assert references.load_acceptance_length(tmp_path / "target" / "acceptance_length.yaml") == {
        "T::kept": length(ref_al=2.0, min_al=1.9),
        "T::moved": length(ref_al=3.2, min_al=3.0),
        "T::new[sa]": length(ref_al=1.5, min_al=1.425),
        "D::pair": length(ref_al=2.5, min_al=2.375, source="NVIDIA/TensorRT-LLM#19176"),
        "T::gone": length(
            ref_al=4.0,
            min_al=3.8,
            source="NVIDIA/TensorRT-LLM acceptance_length.yaml @ feedbeef",
            old=True,
        ),
    }
    said = "acceptance_length_2026-09.yaml: T::unmeasured: no acceptance length was measured"
    assert any(said in line for line in report.lost)
    assert any("T::moved: moved 3.0 -> 3.2" in line for line in report.oddities)
    assert any("T::moved: min_al 3.0 is not 0.95" in line for line in report.oddities)


@pytest.mark.parametrize(("value", "measured"), [(42.42, 7), (42.43, None)])
def test_a_value_that_the_suite_chose_low_keeps_the_runs_it_was_chosen_from(
    tmp_path, value, measured
):
    model = "nvidia/Llama-3_3-Nemotron-Super-49B-v1"
    source = _source(tmp_path, {"gpqa_diamond.yaml": f"{model}: [{{accuracy: {value}}}]"})
    _import(source, tmp_path / "target")
    (entry,) = references.load(tmp_path / "target" / "gpqa_diamond.yaml")[model]
    assert (len(entry.measured) or None) == measured


@pytest.mark.skipif(
    not SNAPSHOT.is_dir(), reason="the copy of TensorRT-LLM's files is not next to the checkout"
)
def test_the_shipped_files_are_a_fresh_import_of_the_snapshot(tmp_path):
    report = import_directory(
        SNAPSHOT,
        tmp_path,
        commits=import_published.TRTLLM_COMMITS,
        read_on=import_published.TRTLLM_READ_ON,
        read_later=import_published.TRTLLM_READ_LATER,
    )
    shipped = {
        file.name: file.read_bytes()
        for file in (REPOSITORY_ROOT / "references").glob("*.yaml")
        if file.stem != OURS
    }
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == shipped
    assert {file: (count.models, count.entries) for file, count in report.counts.items()} == {
        "SlimPajama-6B.yaml": (1, 1),
        "acceptance_length.yaml": (12, 12),
        "acceptance_length_2026-09.yaml": (25, 25),
        "acceptance_length_disaggregated.yaml": (4, 4),
        "cnn_dailymail.yaml": (51, 153),
        "gpqa_diamond.yaml": (6, 16),
        "gsm8k.yaml": (51, 166),
        "gsm8k_inferencemax.yaml": (1, 3),
        "gsm8k_inferencex.yaml": (1, 2),
        "humaneval.yaml": (3, 4),
        "json_mode_eval.yaml": (4, 8),
        "longbench_v1.yaml": (2, 7),
        "longbench_v2.yaml": (1, 2),
        "mixed_modality_omni.yaml": (3, 3),
        "mixed_modality_qwen_vl.yaml": (0, 0),
        "mixed_modality_video_audio_omni.yaml": (3, 3),
        "mmlu.yaml": (51, 133),
        "mmmu.yaml": (16, 20),
        "older/gpqa_diamond_016bd1b9.yaml": (5, 10),
        "older/gsm8k_0120c5c2.yaml": (52, 156),
        "passkey_retrieval_128k.yaml": (1, 1),
        "passkey_retrieval_64k.yaml": (1, 2),
        "videomme.yaml": (3, 3),
        "voxpopuli.yaml": (2, 2),
        "zero_scrolls.yaml": (1, 1),
    }
    dropped = {
        file: count.entries - count.written
        for file, count in report.counts.items()
        if "older" not in file
    }
    assert {file: count for file, count in dropped.items() if count} == {
        "acceptance_length.yaml": 5,
        "gpqa_diamond.yaml": 1,
        "gsm8k.yaml": 1,
        "mmlu.yaml": 1,
    }
    assert (
        report.counts["older/gsm8k_0120c5c2.yaml"].written,
        sum("ANOTHER" in o for o in report.oddities),
    ) == (65, 0)


def test_the_head_names_the_repository(tmp_path):
    _import(_source(tmp_path, {"mmlu.yaml": NEWEST}), tmp_path / "target")
    head = (tmp_path / "target/mmlu.yaml").read_text().partition("Org/")[0]
    assert " NVIDIA/TensorRT-LLM" in head


def test_another_file_is_told_to_be_none_of_the_suite(tmp_path):
    with pytest.raises(ReferenceFileError, match="must be a mapping") as caught:
        _import(_source(tmp_path, {"mmlu.yaml": "- a\n"}), tmp_path / "target")
    assert caught.value.hint == "This is not a reference file of the suite."
