"""Other programs that the benchmarks and the parity tests compare with."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def transformers_model(path: Path) -> PreTrainedModel:
    """A GGUF file as transformers' fp32 model, read by transformers' own GGUF code, without a model hub."""
    import gguf

    # It reads the file for the configuration and again for the tensors, and asks each module for the same names.
    with (
        mock.patch.object(gguf, "GGUFReader", functools.cache(gguf.GGUFReader)),
        mock.patch.object(gguf, "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map)),
    ):
        return _read(path)


def _read(path: Path) -> PreTrainedModel:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    # What from_pretrained(gguf_file=...) does, without the accelerate package that it asks for.
    checkpoint = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)
    missing, unexpected = model.load_state_dict(checkpoint["tensors"], strict=False)
    assert set(missing) <= {"lm_head.weight"}  # tied to the embeddings
    assert not unexpected
    assert model.lm_head.weight is model.model.embed_tokens.weight
    return model
