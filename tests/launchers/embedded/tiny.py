"""A tiny random Llama in the layout of the hub, and a plain forward pass.

The pass has no cache and no batch, and calculates in float64.
"""

import json

import numpy as np

WIDTH, LAYERS, HEADS, INNER, WINDOW = 16, 2, 2, 24, 300
MARKS = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}<|end|>\n{%"
    " endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
VOCABULARY = len(MARKS) + 256


def write(folder, seed=0):
    """Write config.json, model.safetensors, tokenizer.json and tokenizer_config.json.

    Every byte is a token.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "max_position_embeddings": WINDOW,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "eos_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", tensors(seed))
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    chars = [*map(chr, plain), *(chr(256 + i) for i in range(256 - len(plain)))]
    vocab = {text: i for i, text in enumerate([*MARKS, *chars])}
    added = [{"id": i, "content": mark} for i, mark in enumerate(MARKS)]
    tokenizer = {"added_tokens": added, "model": {"type": "BPE", "vocab": vocab, "merges": []}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder


def tensors(seed):
    """Return random weights, large enough to spread the results."""
    rng = np.random.default_rng(seed)

    def random(*shape, scale):
        return rng.normal(0, scale, shape).astype(np.float32)

    found = {"model.embed_tokens.weight": random(VOCABULARY, WIDTH, scale=1.0)}
    found["model.norm.weight"] = 1 + random(WIDTH, scale=0.1)
    for i in range(LAYERS):
        for name, rows, columns in (
            *((f"self_attn.{n}_proj", WIDTH, WIDTH) for n in "qkvo"),
            ("mlp.gate_proj", INNER, WIDTH),
            ("mlp.up_proj", INNER, WIDTH),
            ("mlp.down_proj", WIDTH, INNER),
        ):
            found[f"model.layers.{i}.{name}.weight"] = random(rows, columns, scale=columns**-0.5)
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"model.layers.{i}.{name}.weight"] = 1 + random(WIDTH, scale=0.1)
    return found


def write_safetensors(path, found, dtype="F32"):
    """Write the format of the hub: the length of a header, the header, the values."""
    header = {"__metadata__": {"format": "pt"}}
    raw = b""
    for name, tensor in found.items():
        part = (
            tensor.tobytes()
            if dtype == "F32"
            else (tensor.view("<u4") >> 16).astype("<u2").tobytes()
        )
        header[name] = {
            "dtype": dtype,
            "shape": tensor.shape,
            "data_offsets": [len(raw), len(raw) + len(part)],
        }
        raw += part
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw)


def logits(found, ids):
    """Return the logits after each token (tokens x vocabulary)."""
    weights = {name: tensor.astype(np.float64) for name, tensor in found.items()}
    embedding, size = weights["model.embed_tokens.weight"], WIDTH // HEADS
    x, count = embedding[list(ids)], len(ids)
    angles = np.outer(np.arange(count), 10000.0 ** (-np.arange(size // 2) / (size // 2)))
    cos, sin = np.cos(angles), np.sin(angles)

    def normed(x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight

    def turned(x):
        a, b = x[:, : size // 2], x[:, size // 2 :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=1)

    for i in range(LAYERS):
        of = {name: weights[f"model.layers.{i}.{name}.weight"] for name in _NAMES}
        h = normed(x, of["input_layernorm"])
        heads = []
        for n in range(HEADS):
            q, k, v = (h @ of[f"self_attn.{c}_proj"][n * size : (n + 1) * size].T for c in "qkv")
            scores = turned(q) @ turned(k).T / size**0.5
            scores[np.triu_indices(count, 1)] = -np.inf
            shares = np.exp(scores - scores.max(1, keepdims=True))
            heads.append(shares / shares.sum(1, keepdims=True) @ v)
        x = x + np.concatenate(heads, axis=1) @ of["self_attn.o_proj"].T
        h = normed(x, of["post_attention_layernorm"])
        gate = h @ of["mlp.gate_proj"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ of["mlp.up_proj"].T)) @ of["mlp.down_proj"].T
    return np.asarray(normed(x, weights["model.norm.weight"]) @ embedding.T)


_NAMES = (
    "input_layernorm",
    "post_attention_layernorm",
    *(f"self_attn.{n}_proj" for n in "qkvo"),
    *(f"mlp.{n}_proj" for n in ("gate", "up", "down")),
)
