"""The arithmetic of paging against figures worked out by hand, and what `kvscope plan` says to bad input."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.errors import ModelError, UsageError
from kvscope.inspector import cli, plan
from kvscope.inspector.reached import reached
from kvscope.inspector.shapes import ModelShape, model_shape

LLAMA = model_shape("llama-3-8b")
GIB = 1 << 30


def ask(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    assert cli.run(["plan", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refusal(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert cli.run(["plan", *map(str, words)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return str(err)


# -- the articles' numbers --------------------------------------------------------------------------------------------


def test_reservation_waste_at_32k(capsys: pytest.CaptureFixture[str]) -> None:
    rows = ask(capsys, "waste", "--max-len", "32k", "--lengths", "2k,6k,16k,30k")["rows"]
    assert [round(100 * row["waste"]) for row in rows] == [94, 81, 50, 6]


def test_the_budget_of_a_card(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask(
        capsys, "card", "--card", "80GiB", "--weights", "16GiB", "--activations", "4GiB", "--other", "2GiB",
        "--max-len", "32k", "--mean-len", "6k", "--model", "llama-3-8b",
    )  # fmt: skip
    assert (answer["reserved_capacity"], answer["paged_capacity"]) == (14, 77)
    assert answer["kv_memory"] == 58 * GIB
    gains = [point["gain"] for point in answer["curve"]]
    assert gains == sorted(gains, reverse=True), "the gain shrinks as the mean length grows"
    assert gains[-1] == 1.0


def test_bytes_per_token_and_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask(capsys, "pool", "--memory", "20GiB", "--layers", 32, "--kv-heads", 8, "--head-dim", 128,
                 "--dtype", "fp16", "--block-size", 16)  # fmt: skip
    assert answer["bytes_per_token"] == 128 * 1024
    assert answer["block_bytes"] == 2 << 20
    assert answer["num_blocks"] == 10_240
    # 20 GiB of 64 KiB are 327,680; an article rounds that to 320,000.
    assert ask(capsys, "pool", "--memory", "20GiB", "--layers", 1, "--kv-heads", 8, "--head-dim", 128,
               "--dtype", "fp16", "--block-size", 16)["num_blocks"] == 327_680  # fmt: skip


def test_sixteen_requests_of_a_7b() -> None:
    assert model_shape("llama-2-7b").bytes_per_token * 4096 * 16 == 32 * GIB


def test_a_short_request_and_the_two_block_sizes() -> None:
    (row,) = plan.waste(4096, [50], 16)
    assert (row.blocks, row.blocks * 16 - 50) == (4, 14)
    assert [round(plan.waste(4096, [150], size)[0].tail_waste, 4) for size in (16, 32)] == [0.0625, 0.0625]


def test_sharing_a_system_prompt_and_samples() -> None:
    found = plan.sharing(LLAMA, 2000, 100, 300)
    assert found.blocks_shared == 125 + 100 * (144 - 125)
    assert found.prefill_saved == 99 * 2000
    assert found.copies == 0
    samples = plan.sharing(LLAMA, 50, 8, 100, samples=True)
    assert (samples.blocks_shared, samples.copies) == (3 + 8 * (10 - 3), 7)
    assert plan.sharing(LLAMA, 10, 8, 100).worth.startswith("no")
    assert "nobody" in plan.sharing(LLAMA, 2000, 1, 100).worth
    assert plan.sharing(LLAMA, 16, 2, 100_000).worth.startswith("hardly")


# -- other attention --------------------------------------------------------------------------------------------------


def test_latent_attention_keeps_one_vector(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask(capsys, "pool", "--memory", "64GiB", "--layers", 61, "--latent-dim", 576, "--dtype", "bf16")
    assert answer["bytes_per_token"] == 61 * 576 * 2


def test_simulate_keeps_the_same_bytes_as_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"num_hidden_layers": 61, "num_attention_heads": 128, "hidden_size": 7168, "kv_lora_rank": 512,
              "qk_rope_head_dim": 64}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert cli.run(["simulate", "gen:requests=3", "--allocator", "paged", "--model", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["bytes_per_token"] == 61 * 576 * 2


def test_sharing_is_on_or_off_and_beams_share_their_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    for sharing in ("on", "off"):
        words = [
            "simulate",
            "gen:requests=4,prompt=500,output=40,beams=4",
            "--allocator",
            "paged",
            "--sharing",
            sharing,
        ]
        assert cli.run([*words, "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        found[sharing] = answer["rows"][0]["sharing_factor"]
        assert any("beams are counted as samples" in note for note in answer["workload"]["notes"])
    assert found["on"] > 2 > found["off"] == 1
    assert cli.run(["simulate", "gen:requests=4", "--sharing", "maybe"]) == 2
    assert cli.run(["simulate", "gen:beams=2,samples=2"]) == 2


def test_a_window_bounds_what_a_sequence_keeps() -> None:
    near = ModelShape("w", 2, 1, 64, 1 << 20, window=1024, window_layers=1)
    each = near.bytes_per_token_layer * 16
    assert plan.bytes_of(near, 512, 16) == 2 * 32 * each
    assert plan.bytes_of(near, 65_536, 16) == (4096 + 65) * each


@pytest.mark.parametrize(("heads", "ways", "left"), [(8, 1, 8), (8, 4, 2), (8, 16, 1), (1, 8, 1)])
def test_ranks_divide_heads(heads: int, ways: int, left: int) -> None:
    assert ModelShape("m", 4, heads, 64, 4096).split(ways).num_kv_heads == left


@pytest.mark.parametrize(
    ("config", "per_token"),
    [
        ({"num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 512}, 2 * 4 * 8 * 64 * 2),
        ({"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32}, 2 * 4 * 2 * 64),
        ({"n_layer": 12, "n_head": 12, "n_embd": 768}, 2 * 12 * 768 * 2),
        ({"num_hidden_layers": 61, "num_attention_heads": 128, "hidden_size": 7168, "kv_lora_rank": 512,
          "qk_rope_head_dim": 64}, 61 * 576 * 2),
        ({"text_config": {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}}, 2 * 2 * 64 * 2),
    ],
    ids=["multi-head", "grouped", "gpt-2", "latent", "multimodal"],
)  # fmt: skip
def test_config_json_of_any_decoder(tmp_path: Path, config: dict[str, Any], per_token: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert model_shape(str(tmp_path)).bytes_per_token == per_token


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"num_hidden_layers": -1}', '{"num_hidden_layers": "x"}', "[" * 9999]
)
def test_a_broken_config_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError) as raised:
        model_shape(str(tmp_path))
    assert "\n" not in str(raised.value)


# -- what always holds ------------------------------------------------------------------------------------------------


@given(st.integers(1, 1 << 17), st.integers(1, 1 << 17), st.sampled_from([1, 8, 16, 64]))
def test_paging_never_holds_fewer(mean: int, limit: int, block_size: int) -> None:
    limit = -(-max(mean, limit) // block_size) * block_size
    found = plan.capacity(58 * GIB, LLAMA, limit, mean, block_size)
    assert found.paged >= found.reserved


@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=30))
def test_the_recommended_size_is_one_of_the_rows(lengths: list[int]) -> None:
    rows = plan.block_sizes(LLAMA, lengths)
    assert [row.entries for row in rows] == sorted((row.entries for row in rows), reverse=True)
    best, why = plan.recommend(rows)
    assert best in rows
    assert why


def test_short_requests_want_small_blocks_and_long_ones_large() -> None:
    assert plan.recommend(plan.block_sizes(LLAMA, [50]))[0].block_size == 8
    assert plan.recommend(plan.block_sizes(LLAMA, [6 * 1024], mean=True))[0].block_size == 64


def test_the_gap_between_theory_and_reached_is_attributed() -> None:
    with pytest.raises(UsageError, match="sliding windows"):
        list(reached(8 * GIB, replace(LLAMA, window=64, window_layers=32), 8192, 2048))
    many = list(reached(8 * GIB, LLAMA, 8192, 256, requests=2000))
    assert many[1].concurrency > 0.9 * many[0].concurrency == 0.9 * 256, "no limit of its own is taken for scheduling"
    rows = list(reached(8 * GIB, LLAMA, 8192, 2048, requests=120))
    assert rows[0].concurrency == 32
    assert rows[-1].concurrency < rows[0].concurrency
    assert sum(row.lost for row in rows) == pytest.approx(rows[0].concurrency - rows[-1].concurrency)


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("waste --max-len 2k --lengths 4k", "length 4,096 is outside 1..2,048"),
        ("waste --max-len 0 --lengths 1", "max-len is '0'"),
        ("waste --max-len 32k --lengths a,b", "lengths is 'a'"),
        ("card --max-len 2k --mean-len 1k --model smollm2", "either --kv-memory, or --card"),
        ("card --max-len 2k --mean-len 4k --model smollm2 --kv-memory 1GiB", "mean-len is 4,096: must be 1..2,048"),
        ("card --card 8GiB --weights 9GiB --max-len 2k --mean-len 1k --model smollm2", "nothing is left for KV"),
        ("card --kv-memory 8GiB --weights 9GiB --max-len 2k --mean-len 1k --model smollm2", "--weights is a part"),
        ("pool --memory 1KiB --model llama-3-8b", "hold no block"),
        ("pool --memory lots --model llama-3-8b", "'lots' is not a size"),
        ("pool --memory 1GiB", "give --model, or --layers"),
        ("pool --memory 1GiB --model nope", "no model 'nope'"),
        ("pool --memory 1GiB --model smollm2 --dtype x", "dtype is 'x'"),
        ("pool --memory 1GiB --model smollm2 --layers 0", "num_layers is 0"),
        ("pool --memory 1GiB --model llama-3-8b --tensor-parallel 3", "do not divide over 3 ranks"),
        ("pool --memory 1GiB --model llama-3-8b --block-size 0", "block-size is 0"),
        ("card --max-len 2k --mean-len 1k --model smollm2 --kv-memory 1GiB --lengths 4k", "length 4,096 is above"),
        ("card --max-len 2k --mean-len 1k --model smollm2 --kv-memory 1GiB --lengths ,", "lengths is ''"),
        ("sharing --prefix 10 --sequences 0 --tail 5 --model smollm2", "sequences is 0"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], words: str, says: str) -> None:
    assert says in refusal(capsys, *words.split())


def test_a_size_out_of_range() -> None:
    with pytest.raises(UsageError):
        plan.pool(0, LLAMA, 16)
