"""List the tasks of lm-eval that are compared, with their made-up rows.

Each row has its own seed, so it does not depend on other rows. The right answer to a generated
question goes to the server in its own file, under a code in the question.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass

from tests.oracle.made import chosen, generated, nested
from tests.oracle.made.generated import Drawn, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A task, its rows by split, and its number of worked examples (None: the task's own)."""

    name: str
    splits: Mapping[str, int]
    row: Row
    num_fewshot: int | None = None

    def write(self, folder, place, golds):
        """Write the rows, add the right answers to `golds`, and return the file of each split."""
        files = {}
        for number, (split, count) in enumerate(self.splits.items()):
            file = folder / f"{self.name}.{split}.jsonl"
            lines = []
            for i in range(count):
                drawn = Drawn(
                    code=f"k{place:02d}{number * 100 + i:03d}",
                    rng=random.Random(f"{self.name} {split} {i}"),
                )
                lines.append(json.dumps(self.row(drawn), ensure_ascii=False))
                if drawn.gold is not None:
                    golds[drawn.code] = drawn.gold
            file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            files[split] = str(file)
        return files


CASES = (
    Case(name="gpqa_diamond_cot_zeroshot", splits={"train": 16}, row=generated.gpqa),
    Case(name="gpqa_main_cot_n_shot", splits={"train": 12}, row=generated.gpqa, num_fewshot=3),
    Case(
        name="gpqa_diamond_generative_n_shot",
        splits={"train": 12},
        row=generated.gpqa,
        num_fewshot=2,
    ),
    Case(name="ifeval", splits={"train": 24}, row=nested.ifeval),
    Case(name="minerva_math500", splits={"test": 16}, row=generated.math500),
    Case(name="gsm8k", splits={"train": 12, "test": 16}, row=generated.gsm8k),
    Case(name="gsm8k_cot", splits={"test": 16}, row=generated.gsm8k_cot),
    Case(name="mgsm_direct_de", splits={"train": 6, "test": 16}, row=generated.mgsm, num_fewshot=2),
    Case(name="asdiv_cot_llama", splits={"validation": 12}, row=generated.asdiv),
    Case(
        name="hendrycks_math_algebra", splits={"train": 4, "test": 16}, row=generated.hendrycks_math
    ),
    Case(name="aime24", splits={"train": 16}, row=generated.aime),
    Case(name="drop", splits={"train": 4, "validation": 16}, row=nested.drop, num_fewshot=1),
    Case(
        name="triviaqa",
        splits={"train": 4, "validation": 16},
        row=generated.triviaqa,
        num_fewshot=2,
    ),
    Case(
        name="nq_open", splits={"train": 8, "validation": 16}, row=generated.nq_open, num_fewshot=5
    ),
    Case(name="truthfulqa_gen", splits={"validation": 12}, row=generated.truthful),
    Case(
        name="bbh_cot_fewshot_word_sorting",
        splits={"test": 12},
        row=generated.bbh("So the answer is {}."),
    ),
    Case(
        name="bbh_zeroshot_boolean_expressions",
        splits={"test": 16},
        row=generated.bbh("{}", "True", "False"),
    ),
    Case(
        name="bbh_cot_zeroshot_snarks",
        splits={"test": 16},
        row=generated.bbh("The answer is {}.", "(A)", "(B)"),
    ),
    Case(
        name="mmlu_anatomy_generative",
        splits={"dev": 5, "test": 16},
        row=generated.mmlu("{}"),
        num_fewshot=5,
    ),
    Case(
        name="mmlu_flan_cot_fewshot_astronomy",
        splits={"validation": 4, "test": 12},
        row=generated.mmlu("The answer is ({})."),
    ),
    Case(name="mmlu_pro_biology", splits={"validation": 12, "test": 16}, row=generated.mmlu_pro),
    Case(name="longbench_hotpotqa", splits={"test": 16}, row=generated.longbench),
    Case(name="longbench_trec", splits={"test": 16}, row=generated.trec),
    Case(name="longbench_passage_count", splits={"test": 16}, row=generated.passage_count),
    Case(
        name="wmt16-ro-en",
        splits={"train": 4, "validation": 6, "test": 16},
        row=generated.translation,
        num_fewshot=1,
    ),
    Case(name="anagrams1", splits={"validation": 16}, row=generated.anagram),
    Case(
        name="code2text_python",
        splits={"train": 2, "validation": 2, "test": 12},
        row=generated.code2text,
    ),
    Case(
        name="qasper_freeform",
        splits={"train": 4, "validation": 12},
        row=nested.qasper,
        num_fewshot=1,
    ),
    Case(
        name="babi", splits={"train": 4, "valid": 4, "test": 16}, row=generated.babi, num_fewshot=3
    ),
    Case(name="made_votes", splits={"train": 6, "test": 16}, row=generated.votes, num_fewshot=2),
    Case(name="gpqa_main_zeroshot", splits={"train": 20}, row=generated.gpqa),
    Case(name="gpqa_extended_n_shot", splits={"train": 16}, row=generated.gpqa, num_fewshot=2),
    Case(name="leaderboard_gpqa_main", splits={"train": 20}, row=generated.gpqa),
    Case(name="blimp_adjunct_island", splits={"train": 20}, row=chosen.blimp),
    Case(name="blimp_wh_island", splits={"train": 20}, row=chosen.blimp),
    Case(name="multiblimp_eng", splits={"train": 20}, row=chosen.multiblimp),
    Case(name="hellaswag", splits={"train": 4, "validation": 20}, row=chosen.hellaswag),
    Case(
        name="arc_challenge",
        splits={"train": 8, "validation": 2, "test": 20},
        row=chosen.arc,
        num_fewshot=4,
    ),
    Case(name="piqa", splits={"train": 4, "validation": 20}, row=chosen.piqa),
    Case(name="global_piqa_parallel_cloze_eng_latn", splits={"test": 20}, row=chosen.global_piqa),
    Case(
        name="winogrande",
        splits={"train": 6, "validation": 20},
        row=chosen.winogrande,
        num_fewshot=2,
    ),
    Case(name="wsc273", splits={"test": 20}, row=chosen.wsc273),
    Case(name="boolq", splits={"train": 4, "validation": 20}, row=chosen.boolq),
    Case(name="truthfulqa_mc1", splits={"validation": 12}, row=chosen.targets),
    Case(name="truthfulqa_mc2", splits={"validation": 12}, row=chosen.targets),
    Case(
        name="mmlu_anatomy", splits={"dev": 5, "test": 20}, row=generated.mmlu("{}"), num_fewshot=3
    ),
    Case(name="mmlu_early_training", splits={"dev": 5, "test": 16}, row=generated.mmlu("{}")),
    Case(name="race", splits={"test": 16}, row=chosen.race),
    Case(name="copa", splits={"train": 4, "validation": 20}, row=chosen.copa, num_fewshot=1),
    Case(name="xcopa_zh", splits={"validation": 4, "test": 20}, row=chosen.xcopa),
    Case(name="cb", splits={"train": 4, "validation": 20}, row=chosen.cb),
    Case(name="wsc", splits={"train": 4, "validation": 20}, row=chosen.wsc),
    Case(name="belebele_fra_Latn", splits={"test": 20}, row=chosen.belebele, num_fewshot=2),
    Case(name="headqa_en", splits={"train": 4, "validation": 2, "test": 20}, row=chosen.headqa),
    Case(name="toxigen", splits={"train": 4, "test": 20}, row=chosen.toxigen),
    Case(name="medmcqa", splits={"train": 4, "validation": 20}, row=chosen.medmcqa),
    Case(name="pubmedqa", splits={"train": 4, "validation": 2, "test": 20}, row=chosen.pubmedqa),
    Case(name="ethics_cm", splits={"train": 4, "test": 20}, row=chosen.ethics_cm),
    Case(
        name="ethics_utilitarianism",
        splits={"train": 6, "test": 20},
        row=chosen.utilitarianism,
        num_fewshot=2,
    ),
    Case(name="med_text_classification_easy", splits={"train": 160}, row=chosen.med_text),
    Case(name="med_prescriptions_easy", splits={"train": 16}, row=nested.prescription),
    Case(name="metabench_arc_permute", splits={"primary": 8}, row=nested.metabench_arc),
    Case(name="metabench_mmlu_permute", splits={"primary": 8}, row=nested.metabench_mmlu),
    Case(
        name="arabic_mt_sciq_light",
        splits={"validation": 5, "test": 16},
        row=chosen.sciq,
        num_fewshot=2,
    ),
    Case(name="cola", splits={"train": 4, "validation": 24}, row=chosen.cola, num_fewshot=1),
    Case(name="mrpc", splits={"train": 4, "validation": 24}, row=chosen.mrpc),
    Case(name="mutual", splits={"train": 4, "validation": 20}, row=chosen.mutual),
    Case(name="crows_pairs_english", splits={"test": 20}, row=chosen.crows),
    Case(name="webqs", splits={"train": 4, "test": 20}, row=chosen.webqs),
    Case(name="qasper_bool", splits={"train": 4, "validation": 20}, row=nested.qasper),
    Case(name="bbq", splits={"test": 24}, row=nested.bbq),
    Case(name="logiqa", splits={"train": 4, "validation": 2, "test": 20}, row=chosen.logiqa),
    Case(name="anli_r1", splits={"train_r1": 4, "dev_r1": 4, "test_r1": 20}, row=chosen.anli),
    Case(
        name="commonsense_qa",
        splits={"train": 4, "validation": 20},
        row=chosen.commonsense,
        num_fewshot=2,
    ),
    Case(
        name="made_every_choice_metric",
        splits={"train": 6, "test": 20},
        row=chosen.arc,
        num_fewshot=1,
    ),
    Case(name="lambada_openai", splits={"test": 24}, row=chosen.lambada),
    Case(
        name="lambada_standard_cloze_yaml",
        splits={"validation": 4, "test": 24},
        row=chosen.lambada,
    ),
    Case(name="lambada_openai_mt_de", splits={"test": 24}, row=chosen.lambada_de),
    Case(name="asdiv", splits={"validation": 24}, row=generated.asdiv),
    Case(name="arithmetic_2da", splits={"validation": 24}, row=chosen.arithmetic),
    Case(name="wikitext", splits={"train": 2, "validation": 2, "test": 12}, row=chosen.page),
    Case(name="pile_arxiv", splits={"train": 12}, row=chosen.text),
    Case(name="pile_github", splits={"train": 12}, row=chosen.text),
    Case(name="pile_10k", splits={"train": 12}, row=chosen.text),
    Case(name="paloma_c4_en", splits={"val": 2, "test": 12}, row=chosen.text),
)
"""The tasks, generated ones first."""
OWN_TASKS = {
    "made_votes": (
        """
task: made_votes
dataset_path: json
training_split: train
test_split: test
fewshot_split: train
output_type: generate_until
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n\\n"], max_gen_toks: 40, do_sample: false, top_k: 1}
filter_list:
  - {name: voted, filter: [{function: remove_whitespace}, {function: majority_vote}, {function: take_first}]}
  - {name: low, filter: [{function: lowercase}, {function: take_first}]}
  - {name: first, filter: [{function: take_first_k, k: 1}, {function: take_first}]}
  - name: named
    filter: [{function: regex, regex_pattern: "([A-Z][a-z]+)"}, {function: uppercase}, {function: take_first}]
metric_list:
  - {metric: exact_match, ignore_case: true, ignore_punctuation: true, ignore_numbers: true}
  - {metric: bleu}
  - {metric: chrf}
  - {metric: ter}
metadata: {version: 1}
"""  # noqa: E501
    ),
    "made_every_choice_metric": (
        """
task: made_every_choice_metric
dataset_path: json
training_split: train
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_choice: "{{choices.text}}"
doc_to_target: "{{choices.label.index(answerKey)}}"
metric_list:
  - {metric: acc}
  - {metric: acc_norm}
  - {metric: acc_bytes}
  - {metric: acc_mutual_info}
  - {metric: exact_match}
  - {metric: brier_score}
  - {metric: mcc}
metadata: {version: 1}
"""
    ),
}
"""Tasks of our own, for filters and metrics that no task of lm-eval uses with one answer per
document.
"""
