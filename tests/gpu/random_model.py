"""Write a Llama with random weights in the layout of the hub.

    PYTHON random_model.py FOLDER TOKENIZER [--small]

TOKENIZER is a folder that has one. The model has about 1.1 billion parameters in bfloat16, with
--small about a million, for a CPU. Needs torch and transformers.
"""

import shutil
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

FILES = ("tokenizer.json", "tokenizer_config.json")

if __name__ == "__main__":
    folder, tokenizer, small = Path(sys.argv[1]), Path(sys.argv[2]), "--small" in sys.argv[3:]
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=LlamaConfig.from_pretrained(tokenizer).vocab_size,
        hidden_size=128 if small else 2048,
        intermediate_size=352 if small else 5632,
        num_hidden_layers=4 if small else 22,
        num_attention_heads=4 if small else 16,
        num_key_value_heads=4 if small else 16,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=0,
        pad_token_id=0,
        bos_token_id=None,
    )
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    for name in FILES:
        shutil.copy(tokenizer / name, folder / name)
