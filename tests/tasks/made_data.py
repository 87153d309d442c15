"""Write small data sets in the layouts of the published ones.

They measure nothing; they give the real loaders, prompts and scorers something to work on.
"""

import base64
import csv
import io
import json
import pickle
import random
import struct
import wave
import zlib
from pathlib import Path

from serve_eval import cases
from serve_eval.datasets.source import GPQA_PASSWORD
from serve_eval.plugins import registry
from serve_eval.schema import Spec
from serve_eval.tasks._mmmu import SUBJECTS
from serve_eval.tasks.longbench_v1 import CHINESE, SETS
from serve_eval.tasks.mmmu import ROWS
from tests.tasks.made_suites import write_bfcl, write_instruction_sets, write_video

_WORDS = """river stone quiet harbour lamp winter garden train letter morning silver bridge paper
hill market"""
WORDS = tuple(_WORDS.split())

EXAMPLE = Path(cases.__file__).with_name("example.yaml")
"""The file that `serve-eval data cases new` writes."""
ELSEWHERE = ("lm_eval", "requests")
NAMES = [name for name in registry.names("serve_eval.tasks") if name not in ELSEWHERE]
"""Every task except those that tests/harness and tests/tasks/test_requests.py cover."""
PROMPTS = "longbench_prompts"
"""Name of the folder with LongBench's prompts, below the root."""


def sentence(rng, words):
    """Return random words as a sentence."""
    return " ".join(rng.choices(WORDS, k=words)).capitalize() + "."


def write_all(root):
    """Write every set below a root, with as many rows as its task asks for."""
    write_cnn_dailymail(root / "cnn_dailymail", 512)
    write_gpqa(root / "gpqa", {"diamond": 198, "main": 12, "extended": 12})
    write_longbench_v2(root / "longbench_v2", 215)
    write_longbench_v1(root / "longbench_v1")
    write_longbench_prompts(root / PROMPTS)
    write_ruler(root / "ruler")
    write_json_mode_eval(root / "json_mode_eval", 100)
    write_slimpajama(root / "slimpajama", 86)
    write_zero_scrolls(root / "zero_scrolls", 80)
    write_aime(root)
    write_mmmu(root / "mmmu")
    write_voxpopuli(root / "voxpopuli", 60)
    write_covost2(root / "covost2/en_de", 1000)
    write_covost2(root / "covost2/de_en", 12)
    write_mmmu_pro(root / "mmmu_pro")
    write_mmlu_pro(root / "mmlu_pro", 12032)
    write_math_500(root / "math_500", 500)
    write_videomme(root / "videomme", 300)
    write_instruction_sets(root)
    write_livecodebench(root / "livecodebench")
    write_ocrbench(root / "ocrbench", 1000)
    write_bfcl(root / "bfcl")


def write_jsonl(path, rows):
    """Write one JSON object per line, creating parent folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_rows(path, count, **columns):
    """Write rows whose texts have {i}, the number of the row."""
    rows = ({name: text.format(i=i) for name, text in columns.items()} for i in range(count))
    write_jsonl(path, rows)


def write_cnn_dailymail(folder, count):
    """Write 3.0.0/test-00000-of-00001.parquet."""
    from pyarrow import Table, parquet

    rng = random.Random("cnn_dailymail")
    rows = [
        {"article": sentence(rng, 60), "highlights": sentence(rng, 12), "id": f"{i}"}
        for i in range(count)
    ]
    (folder / "3.0.0").mkdir(parents=True)
    parquet.write_table(Table.from_pylist(rows), folder / "3.0.0/test-00000-of-00001.parquet")


def write_gpqa(folder, counts):
    """Write dataset.zip, encrypted as the authors' archive is."""
    rng = random.Random("gpqa")
    files = {}
    for subset, count in counts.items():
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        names = ["Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3"]
        writer.writerow(["Record ID", "Question", *names, "Explanation"])
        for i in range(count):
            answers = [f" {word} {i}\n" for word in rng.sample(WORDS, 4)]
            writer.writerow([f"rec{i}", f"{sentence(rng, 8)}\nWhich, {i}?", *answers, ""])
        files[f"dataset/gpqa_{subset}.csv"] = text.getvalue().encode()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dataset.zip").write_bytes(encrypted_zip(files, GPQA_PASSWORD))


