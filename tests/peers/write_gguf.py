"""Write a model in the layout of the hub, such as the embedded one, as a GGUF file.

    PYTHON write_gguf.py FOLDER FILE --type F32|BF16|Q8_0|Q4_0 [--damage int3] [--beginning]

Needs numpy and the package gguf. The model must be a Llama with a byte-level BPE whose digits are
single tokens. Matrices get the type, norms stay F32.
"""

import argparse
import sys
from pathlib import Path
from typing import get_args

import gguf

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from serve_eval.launchers._embedded.damage import Damage
from serve_eval.launchers._embedded.model import read
from tests.json_files import read_json

NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
DIGITS_APART = "smollm"
"""llama.cpp's name for splitting off every digit before splitting like GPT-2."""


def write(folder, file, kind, damage, *, beginning):
    """Write the file of a folder, with its matrices in the given type and damaged.

    With `beginning`, the token that ends texts is also put before every text.
    """
    config = read_json(folder / "config.json")
    heads = config["num_attention_heads"]
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["hidden_size"] // heads)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    _add_tokenizer(writer, folder, config, beginning=beginning)
    for name, values in _tensors(read(folder, damage), heads):
        matrix = values.ndim == 2
        to = gguf.GGMLQuantizationType[kind if matrix else "F32"]
        writer.add_tensor(name, gguf.quants.quantize(values, to), raw_dtype=to)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer, folder, config, *, beginning):
    content = read_json(folder / "tokenizer.json")
    special = {token["content"] for token in content["added_tokens"] if token["special"]}
    ids = {
        **content["model"]["vocab"],
        **{token["content"]: token["id"] for token in content["added_tokens"]},
    }
    tokens = sorted(ids, key=ids.__getitem__)
    assert [ids[token] for token in tokens] == list(range(config["vocab_size"])), "ids with gaps"
    merges = [m if isinstance(m, str) else " ".join(m) for m in content["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(DIGITS_APART)
    writer.add_token_list(tokens)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if t in special else gguf.TokenType.NORMAL for t in tokens]
    )
    writer.add_token_merges(merges)
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(beginning)
    if beginning:
        writer.add_bos_token_id(config["eos_token_id"])
    writer.add_chat_template(read_json(folder / "tokenizer_config.json")["chat_template"])


def _tensors(tensors, heads):
    """Yield the tensors by their names in a GGUF file, without an output tied to the embedding."""
    for name, values in tensors.items():
        if name == "model.embed_tokens.weight":
            yield "token_embd.weight", values
        elif name == "model.norm.weight":
            yield "output_norm.weight", values
        else:
            _, _, layer, part = name.removesuffix(".weight").split(".", 3)
            if part in ("self_attn.q_proj", "self_attn.k_proj"):
                # llama.cpp rotates neighbouring values; in the hub's layout they are half a head
                # apart.
                values = (
                    values.reshape(heads, 2, -1, values.shape[1])
                    .swapaxes(1, 2)
                    .reshape(values.shape)
                )
            yield f"blk.{layer}.{NAMES[part]}.weight", values


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--type", choices=("F32", "BF16", "Q8_0", "Q4_0"), required=True)
    parser.add_argument("--damage", choices=get_args(Damage), default="none")
    parser.add_argument("--beginning", action="store_true")
    arguments = parser.parse_args()
    write(
        arguments.folder,
        arguments.file,
        arguments.type,
        arguments.damage,
        beginning=arguments.beginning,
    )
