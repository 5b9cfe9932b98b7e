"""Every damaged or unsupported model is refused in one clear line."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.engine.model.config import ModelConfig, config_from_folder, config_from_gguf
from kvscope.engine.model.gguf import GgufFile
from kvscope.engine.model.load import load_model
from kvscope.errors import KVScopeError, ModelError

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}


def refusal(call: Callable[[], object]) -> str:
    """The one line that a call is refused with."""
    with pytest.raises(ModelError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model that a test may damage."""
    return Path(shutil.copytree(tiny_folder, tmp_path / "model"))


def change_json(path: Path, **values: Any) -> None:
    """Set keys of a JSON file; ... removes one."""
    content = json.loads(path.read_text())
    for key, value in values.items():
        if value is ...:
            content.pop(key, None)
        else:
            content[key] = value
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"model_type": "gemma3"}, "architecture 'gemma3' is not supported; Llama-family (llama, mistral, qwen2) only"),
        ({"model_type": ...}, "names no architecture"),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 64}, "window of 64 tokens"),
        ({"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 32}, "window of 32 tokens"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"mlp_bias": True}, "a bias in the MLP"),
        ({"quantization_config": {"quant_method": "awq"}}, "a quantised checkpoint"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope scaling 'yarn'"),
        ({"rope_parameters": ..., "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope scaling 'dynamic'"),
        ({"rope_parameters": {"rope_type": "linear"}}, "its config has no 'factor'"),
        ({"rope_parameters": [1]}, "rope settings are [1]"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "rotary embedding of a part"),
        ({"hidden_size": ...}, "has no 'hidden_size'"),
        ({"hidden_size": "64"}, "'hidden_size' is '64'; expected one number"),
        ({"num_hidden_layers": 0}, "num_layers is 0; it must be at least 1"),
        ({"num_hidden_layers": -3}, "num_layers is -3"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3 key-value heads"),
        ({"head_dim": 15}, "head_dim is 15; rotary embedding needs an even number"),
        ({"rms_norm_eps": -1.0}, "rms_eps is -1.0; it must be a positive number"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0}}, "factor is 0.0; it must be a positive number"),
        (
            {"rope_parameters": {**LLAMA3, "low_freq_factor": 4.0, "high_freq_factor": 4.0}},
            "is contradictory; the config is corrupt",
        ),
        ({"eos_token_id": "stop"}, "end-of-text id 'stop' is not a number"),
        ({"num_hidden_layers": 3}, "9 tensors are missing"),
        ({"num_hidden_layers": 1}, "9 tensors are unknown to a 1-layer llama"),
        ({"intermediate_size": 128}, "mlp.gate_proj.weight has shape (96, 64), its config asks for (128, 64)"),
        ({"tie_word_embeddings": False}, "lm_head.weight is missing"),
        ({"attention_bias": True}, "tensors are missing"),
    ],
)
def test_folder_configs(values: dict[str, Any], says: str, folder: Path) -> None:
    change_json(folder / "config.json", **values)
    assert says in refusal(lambda: load_model(folder))


def test_mistral_without_a_word_about_its_window_has_one(folder: Path) -> None:
    change_json(folder / "config.json", model_type="mistral", sliding_window=..., max_position_embeddings=32768)
    assert config_from_folder(folder).window == 4096
    change_json(folder / "config.json", sliding_window=40000)
    assert config_from_folder(folder).window == 0, "a window as long as the context is none"
    change_json(folder / "config.json", sliding_window=128)
    assert config_from_folder(folder).window == 128


def test_end_of_text_ids_come_from_both_files(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 257]}))
    assert config_from_folder(folder).eos_ids == (257, 5)


def test_broken_json(folder: Path) -> None:
    for text, says in [
        ("", "is not valid JSON"),
        ("{", "is not valid JSON"),
        ("[" * 200_000, "nested too deeply"),
        ("[1]", "expected a JSON object"),
    ]:
        (folder / "config.json").write_text(text)
        assert says in refusal(lambda: load_model(folder))
    (folder / "config.json").write_bytes(b"\xff\xfe")
    assert "is not valid JSON" in refusal(lambda: load_model(folder))


