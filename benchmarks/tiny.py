"""A random model small enough that what is around it shows: 2 layers, 4 heads on 2, head 16, 512 positions."""

from __future__ import annotations

import json
from pathlib import Path

VOCAB, HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD = 288, 64, 96, 2, 4, 2, 16
CONTEXT = 512


def tiny_model(folder: Path, seed: int = 7) -> Path:
    """Write it, with a byte-level tokenizer, as a folder of config.json and safetensors; returns the folder."""
    import torch
    from safetensors.torch import save_file
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    folder.mkdir(parents=True, exist_ok=True)
    random = torch.Generator().manual_seed(seed)

    def weights(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random) * 0.2

    tensors = {"model.embed_tokens.weight": weights(VOCAB, HIDDEN), "model.norm.weight": torch.ones(HIDDEN)}
    for layer in range(LAYERS):
        front = f"model.layers.{layer}"
        for name, shape in (
            ("self_attn.q_proj", (HEADS * HEAD, HIDDEN)), ("self_attn.k_proj", (KV_HEADS * HEAD, HIDDEN)),
            ("self_attn.v_proj", (KV_HEADS * HEAD, HIDDEN)), ("self_attn.o_proj", (HIDDEN, HEADS * HEAD)),
            ("mlp.gate_proj", (INNER, HIDDEN)), ("mlp.up_proj", (INNER, HIDDEN)), ("mlp.down_proj", (HIDDEN, INNER)),
        ):  # fmt: skip
            tensors[f"{front}.{name}.weight"] = weights(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{front}.{name}.weight"] = torch.ones(HIDDEN)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB, "hidden_size": HIDDEN,
        "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": True, "bos_token_id": 256,
        "eos_token_id": 257, "torch_dtype": "float32",
    }))  # fmt: skip
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    text = ["the cat and the dog sat on the mat", "a page, a block, a table of blocks"] * 4
    trainer = trainers.BpeTrainer(vocab_size=286, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)  # fmt: skip
    tokenizer.train_from_iterator(text, trainer)
    tokenizer.add_tokens([AddedToken("<|begin|>", special=True), AddedToken("<|end|>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
