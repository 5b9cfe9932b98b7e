"""Workload readers: what the published formats mean, and one clear line for every way they can be broken."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from kvscope.errors import UsageError
from kvscope.inspector.workloads import Workload, open_workload
from kvscope.inspector.workloads.objects import estimate_tokens
from kvscope.inspector.workloads.request import output_token, prompt_tokens

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def read(folder: Path, text: str | bytes, name: str = "w.csv", **more: Any) -> Workload:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return open_workload(str(path), **more)


def jsonl(*records: Any) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def mooncake(stamp: int, prompt: int, output: int, ids: list[int]) -> dict[str, Any]:
    return {"timestamp": stamp, "input_length": prompt, "output_length": output, "hash_ids": ids}


# -- Azure ----------------------------------------------------------------------------------------------------------

ROWS = AZURE + "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"


def test_azure_rows_and_seven_fraction_digits(tmp_path: Path) -> None:
    work = read(tmp_path, ROWS)
    assert work.kind == "azure"
    assert [(r.arrival_ns, r.prompt, r.output, r.row) for r in work.requests] == [
        (0, 374, 44, 2), (4_314_579_000, 396, 109, 3)
    ]  # fmt: skip
    assert not work.names_prefixes


@pytest.mark.parametrize(
    "text",
    [
        b"\xef\xbb\xbf" + ROWS.encode(),
        gzip.compress(ROWS.encode()),
        ROWS.replace("\n", "\r\n").encode(),
        (ROWS + "\n").encode(),
        ROWS.replace("600", "600+00:00").replace("690", "690+00:00").encode(),
    ],
    ids=["bom", "gz", "crlf", "blank line", "2024 offsets"],
)
def test_azure_in_other_clothes(tmp_path: Path, text: bytes) -> None:
    assert [r.prompt for r in read(tmp_path, text).requests] == [374, 396]


def test_a_limit_reads_the_first_requests_only(tmp_path: Path) -> None:
    assert len(read(tmp_path, ROWS + "broken\n", limit=2).requests) == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "w.csv is empty"),
        ("\n\n", "w.csv is empty"),
        (AZURE, "has no requests"),
        ("TIMESTAMP,ContextTokens\n1,2\n", "w.csv:1: columns timestamp, contexttokens: wanted"),
        (AZURE + "2023-11-16 18:15:46,374\n", "w.csv:2: 2 columns of 3"),
        (AZURE + "yesterday,374,44\n", "w.csv:2: TIMESTAMP is 'yesterday'"),
        (AZURE + "2023-11-16 18:15:46,many,44\n", "w.csv:2: ContextTokens is 'many'"),
        (AZURE + "2023-11-16 18:15:46,-5,44\n", "w.csv:2: a prompt of -5 tokens: must be 1.."),
        (AZURE + "2023-11-16 18:15:46,0,44\n", "w.csv:2: a prompt of 0 tokens"),
        (AZURE + "2023-11-16 18:15:46,5,1000000000\n", "w.csv:2: an output of 1,000,000,000 tokens"),
        (ROWS + "2023-11-16 18:15:49,5,5\n", "w.csv:4: comes 1.995 s before the request above it; sort the file"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
        pytest.param(gzip.compress(ROWS.encode())[:-12], "is damaged", id="torn gzip"),  # its bytes hold the time
        (BURST + "soon,ChatGPT,5,5,10,API log\n", "w.csv:2: Timestamp is 'soon'"),
    ],
)
def test_a_broken_table_is_one_line_with_its_number(tmp_path: Path, text: str | bytes, says: str) -> None:
    with pytest.raises(UsageError) as raised:
        read(tmp_path, text)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


# -- BurstGPT -------------------------------------------------------------------------------------------------------


def test_burstgpt_leaves_failed_requests_out(tmp_path: Path) -> None:
    work = read(
        tmp_path, BURST + "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,9,0,9,API log\n60.5,GPT-4,30,4,34,API log\n"
    )
    assert work.kind == "burstgpt"
    assert [(r.arrival_ns, r.prompt, r.output) for r in work.requests] == [(0, 472, 18), (55_500_000_000, 30, 4)]
    assert work.notes == ["1 requests without a response (failed) are left out"]


# -- Mooncake -------------------------------------------------------------------------------------------------------


def test_mooncake_ids_are_shared_text(tmp_path: Path) -> None:
    work = read(tmp_path, jsonl(mooncake(0, 1030, 5, [0, 1, 2]), mooncake(10, 1025, 5, [0, 1, 3])), "m.jsonl")
    first, second = (prompt_tokens(r, i) for i, r in enumerate(work.requests))
    assert (len(first), len(second)) == (1030, 1025)
    assert first[:1024] == second[:1024]
    assert first[1024] != second[1024]
    assert len(set(first)) == 1030
    assert work.names_prefixes


def test_mooncake_requests_of_one_stamp_are_spread(tmp_path: Path) -> None:
    records = [mooncake(stamp, 10, 1, [i]) for i, stamp in enumerate((0, 0, 0, 3000, 3000))]
    work = read(tmp_path, jsonl(*records), "m.jsonl")
    assert [r.arrival_ns // 10**6 for r in work.requests] == [0, 1000, 2000, 3000, 3000]
    assert "2 requests share a time stamp" in work.notes[0]


def test_requests_without_output_run_as_one_token(tmp_path: Path) -> None:
    work = read(tmp_path, jsonl(mooncake(0, 10, 0, [1])), "m.jsonl")
    assert work.requests[0].output == 1
    assert "1 requests have no output" in work.notes[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (jsonl(mooncake(0, 10, 1, [1])) + "{broken\n", "m.jsonl:2: not JSON"),
        (jsonl(mooncake(0, 1030, 1, [1, 2])), "m.jsonl:1: 2 hash_ids for 1,030 tokens: wanted 3"),
        (jsonl(mooncake(0, 10, 1, [-1])), "m.jsonl:1: hash_ids: wanted a list of whole numbers"),
        (jsonl({"timestamp": 0, "input_length": 5}), "m.jsonl:1: output_length is missing"),
        (jsonl({**mooncake(0, 5, 1, [1]), "timestamp": "x"}), "m.jsonl:1: timestamp is 'x'"),
        (jsonl({**mooncake(0, 5, 1, [1]), "input_length": 5.5}), "m.jsonl:1: input_length is 5.5"),
        (jsonl(mooncake(9, 5, 1, [1]), mooncake(3, 5, 1, [1])), "m.jsonl:2: comes 0.006 s before"),
        (jsonl({"prompt": "x"}), "m.jsonl:1: wanted objects with"),
        (jsonl(mooncake(0, 10, 1, [1]), [1]), "m.jsonl:2: wanted an object"),
        ("[" * 100_000, "m.jsonl:1: not JSON"),
    ],
)
def test_a_broken_object_is_one_line_with_its_number(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError) as raised:
        read(tmp_path, text, "m.jsonl")
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


# -- ShareGPT -------------------------------------------------------------------------------------------------------

CHAT = {"id": "a", "conversations": [
    {"from": "system", "value": "be kind"}, {"from": "human", "value": "one two three"},
    {"from": "gpt", "value": "four five"}, {"from": "user", "value": "six"}, {"from": "assistant", "value": "seven"},
]}  # fmt: skip


def test_sharegpt_answers_become_requests_behind_a_growing_prefix(tmp_path: Path) -> None:
    work = read(tmp_path, json.dumps([CHAT]), "s.json", count_tokens=lambda text: len(text.split()))
    assert [(r.prompt, r.output, r.arrival_ns // 10**9) for r in work.requests] == [(5, 2, 0), (8, 1, 60)]
    first, second = (prompt_tokens(r, i) for i, r in enumerate(work.requests))
    answer = [output_token(work.requests[0], 0, 0, i) for i in range(2)]
    assert second[:7] == first + answer


def test_sharegpt_without_a_tokenizer_says_that_lengths_are_estimates(tmp_path: Path) -> None:
    work = read(tmp_path, jsonl(CHAT), "s.jsonl")
    assert any("lengths are estimates" in note for note in work.notes)
    assert (estimate_tokens("a b c"), estimate_tokens("x" * 41), estimate_tokens("")) == (3, 11, 0)


def test_sharegpt_faults_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"s.json:1: message 0 needs a role"):
        read(tmp_path, json.dumps([{"conversations": [{"from": "human"}]}]), "s.json")
    with pytest.raises(UsageError, match="has no requests"):
        read(tmp_path, json.dumps([{"conversations": []}]), "s.json")


# -- generators -----------------------------------------------------------------------------------------------------


def test_equal_specs_give_equal_workloads() -> None:
    spec = "gen:requests=50,rate=10,prompt=exp:300,output=20-40,system=100,groups=3,seed=7"
    assert open_workload(spec).requests == open_workload(spec).requests
    assert open_workload(spec).requests != open_workload(spec.replace("seed=7", "seed=8")).requests


def test_lengths_and_arrivals_are_drawn_as_asked() -> None:
    requests = open_workload("gen:requests=4000,rate=10,prompt=ln:6k:0.6,output=exp:200,seed=1").requests
    assert fmean(r.prompt for r in requests) == pytest.approx(6144, rel=0.05)
    assert fmean(r.output for r in requests) == pytest.approx(200, rel=0.05)
    assert requests[-1].arrival_ns * 1e-9 == pytest.approx(400, rel=0.1)
    uniform = open_workload("gen:requests=500,prompt=100-1024,output=7").requests
    assert {r.output for r in uniform} == {7}
    assert min(r.prompt for r in uniform) >= 100
    assert max(r.prompt for r in uniform) <= 1024


def test_system_prompts_are_shared_by_group() -> None:
    requests = open_workload("gen:requests=40,system=2k,groups=2,prompt=10,samples=4").requests
    assert {r.parts for r in requests} == {((0, 2048),), ((1, 2048),)}
    assert {(r.prompt, r.samples) for r in requests} == {(2058, 4)}


@pytest.mark.parametrize(
    "spec",
    ["gen:prompts=5", "gen:requests", "gen:requests=0", "gen:prompt=-5", "gen:prompt=9-3", "gen:prompt=exp:x",
     "gen:prompt=ln:100:9", "gen:rate=1e12", "gen:samples=1000", "gen:requests=1e9", "gen:prompt=1000000000"],
)  # fmt: skip
def test_a_bad_spec_is_refused(spec: str) -> None:
    with pytest.raises(UsageError, match=r"^gen: "):
        open_workload(spec)