@pytest.mark.parametrize("keep", [0, 5, 8, 200, 0.5, -1])
def test_truncated_safetensors(keep: float, folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    size = int(len(whole) * keep) if isinstance(keep, float) else keep % len(whole)
    path.write_bytes(whole[:size])
    message = refusal(lambda: load_model(folder))
    assert "truncated" in message
    assert f"the file is {size:,} bytes" in message
    if size > len(whole) // 3:
        assert f"its tensors need {len(whole):,}" in message


def test_odd_safetensors(folder: Path) -> None:
    path = folder / "model.safetensors"
    for content, says in [
        (b"\xff" * 64, "not a safetensors file"),
        (struct.pack("<Q", 4) + b"[12]", "header cannot be understood"),
        (struct.pack("<Q", 4) + b"\xff\xff\xff\xff", "header cannot be understood"),
        (struct.pack("<Q", 14) + b'{"a":{"b":[]}}', "header cannot be understood"),
    ]:
        path.write_bytes(content)
        assert says in refusal(lambda: load_model(folder))
    header = json.dumps({"a": {"dtype": "I32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    assert "stored as I32" in refusal(lambda: load_model(folder))


def test_folders_without_their_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "pickled weights" in refusal(lambda: load_model(folder))
    (folder / "pytorch_model.bin").unlink()
    assert "no *.safetensors file" in refusal(lambda: load_model(folder))


def test_shard_indices(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    for mapping, says in [
        ({"model.norm.weight": "absent.safetensors"}, "lacks 1 of 1 shards (first: absent.safetensors)"),
        ({"model.norm.weight": "../model.safetensors"}, "not a file name of this folder"),
        ({"model.norm.weight": 5}, "not a file name of this folder"),
        ({"extra.weight": "model.safetensors"}, "has no tensor extra.weight"),
        ({}, "no weight_map"),
    ]:
        index.write_text(json.dumps({"weight_map": mapping}))
        assert says in refusal(lambda: load_model(folder))


def test_tokenizer_larger_than_the_model(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    last = max(token["id"] for token in tokenizer["added_tokens"])
    for extra in range(10):
        token = {**tokenizer["added_tokens"][-1], "id": last + 1 + extra, "content": f"<|extra{extra}|>"}
        tokenizer["added_tokens"].append(token)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "but its embeddings 288 rows" in refusal(lambda: load_model(folder))


def small_gguf(path: Path, change: Callable[[gguf.GGUFWriter], None] = lambda writer: None) -> Path:
    """A GGUF file with a header and three tensors: enough to read, not to run."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    change(writer)
    writer.add_tensor("token_embd.weight", np.zeros((16, 32), np.float32))
    rows = gguf.quants.quantize(np.ones((32, 32), np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("blk.0.attn_q.weight", rows, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_vocabulary(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*"abcdefgh", "ab", "abc", "<|begin|>", "<|end|>"])
    writer.add_token_types([1] * 10 + [3, 3])
    writer.add_token_merges(["a b", "ab c"])
    writer.add_bos_token_id(10)
    writer.add_eos_token_id(11)
    writer.add_add_bos_token(True)
    writer.add_chat_template("{{ messages[0].content }}")


def add_everything(writer: gguf.GGUFWriter) -> None:
    """With what `small_gguf` adds: a complete model."""
    add_vocabulary(writer)
    for name, shape in {
        "output_norm": (32,),
        "blk.0.attn_norm": (32,),
        "blk.0.ffn_norm": (32,),
        "blk.0.attn_k": (16, 32),
        "blk.0.attn_v": (16, 32),
        "blk.0.attn_output": (32, 32),
        "blk.0.ffn_gate": (64, 32),
        "blk.0.ffn_up": (64, 32),
        "blk.0.ffn_down": (32, 64),
    }.items():
        writer.add_tensor(name + ".weight", np.ones(shape, np.float32))
    writer.add_tensor("rope_freqs.weight", np.ones(4, np.float32))


def read_config(path: Path) -> ModelConfig:
    file = GgufFile(path)
    return config_from_gguf("small", file.fields, file.shapes)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda w: w.add_expert_count(8), "a mixture of experts"),
        (lambda w: w.add_sliding_window(16), "sliding attention window of 16 tokens in a context of 64"),
        (lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN), "rope scaling 'yarn'"),
        (lambda w: w.add_rope_dimension_count(4), "rope.dimension_count 4 beside a head of 8"),
        (lambda w: w.add_value_length(4), "attention.value_length 4 beside a head of 8"),
        (lambda w: w.add_array("llama.rope.freq_base", [1.0, 2.0]), "expected one number"),
        (lambda w: w.add_uint16("split.count", 3), "one of 3 parts"),
        (lambda w: w.add_float32("llama.rope.freq_base", 0.0), "rope_theta is 0.0; it must be a positive number"),
    ],
)
def test_gguf_configs(change: Callable[[gguf.GGUFWriter], None], says: str, tmp_path: Path) -> None:
    path = small_gguf(tmp_path / "small.gguf", change)
    assert says in refusal(lambda: read_config(path))


def test_gguf_values(tmp_path: Path) -> None:
    def linear(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)
        writer.add_eot_token_id(9)
        writer.add_eos_token_id(7)
        writer.add_sliding_window(64)

    config = read_config(small_gguf(tmp_path / "small.gguf", linear))
    assert config.rope_scaling is not None
    assert (config.rope_scaling.kind, config.rope_scaling.factor) == ("linear", 4.0)
    assert config.eos_ids == (7, 9)
    assert (config.vocab_size, config.head_dim, config.rope_theta) == (16, 8, 10000.0)


def test_other_gguf_architectures() -> None:
    message = refusal(lambda: config_from_gguf("m", {"general.architecture": "gemma3"}, {}))
    assert message == "model m: architecture 'gemma3' is not supported; Llama-family (llama, mistral, qwen2) only"


def test_gguf_without_embeddings(tmp_path: Path) -> None:
    fields = GgufFile(small_gguf(tmp_path / "small.gguf")).fields
    assert "token_embd.weight is missing" in refusal(lambda: config_from_gguf("m", fields, {}))


def test_gguf_with_missing_tensors(tmp_path: Path) -> None:
    message = refusal(lambda: load_model(small_gguf(tmp_path / "small.gguf", add_vocabulary)))
    assert "9 tensors are missing (first: model.norm.weight)" in message


def test_truncated_gguf_says_what_is_short(tmp_path: Path) -> None:
    path = small_gguf(tmp_path / "small.gguf")
    whole = path.read_bytes()
    tail = len(whole) - len(whole.rstrip(b"\x00"))  # the writer pads the end
    path.write_bytes(whole[:-200])
    message = refusal(lambda: GgufFile(path))
    assert f"the file is {len(whole) - 200:,} bytes but its tensors need" in message
    assert tail < 200
    for size in range(0, 700, 7):
        path.write_bytes(whole[:size])
        message = refusal(lambda: GgufFile(path))
        assert any(word in message for word in ("truncated", "empty", "not a GGUF file"))


@pytest.mark.model
def test_truncated_smollm2(smollm2_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "short.gguf"
    with smollm2_path.open("rb") as file:
        path.write_bytes(file.read(5_000_000))
    assert refusal(lambda: load_model(path)) == (
        f"{path} is truncated: the file is 5,000,000 bytes but its tensors need 98,362,432; fetch it again"
    )


def test_not_gguf(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    for content, says in [
        (b"PK\x03\x04 a zip file", "is not a GGUF file: it begins with b'PK"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(64), "GGUF version 1"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(64), "or big endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "truncated or corrupt"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 62), "truncated or corrupt"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<QcI", 1, b"k", 99), "value type 99"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q2sI", 2, b"\xff\xff", 4), "is not UTF-8"),
        (b"", "is empty"),
    ]:
        path.write_bytes(content)
        assert says in refusal(lambda: GgufFile(path))


def test_quantisation_that_cannot_be_undone(tmp_path: Path) -> None:
    def integers(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("blk.0.odd", np.zeros((2, 32), np.int32))

    file = GgufFile(small_gguf(tmp_path / "small.gguf", integers))
    assert "blk.0.odd is stored as I32, which is not supported" in refusal(lambda: file.read("blk.0.odd"))


def test_complete_small_gguf_loads(tmp_path: Path) -> None:
    loaded = load_model(small_gguf(tmp_path / "small.gguf", add_everything))
    assert loaded.config.rope_scaling is not None
    assert loaded.tokenizer.encode("abca", add_special=True) == [10, 9, 0]


def test_rope_factors_of_another_number(tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        add_everything(writer)
        del writer.tensors[-1]["rope_freqs.weight"]
        writer.add_tensor("rope_freqs.weight", np.ones(5, np.float32))

    path = small_gguf(tmp_path / "small.gguf", change)
    assert "rope_freqs are not one for each of 4 frequencies" in refusal(lambda: load_model(path))


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_gguf(tmp_path_factory.mktemp("gguf") / "complete.gguf", add_everything)


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_flipped_bytes_never_escape_as_other_errors(seed: int, complete: Path) -> None:
    draw, content = random.Random(seed), bytearray(complete.read_bytes())
    header_bytes = min(tensor.start for tensor in GgufFile(complete).tensors.values())
    for _ in range(draw.randrange(1, 4)):
        content[draw.randrange(4, header_bytes)] = draw.choice([0, 1, 2, 0x7F, 0x80, 0xFF, draw.randrange(256)])
    path = complete.with_name("flipped.gguf")
    path.write_bytes(content)
    message = ""
    try:
        load_model(path)
    except KVScopeError as error:
        message = str(error)
    assert "\n" not in message


def test_read_errors_name_the_file(tmp_path: Path) -> None:
    assert "No such file" in refusal(lambda: GgufFile(tmp_path / "absent.gguf"))
