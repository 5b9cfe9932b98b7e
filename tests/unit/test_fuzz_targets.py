"""Targets that cannot be used end with one clear line, whatever they do; a finding is told as a program that runs."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from jsonschema import Draft202012Validator

from kvscope.errors import UsageError
from kvscope.inspector import cli
from kvscope.inspector.fuzz import Violation, load_target
from kvscope.inspector.fuzz.hunt import hunt
from kvscope.inspector.fuzz.protocol import NAMES
from kvscope.inspector.fuzz.report import Job, Report
from kvscope.inspector.fuzz.sandbox import run
from kvscope.inspector.fuzz.surroundings import check_apart
from kvscope.inspector.races.program import ThreadProgram

ROOT = Path(__file__).resolve().parents[2]

GOOD = """
import builtins, os, sys, time, threading, ctypes, signal
from kvscope.inspector.fuzz.simulator import Simulator

class Pool(Simulator):
    pass

def factory(num_blocks, block_size):
    return Pool(num_blocks, block_size)
"""
WRONG = {  # what is added to a right target -> what is said of it
    "factory raises": ("def factory(n, b): raise ValueError('no GPU here')", "raised ValueError: no GPU here (target"),
    "factory returns none": ("def factory(n, b): return None", "NoneType cannot be fuzzed: it has no add"),
    "factory takes nothing": ("def factory(): return Pool(1, 1)", "raised TypeError: factory() takes 0 positional"),
    "factory exits": ("def factory(n, b): sys.exit(3)", "the factory calls sys.exit(3)"),
    "factory hangs": ("def factory(n, b):\n    while True: pass", "did not return within 1 s (it is at target.py:"),
    "no such factory": ("del factory", "there is no factory in"),
    "factory is a number": ("factory = 3", "factory is a int in"),
    "import raises": ("import no_such_module", "raised ModuleNotFoundError: No module named 'no_such_module'"),
    "import exits": ("sys.exit(0)", "calls sys.exit(0)"),
    "syntax": ("def factory(n, b) return", "SyntaxError"),
    "method missing": ("Pool.table = None", "Pool cannot be fuzzed: it has no table"),
    "arguments missing": ("Pool.add = lambda self, seq: None", "Pool.add cannot be called with 2 arguments"),
    "table of text": ("Pool.table = lambda self, seq: ['a']", "table(0) is ['a']: must be a sequence"),
    "free is text": ("Pool.num_free = lambda self: 'many'", "num_free() is 'many', a str: must be a whole number"),
    "drain of tuples": ("Pool.drain = lambda self: [(1, 2)]", "drain() is [(1, 2)]: must be a sequence"),
    "cached is text": ("Pool.add = lambda self, seq, tokens: Simulator.add(self, seq, tokens) or '0'",
                       "the result of add(0, ...) is '0'"),
    "endless table": ("from itertools import repeat\nPool.table = lambda self, seq: repeat(0)", "has more than 65,536"),
    "endless moves": ("from itertools import repeat\nPool.drain = lambda self: repeat(0)", "drain() has more"),
    "endless reserved": ("from itertools import count\nPool.reserved = count()", "reserved has more than 65,536"),
    "endless sizes": ("from itertools import count\nfactory.pool_sizes = count(1)", "the factory has more"),
    "endless pool": ("def factory(n, b):\n    pool = Pool(n, b)\n    pool.num_blocks = 10**30\n    return pool",
                     "must be at most 65,536"),
    "slow table": ("def table(self, seq):\n    yield 0\n    time.sleep(99)\nPool.table = table",
                   "table(0) did not return within 1 s"),
    "repr": ("class Odd:\n    def __repr__(self): raise ValueError\nPool.num_free = lambda self: Odd()",
             "num_free() is a Odd whose repr raises ValueError"),
    "str": ("class Odd(Exception):\n    def __str__(self): raise ValueError\ndef factory(n, b): raise Odd",
            "raised Odd: (its __str__ raises ValueError)"),
    "sizes": ("factory.block_sizes = [0]", "block_sizes of the factory is [0]"),
    "hangs": ("def append(self, seq, token):\n    while True: pass\nPool.append = append",
              "did not return within 1 s (it is at target.py:"),
    "waits": ("lock = threading.Lock()\nlock.acquire()\nPool.free = lambda self, seq: lock.acquire()",
              "did not return within 1 s"),
    "prints": ("def loud(self, seq):\n    print('freeing', seq)\n    Simulator.free(self, seq)\nPool.free = loud",
               "prints to standard output ('freeing"),
    "method exits": ("Pool.append = lambda self, seq, token: sys.exit()", "calls sys.exit(None)"),
    "dies": ("Pool.append = lambda self, seq, token: os._exit(7)", "its process ended with exit code 7"),
    "crashes": ("Pool.append = lambda self, seq, token: ctypes.string_at(1)", "its process was ended by SIGSEGV"),
    "kills": ("Pool.append = lambda self, seq, token: os.kill(os.getpid(), signal.SIGKILL)", "was ended by SIGKILL"),
    "one pool for all": ("pool = Pool(6, 4)\nfactory = lambda n, b: pool", "they share state"),
    "keeps state": ("log = []\ndef factory(n, b):\n    log.append(0)\n    return Pool(n - len(log) % 2, b)",
                        "state between its calls"),
    "changes builtins": ("def factory(n, b):\n    builtins.kvscope = n\n    return Pool(n, b)", "changed builtins"),
    "changes the environment": ("def append(self, seq, token):\n    os.environ['POOL'] = str(seq)\n"
                                "    Simulator.append(self, seq, token)\nPool.append = append", "changed os.environ"),
    "moves": ("def factory(n, b):\n    os.chdir('/')\n    return Pool(n, b)", "changed the working folder"),
}  # fmt: skip


def fuzzed(folder: Path, code: str, **options: object) -> Report:
    target = folder / "target.py"
    target.write_text(GOOD + code + "\n")
    return run(Job(f"{target}:factory", **{"seconds": 1.0, "hang_seconds": 10.0, **options}))  # type: ignore[arg-type]


ALONE = {  # these would hurt the process that they run in
    "factory hangs", "slow table", "hangs", "waits", "prints", "dies", "crashes", "kills", "moves", "changes builtins",
    "changes the environment", "import exits", "method exits",
}  # fmt: skip


def said_here(target: str) -> str:
    """What is said of a target in this process."""
    try:
        factory = load_target(target)
        check_apart(factory)
        hunt(factory, examples=10)
    except UsageError as unusable:
        return str(unusable)
    return "nothing"


@pytest.mark.parametrize("name", WRONG)
def test_unusable_target_is_told_in_one_line(tmp_path: Path, name: str) -> None:
    code, said = WRONG[name]
    if name in ALONE:
        report = fuzzed(tmp_path, code, hang_seconds=1.0 if "did not return" in said else 10.0)
        assert report.status == 2, report.text()
        told = report.unusable or ""
    else:
        (tmp_path / "target.py").write_text(GOOD + code + "\n")
        told = said_here(f"{tmp_path}/target.py:factory")
    assert said in told
    assert "\n" not in told


def test_missing_module_and_malformed_name() -> None:
    for target, said in (("no_such_module:factory", "No module named"), ("target", "give package.module:factory"),
                         ("/no/such/file.py:factory", "is not there")):  # fmt: skip
        assert said in said_here(target)


def test_printing_can_be_allowed(tmp_path: Path) -> None:
    report = fuzzed(tmp_path, WRONG["prints"][0], allow_output=True)
    assert report.status == 0, report.unusable
    assert "prints" in report.notes[0]


BUG = """
def append(self, seq, token):
    lblock, slot = divmod(self.lengths[seq], self.block_size)
    if lblock == len(self.tables[seq]):
        self.tables[seq].append(self.allocate_block())
    self.lengths[seq] += 1
