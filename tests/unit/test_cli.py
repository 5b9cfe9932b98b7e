"""The command line as a user meets it: one clear line for each bad input, exit codes, traces that survive Ctrl-C."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from shlex import quote

import pytest

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.steps import Scheduled
from kvscope.inspector import cli
from kvscope.traces import Kind, PoolFacts, Recorder, open_trace


def kvscope(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = cli.run([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def assert_refused(result: tuple[int, str, str], *words: str) -> None:
    """Exit 2, nothing on standard output, one line on standard error that holds these words."""
    status, out, err = result
    assert (status, out) == (2, "")
    assert err.count("\n") == 1, err
    assert err.startswith("kvscope: error: ")
    for word in words:
        assert word in err, err


@pytest.fixture(scope="module")
def trace(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "run.kvtrace"
    arguments = ["generate", tiny_folder, "a page, a block", "the cat", "--raw", "-n", 3, "--temperature", 1,
                 "--max-tokens", 30, "--block-size", 4, "--num-blocks", 40, "--trace", path]  # fmt: skip
    assert cli.run([str(argument) for argument in arguments]) == 0
    return path


def test_generate_json(capsys: pytest.CaptureFixture[str], tiny_folder: Path) -> None:
    status, out, _ = kvscope(
        capsys, "generate", tiny_folder, "the cat", "a page", "-n", 2, "--temperature", 1, "--max-tokens", 5, "--json"
    )
    assert status == 0
    samples = json.loads(out)["samples"]
    assert [(s["prompt"], s["sample"]) for s in samples] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(s["tokens"] == 5 or s["finish_reason"] == "stop" for s in samples)


def test_generate_swaps_and_the_text_stays(
    capsys: pytest.CaptureFixture[str], tiny_folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "swap.kvtrace"
    common = ["generate", tiny_folder, "the cat", "a page", "a block", "--raw", "--max-tokens", 24, "--block-size", 4,
              "--policy", "priority", "--priority", "2,0,1", "--json"]  # fmt: skip
    _, plenty, _ = kvscope(capsys, *common)
    status, tight, _ = kvscope(
        capsys, *common, "--num-blocks", 10, "--preemption", "swap", "--swap-space", "1MiB", "--trace", path
    )
    assert status == 0
    texts = [[sample["text"] for sample in json.loads(out)["samples"]] for out in (plenty, tight)]
    assert texts[0] == texts[1]
    assert Kind.SWAP_IN in open_trace(path).events["kind"]
    assert kvscope(capsys, "check", path)[0] == 0


def test_generate_with_beams(capsys: pytest.CaptureFixture[str], tiny_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "beams.kvtrace"
    status, out, _ = kvscope(
        capsys, "generate", tiny_folder, "the cat", "--beams", 3, "-n", 2, "--length-penalty", 0.5, "--max-tokens", 6,
        "--block-size", 4, "--trace", path, "--json",
    )  # fmt: skip
    assert status == 0
    samples = json.loads(out)["samples"]
    assert [s["sample"] for s in samples] == [0, 1]
    assert samples[0]["text"] != samples[1]["text"]
    assert all(s["finish_reason"] in ("stop", "length") for s in samples)
    assert kvscope(capsys, "check", path)[0] == 0
    assert kvscope(capsys, "inspect", path)[0] == 0


def test_the_trace_is_clean_and_complete(capsys: pytest.CaptureFixture[str], trace: Path) -> None:
    status, out, err = kvscope(capsys, "check", trace)
    assert (status, err) == (0, "")
    assert out.startswith("clean: checked ")
    assert " events, 40 blocks, " in out
    kinds = set(open_trace(trace).events["kind"])
    wanted = {Kind.SUBMIT, Kind.ADMIT, Kind.ALLOC, Kind.FORK, Kind.SHARE, Kind.COW, Kind.COPY_DONE, Kind.WRITE,
              Kind.COMMIT, Kind.PUBLISH, Kind.STEP_BEGIN, Kind.SCHED, Kind.STEP_END, Kind.WITNESS, Kind.RELEASE,
              Kind.FREE, Kind.FINISH}  # fmt: skip
    assert wanted <= kinds


def test_inspect(capsys: pytest.CaptureFixture[str], trace: Path) -> None:
    status, out, _ = kvscope(capsys, "inspect", trace, "--json")
    assert status == 0
    summary = json.loads(out)
    assert summary["cow_copies"] > 0
    assert summary["geometry"]["num_blocks"] == 40
    assert kvscope(capsys, "inspect", trace)[0] == 0


def test_prompt_text_stays_out_of_the_trace(tiny_folder: Path, tmp_path: Path) -> None:
    for name, flags in (("without", []), ("with", ["--record-text"])):
        path = tmp_path / f"{name}.kvtrace"
        arguments = ["generate", str(tiny_folder), "the cat and the dog", "--max-tokens", "3", "--trace", str(path)]
        assert cli.run([*arguments, *flags]) == 0
        inside = b"".join(file.read_bytes() for file in path.iterdir())
        assert (b"the cat and the dog" in inside) == bool(flags)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no-such-model", "hi"], ["no-such-model"]),
        (["MODEL", ""], ["prompt is empty"]),
        (["MODEL", "   "], ["prompt is empty"]),
        (["MODEL", "the cat " * 400], ["context is 512"]),
        (
            ["MODEL", "the cat", "--num-blocks", "2", "--max-tokens", "90"],
            ["pool too small", "raise num_blocks to at least"],
        ),
        (["MODEL", "hi", "--num-blocks", "0"], ["num_blocks is 0"]),
        (["MODEL", "hi", "--num-blocks", "-3"], ["num_blocks is -3"]),
        (["MODEL", "hi", "--num-blocks", "99999999999"], ["num_blocks"]),
        (["MODEL", "hi", "--num-blocks", "16000000"], ["does not fit"]),
        (["MODEL", "hi", "--num-blocks", "many"], ["num-blocks"]),
        (["MODEL", "hi", "--block-size", "0"], ["block_size is 0"]),
        (["MODEL", "hi", "--block-size", "-16"], ["block_size is -16"]),
        (["MODEL", "hi", "--block-size", "1000000"], ["block_size is 1000000"]),
        (["MODEL", "hi", "--kv-memory", "lots"], ["'lots' is not a size"]),
        (["MODEL", "hi", "--kv-memory", "10"], ["10 bytes hold no block"]),
        (["MODEL", "hi", "--kv-memory", "9" * 400], ["is too large a size: at most"]),
        (["MODEL", "hi", "--kv-memory", "900000TiB"], ["kv_memory 900000TiB holds"]),
        (["MODEL", "hi", "--temperature", "1e-320"], ["temperature is"]),
        (["", "hi"], ["MODEL or PROMPTS is empty"]),
        (["~no-such-user/model", "hi"], ["home directory"]),
        (["MODEL", "hi", "--max-tokens", "0"], ["max_tokens is 0"]),
        (["MODEL", "hi", "-n", "0"], ["--samples is 0"]),
        (["MODEL", "hi", "-n", "100"], ["max_seqs = 64"]),
        (["MODEL", "hi", "--temperature", "-1"], ["temperature is -1"]),
        (["MODEL", "hi", "--temperature", "nan"], ["temperature is nan"]),
        (["MODEL", "hi", "--top-p", "0"], ["top_p is 0"]),
        (["MODEL", "hi", "--seed", "-1"], ["seed is -1"]),
        (["MODEL", "hi", "--beams", "-1"], ["beams is -1"]),
        (["MODEL", "hi", "--beams", "2", "-n", "3"], ["n is 3", "beams = 2"]),
        (["MODEL", "hi", "--beams", "2", "--temperature", "1"], ["temperature is 1", "with beams"]),
        (["MODEL", "hi", "--length-penalty", "2"], ["length_penalty is 2", "set beams"]),
        (["MODEL", "hi", "--max-seqs", "0"], ["max_seqs is 0"]),
        (["MODEL", "hi", "--max-batched-tokens", "0"], ["max_batched_tokens is 0"]),
        (["MODEL", "hi", "--policy", "lottery"], ["policy is 'lottery'", "fcfs, priority, fair"]),
        (["MODEL", "hi", "--priority", "1,2"], ["priority has 2 values for 1 prompts"]),
        (["MODEL", "hi", "--priority", "high"], ["priority is 'high'", "whole numbers"]),
        (["MODEL", "hi", "--priority", "9999999"], ["priority is 9999999", "-1048576..1048576"]),
        (["MODEL", "hi", "--preemption", "pray"], ["preemption is 'pray'", "recompute, swap"]),
        (["MODEL", "hi", "--preemption", "swap"], ["--swap-space"]),
        (["MODEL", "hi", "--swap-space", "64MiB"], ["--preemption swap"]),
        (["MODEL", "hi", "--preemption", "swap", "--swap-space", "9"], ["9 bytes hold no block"]),
        (["MODEL", "hi", "--device", "tpu"], ["device is 'tpu'"]),
        (["MODEL", "hi", "--record", "everything", "--trace", "x.kvtrace"], ["record is 'everything'"]),
        (["MODEL", "hi", "--threads", "-1"], ["threads is -1"]),
        (["MODEL", "hi", "--no-such-flag"], ["no-such-flag"]),
        (["MODEL"], ["prompts"]),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
def test_bad_generate(
    capsys: pytest.CaptureFixture[str], tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    arguments: list[str], words: list[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    given = [str(tiny_folder) if argument == "MODEL" else argument for argument in arguments]
    assert_refused(kvscope(capsys, "generate", *given), *words)
    assert list(tmp_path.iterdir()) == [], "a refused run leaves nothing behind"


def test_damaged_models(capsys: pytest.CaptureFixture[str], tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    assert_refused(kvscope(capsys, "generate", folder, "hi"), "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**config, "architectures": ["GemmaForCausalLM"], "model_type": "gemma"})
    )
    assert_refused(kvscope(capsys, "generate", folder, "hi"), "gemma", "not supported")
    (folder / "config.json").write_text(json.dumps({**config, "layer_types": 5}))
    assert_refused(kvscope(capsys, "generate", folder, "hi"), "model.safetensors")
    (folder / "config.json").write_text("{")
    assert_refused(kvscope(capsys, "generate", folder, "hi"), "config.json")
    torn = tmp_path / "torn.gguf"
    torn.write_bytes(b"GGUF\x03\x00\x00\x00" + b"\x00" * 100)
    assert_refused(kvscope(capsys, "generate", torn, "hi"), "torn", "names no architecture")


@pytest.mark.model
def test_truncated_gguf(capsys: pytest.CaptureFixture[str], smollm2_path: Path, tmp_path: Path) -> None:
    torn = tmp_path / "torn.gguf"
    with smollm2_path.open("rb") as file:
        torn.write_bytes(file.read(5_000_000))
    assert_refused(kvscope(capsys, "generate", torn, "hi"), "5,000,000 bytes", "98,362,432")


def test_standard_input_is_a_prompt(tiny_folder: Path, tmp_path: Path) -> None:
    def generate(given: bytes | None) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "kvscope", "generate", str(tiny_folder), "-", "--max-tokens", "2"]
        if given is None:
            command = ["bash", "-c", 'exec "$@" <&-', "bash", *command]
        return subprocess.run(command, input=given, capture_output=True, check=False)

    assert generate(b"the cat").returncode == 0
    for given, words in (
        (b"\xff\xfe\x00", b"not UTF-8"),
        (b"  ", b"prompt is empty"),
        (None, b"standard input is closed"),
    ):
        done = generate(given)
        assert done.returncode == 2
        assert words in done.stderr
        assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    ("redirect", "status"), [("| true", {0, 141}), ("| head -c1", {0, 141}), (">&-", {0}), ("2>&-", {0})]
)
@pytest.mark.parametrize("command", ["check", "inspect"])
def test_output_that_nobody_reads_is_no_finding(trace: Path, command: str, redirect: str, status: set[int]) -> None:
    line = f"set -o pipefail; {sys.executable} -m kvscope {command} {trace} {redirect}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode in status, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_paths_that_look_like_markup(
    capsys: pytest.CaptureFixture[str], tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x[").mkdir()
    for name in ("[red]x.kvtrace", "x[/]y.kvtrace"):
        status, _, err = kvscope(capsys, "generate", tiny_folder, "hi", "--max-tokens", 2, "--trace", name)
        assert status == 0
        assert f"kvscope check {quote(name)}" in err
        assert (tmp_path / name / "manifest.json").exists()


@pytest.mark.parametrize("command", ["inspect", "check", "dashboard"])
def test_bad_traces(capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str) -> None:
    assert_refused(kvscope(capsys, command, tmp_path / "absent.kvtrace"), "absent.kvtrace")
    if command == "dashboard":
        assert_refused(kvscope(capsys, command, os.devnull), "not a regular file")
        return  # a folder is looked through for traces; a bad one shows in the page
    file = tmp_path / "file.kvtrace"
    file.write_bytes(os.urandom(300))
    assert_refused(kvscope(capsys, command, file), "file.kvtrace")
    empty = tmp_path / "empty.kvtrace"
    empty.mkdir()
    assert_refused(kvscope(capsys, command, empty), "empty.kvtrace")
    (empty / "manifest.json").write_bytes(os.urandom(100))
    assert_refused(kvscope(capsys, command, empty), "empty.kvtrace")


def test_a_truncated_trace_is_used_up_to_the_tear(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    torn = tmp_path / "torn.kvtrace"
    with Recorder(torn, pool=PoolFacts(16, 4), sealing="inline", seal_rows=64) as sink:
        manager = BlockManager(16, 4, sink=sink)
        for seq_id in range(60):
            manager.admit(seq_id, range(seq_id, seq_id + 9))
            manager.write(seq_id, manager.length(seq_id), 9)
            manager.begin_step([Scheduled(seq_id, 0, 9)])
            manager.end_step()
            manager.free(seq_id)
    whole = len(open_trace(torn).events)
    segment = max(torn.glob("events-*.arrows"), key=lambda path: path.stat().st_size)
    segment.write_bytes(segment.read_bytes()[: segment.stat().st_size * 2 // 3])
    status, out, err = kvscope(capsys, "check", torn)
    assert "kvscope: note:" in err
    assert (status, out.startswith("clean")) == (0, True), out
    assert whole // 3 < len(open_trace(torn).events) < whole


def test_a_trace_is_not_replaced_unasked(capsys: pytest.CaptureFixture[str], tiny_folder: Path, trace: Path) -> None:
    before = len(open_trace(trace).events)
    assert_refused(kvscope(capsys, "generate", tiny_folder, "hi", "--trace", trace), "run.kvtrace", "overwrite")
    assert len(open_trace(trace).events) == before


def test_port_in_use(capsys: pytest.CaptureFixture[str], trace: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert_refused(kvscope(capsys, "dashboard", trace, "--port", port), f"port {port} is in use")
        assert_refused(kvscope(capsys, "demo", "--port", port), f"port {port} is in use")


def test_unknown_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(kvscope(capsys, "demo", "--fault", "gremlins"), "gremlins", "missing-copy")


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_leaves_a_readable_trace(tiny_folder: Path, tmp_path: Path, presses: int) -> None:
    path = tmp_path / "cut.kvtrace"
    command = [sys.executable, "-c", "import sys; from kvscope.inspector.cli import main; main()"]
    command += ["generate", str(tiny_folder), "the cat", "a page", "--raw", "-n", "3", "--temperature", "1",
                "--max-tokens", "480", "--block-size", "4", "--num-blocks", "900", "--trace", str(path)]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        time.sleep(0.05)
        if (path / "manifest.json").exists() and len(open_trace(path).events) > 200:
            break
    for _ in range(presses):
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    trace = open_trace(path)
    assert len(trace.events) > 200
    assert cli.run(["check", str(path)]) == 0


@pytest.mark.parametrize("command", sorted(cli.COMMANDS))
def test_every_command_has_help_with_an_example(capsys: pytest.CaptureFixture[str], command: str) -> None:
    status, out, _ = kvscope(capsys, command, "--help")
    assert status == 0
    if command not in ("models", "faults"):
        assert f"Example: kvscope {command}" in " ".join(out.split())
