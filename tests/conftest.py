"""Fixtures that more than one suite needs: the embedded model, a tiny random one, recorded traces."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Nothing in the tests may ask a model hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Read when torch is imported. Threads that spin while they wait make a matrix product up to twenty times slower
# on a machine whose cores are all busy.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


# Files that take long in one piece: begun first, so that no worker is left with one of them at the end.
LONG = frozenset(
    {
        "test_kernels_compile.py", "test_kernels_interpreter.py", "test_model_smollm2.py", "test_serve_hostile.py",
        "test_cli.py", "test_docs.py", "test_faults_real.py", "test_parity.py",
    }
)  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough", action="store_true", help="no sampling where the usual run samples (minutes more)")
    parser.addoption("--python", action="store_true", help="without the part of KVScope that is written in C")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background job; children would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--python"):
        from kvscope.traces import compiled

        compiled.use(False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG)


def pytest_make_parametrize_id(val: object) -> str | None:
    """No test is named after bytes: what makes them (gzip) may put the time in, and workers must agree on names."""
    return f"{len(val)} bytes" if isinstance(val, bytes) and len(val) > 24 else None


@pytest.fixture(scope="session")
def toy_engine() -> ModuleType:
    """`tests/toy_engine.py`: the engine without a model, for real traces in milliseconds."""
    return _beside("toy_engine")


@pytest.fixture(scope="session")
def served_engine() -> ModuleType:
    """`tests/served_engine.py`: a server over a real engine, in this process."""
    return _beside("served_engine")


@pytest.fixture(scope="session")
def promql() -> ModuleType:
    """`tests/promql.py`: the queries of docs/monitoring, evaluated over scrapes."""
    return _beside("promql")


def _beside(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def toy_traces(toy_engine: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two recorded runs of the toy engine: `clean`, and `missing-copy`, whose copies on write are forgotten."""
    folder = tmp_path_factory.mktemp("traces")
    return {"clean": toy_engine.record(folder), "missing-copy": toy_engine.record(folder, faulty=True)}


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The embedded model's file, fetched if need be; without it the tests that need it fail."""
    from kvscope.engine.model import registry

    return registry.get("smollm2")


@pytest.fixture(scope="session")
def smollm2_reference(smollm2_path: Path) -> PreTrainedModel:
    """The embedded model in transformers, fp32, read by transformers' own GGUF code."""
    from kvscope.benchmarks.peers import transformers_model

    return transformers_model(smollm2_path)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random 2-layer Llama (4 heads on 2, head 16, 512 positions) and a byte-level tokenizer."""
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=288,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.2,
        bos_token_id=256,
        eos_token_id=257,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    text = ["the cat and the dog sat on the mat", "a page, a block, a table of blocks"] * 4
    tokenizer.train_from_iterator(text, trainers.BpeTrainer(vocab_size=286, initial_alphabet=alphabet))
    tokenizer.add_tokens([AddedToken("<|begin|>", special=True), AddedToken("<|end|>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
