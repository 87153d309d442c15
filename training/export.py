"""Export a training: bf16 weights, tokenizer, config and chat template in Hugging Face's layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from training import network
from training.documents import END, TEMPLATE


def save(folder: Path, parameters: network.Parameters, tokenizer: Tokenizer) -> None:
    """Write the folder of a model that transformers and other readers of its layout can load."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.detach().to(torch.bfloat16).contiguous()
        for name, tensor in named(parameters).items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(folder / "tokenizer.json"))
    end = tokenizer.token_to_id(END)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": network.VOCABULARY,
        "hidden_size": network.WIDTH,
        "intermediate_size": network.INNER,
        "num_hidden_layers": network.LAYERS,
        "num_attention_heads": network.HEADS,
        "num_key_value_heads": network.HEADS,
        "head_dim": network.SIZE,
        "hidden_act": "silu",
        "max_position_embeddings": network.WINDOW,
        "rms_norm_eps": network.EPS,
        "rope_theta": network.THETA,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "bos_token_id": None,
        "eos_token_id": end,
        "pad_token_id": end,
        "torch_dtype": "bfloat16",
    }
    words = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": END,
        "model_max_length": network.WINDOW,
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }
    _json(folder / "config.json", config)
    _json(
        folder / "generation_config.json",
        {"eos_token_id": end, "pad_token_id": end, "do_sample": False},
    )
    _json(folder / "tokenizer_config.json", words)


def named(p: network.Parameters) -> dict[str, Tensor]:
    """Return the parameters by the names that Hugging Face uses for a Llama."""
    found = {"model.embed_tokens.weight": p["embed"], "model.norm.weight": p["norms"][-1]}
    for i in range(network.LAYERS):
        q, k, v = p["qkv"][i].chunk(3)
        gate, up = p["gate_up"][i].chunk(2)
        layer = {
            "input_layernorm": p["norms"][2 * i],
            "post_attention_layernorm": p["norms"][2 * i + 1],
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.o_proj": p["o"][i],
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": p["down"][i],
        }
        found |= {f"model.layers.{i}.{name}.weight": tensor for name, tensor in layer.items()}
    return found


def _json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