Pool.append = append
"""


def test_finding_is_a_program_that_fails_until_the_bug_is_fixed(tmp_path: Path) -> None:
    report = fuzzed(tmp_path, BUG, seconds=60.0)
    assert report.status == 1, report.text()
    assert report.finding is not None
    assert (report.finding.code, report.finding.length) == ("KV006", 3)
    pasted: dict[str, Callable[[], None]] = {}
    exec(report.finding.program, pasted)  # what a reader pastes into a test
    test = pasted["test_kv006_write_while_shared"]
    with pytest.raises(Violation, match=re.escape(report.finding.why)):
        test()
    (tmp_path / "target.py").write_text(GOOD)
    sys.modules.pop("target")
    test()


def test_same_seed_finds_the_same_and_the_database_finds_it_first(tmp_path: Path) -> None:
    database = str(tmp_path / "kept")
    first, second = (fuzzed(tmp_path, BUG, seconds=60.0, seed=5) for _ in range(2))
    assert first.finding == second.finding
    assert (first.examples, first.calls) == (second.examples, second.calls)
    assert not fuzzed(tmp_path, BUG, seconds=60.0, database=database).finding.known  # type: ignore[union-attr]
    again = fuzzed(tmp_path, BUG, seconds=60.0, seed=6, database=database)
    assert again.finding is not None
    assert again.finding.known
    assert again.examples == 0
    assert fuzzed(tmp_path, "", database=database).status == 0


def test_command_line_json_and_junit(tmp_path: Path) -> None:
    (tmp_path / "target.py").write_text(GOOD + BUG)
    junit = tmp_path / "junit.xml"
    command = [sys.executable, "-m", "kvscope.inspector.fuzz", "target:factory", "--seconds", "60", "--json"]
    done = subprocess.run([*command, "--junit", str(junit)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    Draft202012Validator(json.loads((ROOT / "docs" / "schemas" / "fuzz.json").read_text())).validate(told)
    assert told["verdict"] == "finding"
    suite = ElementTree.parse(junit).getroot()
    assert (suite.get("failures"), suite.get("errors")) == ("1", "0")
    assert (tmp_path / ".hypothesis" / "kvscope").is_dir()


@pytest.mark.parametrize(("code", "skipped"), [
    ("Pool.refcount = None\nPool.drain = None\n", {"KV002", "KV004", "KV013", "KV016", "KV017", "KV019"}),
    ("Pool.begin_step = lambda self, seqs: None\nPool.end_step = lambda self: None\n", {"KV002", "KV016", "KV017"}),
    (BUG, {"KV002", "KV013", "KV016", "KV017"}),
    ("def factory(n, b): raise ValueError\n", {*NAMES}),
])  # fmt: skip
def test_a_rule_that_was_not_tried_is_skipped_in_junit(tmp_path: Path, code: str, skipped: set[str]) -> None:
    report = fuzzed(tmp_path, code, seconds=60.0 if code == BUG else 1.0)
    report.write_junit(tmp_path / "junit.xml")
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()
    found = {case.attrib["name"].split()[0]: case for case in suite.iter("testcase")}
    failed = {report.finding.code} if report.finding is not None else set()
    skipped = skipped - failed
    assert {c for c, case in found.items() if case.find("skipped") is not None} == skipped
    assert suite.get("skipped") == str(len(skipped))


def test_command_line_with_an_unusable_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    junit = tmp_path / "junit.xml"
    target = tmp_path / "target.py"
    target.write_text("")
    assert cli.run(["fuzz", f"{target}:factory", "--json", "--no-database", "--junit", str(junit)]) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out)["verdict"] == "unusable"
    assert captured.err.startswith("kvscope: error:")
    assert captured.err.count("\n") == 1
    assert ElementTree.parse(junit).getroot().get("errors") == "1"


@pytest.mark.parametrize("message", ["\x1b[31mred", "a\0b", "name \udcff.bin", "<b>&]]> \x9b1m"])
@pytest.mark.parametrize("place", ["factory", "append"])
def test_any_text_of_a_target_is_told_with_its_control_characters_as_escapes(
    tmp_path: Path, place: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    raising = f"def {place}(*_): raise RuntimeError({message!r})\n"
    (tmp_path / "target.py").write_text(GOOD + raising + ("Pool.append = append\n" if place == "append" else ""))
    junit = tmp_path / "fuzz.xml"
    status = cli.run(
        ["fuzz", f"{tmp_path}/target.py:factory", "--seconds", "1", "--no-database", "--junit", str(junit)]
    )
    assert status == (2 if place == "factory" else 1)
    told = "".join(capsys.readouterr())
    told.encode()
    assert repr(message)[1:-1] in told
    assert told.replace("\n", "").isprintable()
    ElementTree.parse(junit)
    assert repr(message)[1:-1] in html.unescape(junit.read_text())


@pytest.mark.parametrize("string", [
    "kvra1/5.1.999999999/add.1.7/free.3.7", "kvra1/999999999.1.1/add.1.7/free.3.7", "kvra1/5.0.1/add.1.7/free.3.7",
    "kvra1/5.1.1/add.1.7" + "/free.3.7" * 9, "kvra1/5.1.1/none/" + "-".join(["free.3.7"] * 999),
    "kvra1/5.1.1/none/add.1.999999999",
])  # fmt: skip
def test_a_replay_string_of_another_size_is_refused_at_once(string: str) -> None:
    with pytest.raises(UsageError, match=r"the replay string has .*: must be \d+ to \d+") as refused:
        ThreadProgram.parse(f"{string}@kvr1:opcode:2:none:00")
    assert "\n" not in str(refused.value)
