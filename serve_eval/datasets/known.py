"""List the known data sets, with their sources, licences and checksums.

A checksum is listed if it was computed from the source's own files at the given revision. The
others are recorded at the first fetch.
"""

from __future__ import annotations

from serve_eval.datasets.source import HubSource, Source

GPQA_PASSWORD = b"deserted-untie-orchid"
"""Published by the authors next to the archive. It only keeps the questions out of crawled text."""

_SEE_PAGE = "see the data set's page"

KNOWN = {
    "gsm8k": Source(
        name="GSM8K",
        folders=("openai/gsm8k", "gsm8k"),
        homepage="https://github.com/openai/grade-school-math",
        licence="MIT",
        rows="1319 test, 7473 train",
        revision="3101c7d5",
        urls={
            f"{split}.jsonl": (
                "https://raw.githubusercontent.com/openai/grade-school-math/master/"
                f"grade_school_math/data/{split}.jsonl"
            )
            for split in ("test", "train")
        },
        sha256={
            "test.jsonl": "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
            "train.jsonl": "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
        },
        hub=HubSource(repository="openai/gsm8k", patterns=("main/*.parquet",)),
    ),
    "mmlu": Source(
        name="MMLU",
        folders=("mmlu", "mmlu/data", "cais/mmlu"),
        homepage="https://github.com/hendrycks/test (data.tar)",
        licence="MIT",
        rows="14042 test, 285 dev, 57 subjects",
        hub=HubSource(
            repository="cais/mmlu",
            patterns=("data.tar",),
            archive="data.tar",
            members=("dev/*_dev.csv", "test/*_test.csv"),
        ),
    ),
    "humaneval": Source(
        name="HumanEval",
        folders=("openai_humaneval", "humaneval"),
        homepage="https://github.com/openai/human-eval",
        licence="MIT",
        rows="164 test",
        revision="6d43fb98",
        urls={
            "HumanEval.jsonl.gz": (
                "https://raw.githubusercontent.com/openai/human-eval/master/data/HumanEval.jsonl.gz"
            )
        },
        sha256={
            "HumanEval.jsonl.gz": "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef"
        },
    ),
    "cnn_dailymail": Source(
        name="CNN/DailyMail",
        folders=("ccdv/cnn_dailymail", "cnn_dailymail"),
        homepage="https://huggingface.co/datasets/ccdv/cnn_dailymail",
        licence="Apache-2.0",
        rows="11490 test",
        hub=HubSource(repository="ccdv/cnn_dailymail", patterns=("3.0.0/test-*.parquet",)),
    ),
    "gpqa": Source(
        name="GPQA",
        folders=("gpqa",),
        homepage="https://github.com/idavidrein/gpqa",
        licence="CC-BY-4.0",
        rows="198 diamond, 448 main, 546 extended",
        revision="main",
        urls={"dataset.zip": "https://raw.githubusercontent.com/idavidrein/gpqa/main/dataset.zip"},
        note="kept as its authors' password-protected archive; the copy on the hub is gated",
    ),
    "json_mode_eval": Source(
        name="JSON mode eval",
        folders=("NousResearch/json-mode-eval", "json_mode_eval"),
        homepage="https://huggingface.co/datasets/NousResearch/json-mode-eval",
        licence="Apache-2.0",
        rows="100 train",
        hub=HubSource(
            repository="NousResearch/json-mode-eval", patterns=("data/*.parquet", "*.parquet")
        ),
    ),
    "longbench_v1": Source(
        name="LongBench v1",
        folders=("Xnhyacinth/LongBench", "longbench_v1"),
        homepage="https://huggingface.co/datasets/Xnhyacinth/LongBench",
        licence=_SEE_PAGE,
        rows="4750 test, 21 sets",
        hub=HubSource(repository="Xnhyacinth/LongBench", patterns=("*/test-*.parquet",)),
    ),
    "longbench_v2": Source(
        name="LongBench v2",
        folders=("zai-org/LongBench-v2", "THUDM/LongBench-v2", "longbench_v2"),
        homepage="https://huggingface.co/datasets/zai-org/LongBench-v2",
        licence="Apache-2.0",
        rows="503 train, 215 of them medium",
        hub=HubSource(repository="zai-org/LongBench-v2", patterns=("data.json",)),
    ),
    "zero_scrolls": Source(
        name="ZeroSCROLLS, SQuALITY",
        folders=("tau/zero_scrolls", "zero_scrolls"),
        homepage="https://huggingface.co/datasets/tau/zero_scrolls",
        licence=_SEE_PAGE,
        rows="80 validation",
        hub=HubSource(
            repository="tau/zero_scrolls",
            patterns=("squality.zip",),
            archive="squality.zip",
            members=("squality/validation.jsonl",),
        ),
    ),
    "slimpajama": Source(
        name="SlimPajama-6B",
        folders=("SlimPajama-6B", "DKYoon/SlimPajama-6B", "slimpajama"),
        homepage="https://huggingface.co/datasets/DKYoon/SlimPajama-6B",
        licence=_SEE_PAGE,
        rows="test split",
        hub=HubSource(repository="DKYoon/SlimPajama-6B", patterns=("data/test-*.parquet",)),
    ),
    "mmmu": Source(
        name="MMMU",
        folders=("MMMU/MMMU", "MMMU", "mmmu"),
        homepage="https://huggingface.co/datasets/MMMU/MMMU",
        licence="Apache-2.0",
        rows="900 validation, 30 subjects",
        hub=HubSource(repository="MMMU/MMMU", patterns=("*/validation-*.parquet",)),
    ),
    "voxpopuli": Source(
        name="VoxPopuli",
        folders=("facebook/voxpopuli", "voxpopuli"),
        homepage="https://huggingface.co/datasets/facebook/voxpopuli",
        licence="CC0-1.0",
        rows="1842 English test",
        hub=HubSource(repository="facebook/voxpopuli", patterns=("en/test-*.parquet",)),
    ),
    "covost2": Source(
        name="CoVoST 2",
        folders=("fixie-ai/covost2", "covost2"),
        homepage="https://huggingface.co/datasets/fixie-ai/covost2",
        licence="CC0-1.0",
        rows="15531 test from English to German",
        hub=HubSource(repository="fixie-ai/covost2", patterns=("en_de/test-*.parquet",)),
    ),
    "mmmu_pro": Source(
        name="MMMU-Pro",
        folders=("MMMU/MMMU_Pro", "MMMU_Pro", "mmmu_pro"),
        homepage="https://huggingface.co/datasets/MMMU/MMMU_Pro",
        licence="Apache-2.0",
        rows="1730 test, with ten and with four options",
        hub=HubSource(repository="MMMU/MMMU_Pro", patterns=("standard*/test-*.parquet",)),
    ),
    "videomme": Source(
        name="Video-MME, short videos",
        folders=("lmms-lab__Video-MME-short-v1", "Video-MME-short-v1", "videomme"),
        homepage="https://huggingface.co/datasets/lmms-lab/Video-MME",
        licence=_SEE_PAGE,
        rows="300 or more, one line each in annotations.jsonl",
        note="TensorRT-LLM's own selection of Video-MME; write annotations.jsonl for your copy",
    ),
    "ifeval": Source(
        name="IFEval",
        folders=("google/IFEval", "ifeval"),
        homepage="https://github.com/google-research/google-research/tree/master/"
        "instruction_following_eval",
        licence="Apache-2.0",
        rows="541",
        revision="0c495b2f",
        urls={
            "input_data.jsonl": (
                "https://raw.githubusercontent.com/josejg/instruction_following_eval/main/"
                "instruction_following_eval/data/input_data.jsonl"
            )
        },
        sha256={
            "input_data.jsonl": "67ffeee0fcb87c317c5b08a2de85557b4a7e96ada6178aa645b4954fe4b53d49"
        },
        hub=HubSource(repository="google/IFEval", patterns=("ifeval_input_data.jsonl",)),
        note="fetched from the copy in josejg/instruction_following_eval",
    ),
    "ifbench": Source(
        name="IFBench",
        folders=("allenai/IFBench_test", "ifbench"),
        homepage="https://github.com/allenai/IFBench",
        licence="ODC-BY-1.0",
        rows="300 test",
        revision="db69a6f0",
        urls={
            "IFBench_test.jsonl": (
                "https://raw.githubusercontent.com/allenai/IFBench/main/data/IFBench_test.jsonl"
            )
        },
        sha256={
            "IFBench_test.jsonl": "a2bf7b8e7ed11d39c65b4ec781da8b99663ed0121f97033d70fcecb61f8a9d85"
        },
        hub=HubSource(repository="allenai/IFBench_test", patterns=("data/train-*.parquet",)),
    ),
    "nltk_data": Source(
        name="NLTK data",
        folders=("nltk_data",),
        homepage="https://github.com/nltk/nltk_data",
        licence=_SEE_PAGE,
        rows="no questions: splitters, a tagger and stop words that ifeval and ifbench need",
        revision="gh-pages",
        urls={
            f"{name}.zip": (
                "https://raw.githubusercontent.com/nltk/nltk_data/gh-pages/packages/"
                f"{folder}/{name}.zip"
            )
            for folder, name in (
                ("tokenizers", "punkt_tab"),
                ("corpora", "stopwords"),
                ("taggers", "averaged_perceptron_tagger_eng"),
            )
        },
    ),
    "aime24": Source(
        name="AIME 2024",
        folders=("Maxwell-Jia/AIME_2024", "aime", "aime24"),
        homepage="https://github.com/GAIR-NLP/AIME-Preview",
        licence=_SEE_PAGE,
        rows="30",
        revision="7011a9ea",
        urls={
            "test2024.jsonl": (
                "https://raw.githubusercontent.com/GAIR-NLP/AIME-Preview/main/eval/data/aime/"
                "test2024.jsonl"
            )
        },
        sha256={
            "test2024.jsonl": "a0f7eb9915f60f70fdaa9375414869d101eab639a67acf652cde98166efcd1cc"
        },
        hub=HubSource(repository="Maxwell-Jia/AIME_2024", patterns=("*.parquet",)),
    ),
    "aime25": Source(
        name="AIME 2025",
        folders=("math-ai/aime25", "aime", "aime25"),
        homepage="https://huggingface.co/datasets/math-ai/aime25",
        licence=_SEE_PAGE,
        rows="30 test",
        hub=HubSource(repository="math-ai/aime25", patterns=("*.jsonl", "*/*.parquet")),
    ),
    "aime26": Source(
        name="AIME 2026",
        folders=("MathArena/aime_2026", "aime26"),
        homepage="https://huggingface.co/datasets/MathArena/aime_2026",
        licence=_SEE_PAGE,
        rows="30 train",
        hub=HubSource(repository="MathArena/aime_2026", patterns=("*/*.parquet",)),
    ),
}
"""By the name that `serve-eval data` uses."""