def write_longbench_v2(folder, medium):
    """Write data.json, a list, with some rows of other lengths."""
    rng = random.Random("longbench_v2")
    rows = []
    for i in range(medium + 4):
        choices = {f"choice_{letter}": f" {sentence(rng, 4)} " for letter in "ABCD"}
        rows.append(
            {
                "_id": f"id{i}",
                "domain": rng.choice(["Single-Document QA", "Code Repository Understanding"]),
                "sub_domain": "x",
                "difficulty": rng.choice(["easy", "hard"]),
                "length": "medium" if i >= 4 else ("short", "long")[i % 2],
                "question": f"{sentence(rng, 6)} ({i})",
                **choices,
                "answer": rng.choice("ABCD"),
                "context": f"\n{sentence(rng, 200)}\n",
            }
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data.json").write_text(json.dumps(rows))


def write_longbench_v1(folder, sets=None):
    """Write <set>/test.jsonl with that many rows per set (None: the published numbers)."""
    rng = random.Random("longbench_v1")
    classes = ["Food", "Food type", "Colour", "Colour of a thing"]
    for name, count in (sets or {name: one.rows for name, one in SETS.items()}).items():
        answers = {
            "passage_count": lambda: str(rng.randint(1, 30)),
            "passage_retrieval_en": lambda: f"Paragraph {rng.randint(1, 30)}",
            "passage_retrieval_zh": lambda: f"段落{rng.randint(1, 30)}",
            "lcc": lambda: f"    return {rng.choice(WORDS)}({rng.randint(0, 99)})",
            "repobench-p": lambda: f"        {rng.choice(WORDS)} = {rng.randint(0, 99)}",
            "trec": lambda: rng.choice(classes[1::2]),
            "lsht": lambda: rng.choice(classes[1::2]),
        }
        answer = answers.get(
            name, (lambda: "北京很大") if name in CHINESE else (lambda: sentence(rng, 3))
        )
        rows = [
            {
                "context": sentence(rng, 5),
                "question": f"{rng.choice(WORDS)} {i}?",
                "answers": [answer()],
                "all_classes": classes if SETS[name].metric is None else None,
            }
            for i in range(count)
        ]
        write_jsonl(folder / name / "test.jsonl", rows)


def write_longbench_prompts(folder):
    """Write <set>.yaml as in lm-eval, with prompts, lengths and stop strings of our own."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, one in SETS.items():
        until = '["\\n"]' if one.group == "fewshot" else "[]"
        (folder / f"{name}.yaml").write_text(
            f'task: longbench_{name}\ndoc_to_text: "{name}\\n{{{{context}}}}\\nAbout:'
            ' {{question}}\\nReply:"\nprocess_results: !function'
            f" metrics.any\ngeneration_kwargs: {{max_gen_toks: {32 + len(name)}, temperature: 1,"
            f" until: {until}}}\n"
        )
    return folder


def spec_of(name, root):
    """Return a task that loads the data of `write_all`.

    LongBench's prompts come from there instead of from lm-eval. A family is represented by one
    member, which has a name of its own.
    """
    if name == "cases":
        return Spec(name="cases:capitals", options={"path": str(EXAMPLE)})
    return Spec(
        name=name, options={"prompts": str(root / PROMPTS)} if name == "longbench_v1" else {}
    )


def write_ruler(folder):
    """Write essays, questions of SQuAD and of HotpotQA in the files that RULER reads."""
    rng = random.Random("ruler")
    articles = [
        {
            "title": f"Article {i}",
            "paragraphs": [
                {"context": sentence(rng, 40), "qas": _squad_questions(rng, 10 * i + j)}
                for j in range(3)
            ],
        }
        for i in range(8)
    ]
    pairs = [
        {
            "question": sentence(rng, 6),
            "answer": rng.choice(WORDS),
            "context": [
                [f"Title {i}.{j}", [sentence(rng, 8), f" {sentence(rng, 8)}"]] for j in range(10)
            ],
        }
        for i in range(6)
    ]
    essays = "\n\n".join(sentence(rng, 20) for _ in range(60))
    folder.mkdir(parents=True)
    files = {
        "PaulGrahamEssays": {"text": essays},
        "squad": {"version": "v2.0", "data": articles},
        "hotpotqa": pairs,
    }
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")


def _squad_questions(rng, number):
    """Return a question with two answers and one that cannot be answered."""
    answers = [{"text": word, "answer_start": 0} for word in rng.sample(WORDS, 2)]
    return [
        {"question": f"What is {number}?", "answers": answers, "is_impossible": False},
        {"question": f"Why is {number}?", "answers": [], "is_impossible": True},
    ]


def write_json_mode_eval(folder, count):
    """Write data/train-00000-of-00001.parquet with conversations of two turns."""
    from pyarrow import Table, parquet

    rng = random.Random("json_mode_eval")
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "size": {"type": "integer"}},
    }
    rows = []
    for i in range(count):
        expected = {"name": rng.choice(WORDS), "size": i}
        turns = [
            {"role": "system", "content": f"Answer in JSON of this schema: {json.dumps(schema)}"},
            {"role": "user", "content": f"A {expected['name']} of size {i}."},
        ]
        required = {**schema, "required": ["name", "size"]}
        rows.append(
            {"prompt": turns, "completion": json.dumps(expected), "schema": json.dumps(required)}
        )
    (folder / "data").mkdir(parents=True)
    parquet.write_table(Table.from_pylist(rows), folder / "data/train-00000-of-00001.parquet")


def write_slimpajama(folder, count):
    """Write test.jsonl with `count` texts that are long enough, after one that is not."""
    rng = random.Random("slimpajama")
    page = sentence(rng, 1500)
    texts = ["too short", *(f"{i} {page * (5 if i % 2 else 8)}" for i in range(count))]
    write_jsonl(folder / "test.jsonl", [{"text": text} for text in texts])


def write_zero_scrolls(folder, count):
    """Write squality/validation.jsonl."""
    rng = random.Random("zero_scrolls")
    rows = [
        {
            "id": f"{i // 4}",
            "pid": f"{i}",
            "input": f"{sentence(rng, 300)} n't",
            "output": sentence(rng, 40),
        }
        for i in range(count)
    ]
    write_jsonl(folder / "squality/validation.jsonl", rows)


def write_aime(root):
    """Write the three files of AIME.

    aime25/test.jsonl has texts as answers; aime24/aime_2024_problems.parquet and
    aime26/data/train-*.parquet have numbers.
    """
    from pyarrow import Table, parquet

    rng = random.Random("aime24")
    rows = [
        {"Problem": f"{sentence(rng, 9)} Find ${i}m$.", "Answer": rng.randint(0, 999)}
        for i in range(30)
    ]
    (root / "aime24").mkdir()
    parquet.write_table(Table.from_pylist(rows), root / "aime24/aime_2024_problems.parquet")
    rng = random.Random("aime")
    rows = [
        {"problem": f"{sentence(rng, 9)} Find ${i}n$.", "answer": rng.randint(0, 999)}
        for i in range(30)
    ]
    write_jsonl(root / "aime25/test.jsonl", [{**row, "answer": str(row["answer"])} for row in rows])
    (root / "aime26/data").mkdir(parents=True)
    parquet.write_table(
        Table.from_pylist([{"problem_idx": i, **row} for i, row in enumerate(rows)]),
        root / "aime26/data/train-00000-of-00001.parquet",
    )


def write_mmmu(folder):
    """Write SUBJECT/validation-00000-of-00001.parquet with 30 rows per subject.

    Every fifth row is an open question.
    """
    from pyarrow import Table, parquet

    for subject in SUBJECTS:
        rows = []
        for i in range(ROWS):
            rng = random.Random(f"mmmu {subject} {i}")
            images = {
                f"image_{n}": {"bytes": png(rng.randrange(256)), "path": f"{i}_{n}.png"}
                for n in (1, 2)
            }
            row = {"id": f"validation_{subject}_{i + 1}", **images, "image_3": None}
            if i % 5 == 4:
                row |= {
                    "question": f"How many, <image 1> or <image 2> ({i})?",
                    "question_type": "open",
                }
                row |= {"options": "[]", "answer": str(rng.randrange(10, 5000))}
            else:
                row |= {
                    "question": f"<image 1> {sentence(rng, 5)}",
                    "question_type": "multiple-choice",
                }
                row |= {
                    "options": repr([*rng.sample(WORDS, 3), "<image 2>"]),
                    "answer": rng.choice("ABCD"),
                }
            rows.append(row)
        (folder / subject).mkdir(parents=True)
        parquet.write_table(
            Table.from_pylist(rows), folder / subject / "validation-00000-of-00001.parquet"
        )


def write_mmmu_pro(folder):
    """Write both subsets with 1730 rows each, the one with ten options in two pieces."""
    from pyarrow import Table, parquet

    for count, pieces in ((10, 2), (4, 1)):
        place = folder / f"standard ({count} options)"
        place.mkdir(parents=True)
        rng, rows = random.Random(f"mmmu_pro {count}"), []
        for i in range(1730):
            image = {"bytes": png(rng.randrange(256)), "path": f"{i}.png"}
            rows.append(
                {
                    "id": f"test_Art_{i + 1}",
                    "question": f"<image 1> {sentence(rng, 4)} ({i})",
                    "options": repr(["<image 2>", *rng.sample(WORDS, count - 1)]),
                    "answer": rng.choice("ABCDEFGHIJ"[:count]),
                    "image_1": image,
                    "image_2": image,
                    "image_3": None,
                    "subject": rng.choice(SUBJECTS),
                    "topic_difficulty": rng.choice(["Easy", "Medium", "Hard"]),
                }
            )
        for piece in range(pieces):
            part = rows[piece * len(rows) // pieces : (piece + 1) * len(rows) // pieces]
            name = f"test-0000{piece}-of-0000{pieces}.parquet"
            parquet.write_table(Table.from_pylist(part), place / name)


def write_mmlu_pro(folder, count):
    """Write test.jsonl, with 3 to 10 options, and validation.jsonl, with five rows a category."""
    rng = random.Random("mmlu_pro")
    categories = ("computer science", "law", "math")

    def row(i, category, reasoning):
        options = [f"{word} {i}" for word in rng.sample(WORDS, rng.randint(3, 10))]
        right = rng.randrange(len(options))
        return {
            "question_id": i,
            "question": f"{sentence(rng, 6)} ({i})",
            "options": options,
            "answer": "ABCDEFGHIJ"[right],
            "answer_index": right,
            "cot_content": reasoning,
            "category": category,
            "src": "made",
        }

    shot = "A: Let's think step by step. It is so. The answer is (A)."
    shots = [row(i, categories[i // 5], shot) for i in range(5 * len(categories))]
    write_jsonl(folder / "validation.jsonl", shots)
    rows = (row(100 + i, rng.choice(categories), "") for i in range(count))
    write_jsonl(folder / "test.jsonl", rows)


def write_math_500(folder, count):
    """Write test.jsonl, whose answers are numbers, fractions and formulas."""
    forms = ("{i}", "\\frac{{{i}}}{{7}}", "x^2 + {i}", "\\left( {i}, \\pi \\right)")
    rows = (
        {
            "problem": f"Find ${i}n$.",
            "solution": "",
            "answer": forms[i % len(forms)].format(i=i),
            "subject": ("Algebra", "Precalculus")[i % 2],
            "level": i % 5 + 1,
            "unique_id": f"test/made/{i}.json",
        }
        for i in range(count)
    )
    write_jsonl(folder / "test.jsonl", rows)


def write_ocrbench(folder, count):
    """Write data/test-00000-of-00001.parquet, in the layout of the hub."""
    from pyarrow import Table, parquet

    rng = random.Random("ocrbench")
    kinds = (
        ("IIIT5K", "Regular Text Recognition"),
        ("docVQA", "Doc-oriented VQA"),
        ("HME100k", "Handwritten Mathematical Expression Recognition"),
    )
    rows = []
    for i in range(count):
        dataset, kind = kinds[i % len(kinds)]
        formula = [f"y _ {{ {i} }} = - 1\n", f"y_{{{i}}} = - 1\n"]
        rows.append(
            {
                "dataset": dataset,
                "question": f"{sentence(rng, 4)} ({i})",
                "question_type": kind,
                "answer": formula if dataset == "HME100k" else [sentence(rng, 2)],
                "image": {"bytes": png(rng.randrange(256)), "path": f"{i}.png"},
            }
        )
    (folder / "data").mkdir(parents=True)
    parquet.write_table(Table.from_pylist(rows), folder / "data/test-00000-of-00001.parquet")


def write_videomme(folder, count):
    """Write annotations.jsonl, and three videos that the questions share."""
    for number in range(3):
        write_video(folder / f"videos/{number}.avi", 10 + number, first=40 * number)
    rng, rows = random.Random("videomme"), []
    for i in range(count):
        options = [sentence(rng, 3) for _ in range(4)]
        labelled = [f"{letter}. {text}" for letter, text in zip("ABCD", options, strict=True)]
        rows.append(
            {
                "sample_id": f"{i:03}-1",
                "video_path": f"videos/{i % 3}.avi",
                "question": f"{sentence(rng, 5)} ({i})",
                "options": labelled if i % 2 else options,
                "answer": rng.choice("ABCD"),
                "duration": "short",
                "domain": rng.choice(["Knowledge", "Sports Competition"]),
            }
        )
    write_jsonl(folder / "annotations.jsonl", rows)


def write_livecodebench(folder, counts=None):
    """Write test.jsonl to test6.jsonl, or those with `counts`, as many rows as published."""
    published = {"": 400, "2": 111, "3": 101, "4": 101, "5": 167, "6": 175}
    for number, count in (counts or published).items():
        rows = [contest_row(f"{number or 1}_{i}", i) for i in range(count)]
        write_jsonl(folder / f"test{number}.jsonl", rows)


def contest_row(name, i):
    """Return a row of LiveCodeBench; every third has tests that call a method."""
    calls = i % 3 == 2
    if calls:
        pairs = [(f"[{k}, {i}]\n{k}", json.dumps([k, [i]])) for k in range(3)]
    else:
        pairs = [(f"{k} {i}\n", f"{k + i}\n{k}.50\n") for k in range(3)]
    kind = "functional" if calls else "stdin"
    tests = [{"input": a, "output": b, "testtype": kind} for a, b in pairs]
    hidden = json.dumps(tests[1:])
    packed = base64.b64encode(zlib.compress(pickle.dumps(hidden, protocol=4), 0)).decode()
    return {
        "question_title": f"Problem {name}",
        "question_content": f"Add the numbers ({name}).\n\nInput: two numbers.",
        "platform": "leetcode" if calls else ("atcoder", "codeforces")[i % 2],
        "question_id": f"p{name}",
        "contest_id": "c",
        "contest_date": f"20{23 + i % 3}-0{1 + i % 9}-1{i % 10}T00:00:00",
        "starter_code": "class Solution:\n    def add(self, a, b):\n        " if calls else "",
        "difficulty": ("easy", "medium", "hard")[i % 3],
        "public_test_cases": json.dumps(tests[:1]),
        "private_test_cases": hidden if i % 5 == 0 else packed,
        "metadata": json.dumps({"func_name": "add"} if calls else {}),
    }


def png(grey):
    """Return an image of one pixel."""

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    pixel = zlib.compress(bytes([0, grey]), 0)  # stored: every zlib gives the same bytes
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixel) + chunk(b"IEND", b"")


def write_voxpopuli(folder, count):
    """Write en/test-00000-of-00002.parquet and its second half, with utterances of 12 speakers."""
    from pyarrow import Table, parquet

    rng = random.Random("voxpopuli")
    rows = [
        {
            "audio_id": f"2017-PLENARY-{i}-en",
            "audio": {"bytes": wav(300 + i), "path": f"{i}.wav"},
            "raw_text": sentence(rng, 9),
            "normalized_text": sentence(rng, 9).lower(),
            "speaker_id": "None" if i % 13 == 12 else str(i % 13),
        }
        for i in range(count)
    ]
    (folder / "en").mkdir(parents=True)
    for piece, half in enumerate((rows[: count // 2], rows[count // 2 :])):
        parquet.write_table(
            Table.from_pylist(half), folder / f"en/test-0000{piece}-of-00002.parquet"
        )


def write_covost2(folder, count):
    """Write test-00000-of-00001.parquet, with sentences of 37 speakers."""
    from pyarrow import Table, parquet

    rng = random.Random("covost2")
    rows = [
        {
            "client_id": f"speaker{i % 37}",
            "audio": {"bytes": wav(300 + i), "path": f"{i}.wav"},
            "sentence": sentence(rng, 5),
            "translation": sentence(rng, 6),
        }
        for i in range(count)
    ]
    folder.mkdir(parents=True)
    parquet.write_table(Table.from_pylist(rows), folder / "test-00000-of-00001.parquet")


def wav(hertz):
    """Return a hundredth of a second of a saw tooth, at 16 kHz."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(16000)
        sound.writeframes(b"".join(struct.pack("<h", i * hertz % 16000 - 8000) for i in range(160)))
    return file.getvalue()


def encrypted_zip(files, password):
    """Return a zip file under PKWARE's traditional encryption (APPNOTE 6.1).

    Python can read it but not write it.
    """
    body, directory = b"", b""
    for name, content in files.items():
        crc = zlib.crc32(content)
        compressor = zlib.compressobj(wbits=-15)
        packed = compressor.compress(content) + compressor.flush()
        data = _encrypt(b"\0" * 11 + bytes([crc >> 24]) + packed, password)
        fields = (20, 1, 8, 0, 33, crc, len(data), len(content), len(name), 0)
        directory += struct.pack(
            "<4s6H3L5H2L", b"PK\1\2", 20, *fields[:6], *fields[6:], 0, 0, 0, 0, len(body)
        )
        directory += name.encode()
        body += struct.pack("<4s5H3L2H", b"PK\3\4", *fields) + name.encode() + data
    end = struct.pack(
        "<4s4H2LH", b"PK\5\6", 0, 0, len(files), len(files), len(directory), len(body), 0
    )
    return body + directory + end


def _encrypt(plain, password):
    keys = [0x12345678, 0x23456789, 0x34567890]

    def update(byte):
        keys[0] = _crc(keys[0], byte)
        keys[1] = ((keys[1] + (keys[0] & 0xFF)) * 134775813 + 1) & 0xFFFFFFFF
        keys[2] = _crc(keys[2], keys[1] >> 24)

    for byte in password:
        update(byte)
    out = bytearray()
    for byte in plain:
        mask = (keys[2] | 2) & 0xFFFF
        out.append(byte ^ ((mask * (mask ^ 1)) >> 8 & 0xFF))
        update(byte)
    return bytes(out)


def _crc(crc, byte):
    """Return one step of CRC-32 without its inversions."""
    return zlib.crc32(bytes([byte]), crc ^ 0xFFFFFFFF) ^ 0xFFFFFFFF
