"""SQL over a trace: what it answers, and that a stranger's SQL can do nothing but read these tables."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from kvscope.errors import KVScopeError, TraceError
from kvscope.inspector import cli
from kvscope.inspector.findings import check
from kvscope.inspector.lanes import lanes
from kvscope.inspector.query import ask, tables
from kvscope.inspector.state import state_at
from kvscope.traces import Kind, PoolFacts, Recorder, TraceReader, open_trace


@pytest.fixture(scope="module")
def trace(toy_traces: dict[str, Path]) -> TraceReader:
    return open_trace(toy_traces["clean"])


def rows(trace: TraceReader, sql: str, most: int | None = None) -> list[tuple[object, ...]]:
    with ask(trace, sql, most=most) as answer:
        return list(answer.rows)


def kvscope(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = cli.run([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_counts_by_kind_are_those_of_the_trace(trace: TraceReader) -> None:
    found = dict(rows(trace, "SELECT kind, count(*) FROM events GROUP BY kind"))
    kinds, counts = np.unique(trace.events["kind"], return_counts=True)
    assert found == {Kind(kind).name: count for kind, count in zip(kinds.tolist(), counts.tolist(), strict=True)}


def test_a_table_is_read_as_often_as_a_query_needs(trace: TraceReader) -> None:
    sql = "SELECT count(*) FROM events a JOIN events b USING (seq) JOIN events c USING (seq)"
    assert rows(trace, sql) == [(len(trace.events),)]


def test_details_by_name(trace: TraceReader) -> None:
    where = "WHERE kind = 'WITNESS' AND field = 'free' ORDER BY seq"
    sql = f"SELECT value FROM events JOIN details USING (seq) {where}"
    _, values = trace.details_of(Kind.WITNESS)
    assert rows(trace, sql) == [(value[0],) for value in values]


def test_made_tables_agree_with_their_sources(trace: TraceReader, toy_traces: dict[str, Path]) -> None:
    counts = state_at(trace, int(trace.seqs[-1])).counts
    assert dict(rows(trace, "SELECT state, count(*) FROM blocks GROUP BY state")) == {
        k: n for k, n in counts.items() if n
    }
    found = rows(trace, "SELECT name, output_tokens, queued_ns + prefill_ns + decode_ns + preempted_ns FROM sequences")
    assert found == [(lane.name, lane.output_tokens, sum(bar.t1_ns - bar.t0_ns for bar in lane.bars))
                     for lane in lanes(trace)]  # fmt: skip
    faulty = open_trace(toy_traces["missing-copy"])
    wanted = [(finding.code, finding.seq) for finding in check(faulty).findings]
    assert wanted
    assert rows(faulty, "SELECT code, seq FROM findings ORDER BY seq, code") == sorted(
        wanted, key=lambda f: (f[1], f[0])
    )
    assert rows(trace, "SELECT * FROM findings") == []
    assert len(rows(trace, "FROM sites WHERE site > 0")) >= len(trace.sites) - 1
    assert [json.loads(str(fact)) for (fact,) in rows(trace, "SELECT fact FROM facts ORDER BY n")] == trace.facts


def test_the_limit_keeps_the_order(trace: TraceReader) -> None:
    last = int(trace.seqs[-1])
    assert rows(trace, "SELECT seq FROM events ORDER BY seq DESC", most=3) == [(last,), (last - 1,), (last - 2,)]
    assert len(rows(trace, "EXPLAIN SELECT 1", most=1)) == 1


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELEC 1", "syntax error"),
        ("SELECT nope FROM events", "nope"),
        ("SELECT * FROM nope", "There are events, details, sites, facts, blocks, sequences, findings."),
        ("SELECT * FROM nowhere", "nowhere"),
        ("", "is empty"),
        (" ", "got 0 statements"),
        ("SELECT 1; SELECT 2", "got 2 statements"),
        ("DROP VIEW events", "only reads"),
        ("CREATE TABLE t AS SELECT 1", "only reads"),
        ("INSERT INTO events VALUES (1)", "only reads"),
        ("SET memory_limit='99GB'", "only reads"),
        ("RESET lock_configuration", "only reads"),
        ("PRAGMA database_list", "only reads"),
        ("ATTACH '{file}' AS other", "only reads"),
        ("COPY events TO '{file}'", "only reads"),
        ("INSTALL httpfs", "only reads"),
        ("LOAD httpfs", "only reads"),
        ("EXPLAIN ANALYZE COPY (SELECT 1) TO '{file}'", ""),
        ("SELECT * FROM '{file}'", ""),
        ("SELECT * FROM read_text('{file}')", "disabled"),
        ("SELECT * FROM read_csv('/etc/passwd')", "disabled"),
        ("SELECT * FROM glob('/etc/*')", "disabled"),
        ("SELECT * FROM trace", "trace"),
        ("SELECT getenv('HOME')", "getenv"),
        ("SELECT CAST('x' AS INTEGER)", "Conversion"),
        ("SELECT seq FROM events WHERE CAST(kind AS INTEGER) = 1", "Conversion"),
    ],
)
def test_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], toy_traces: dict[str, Path], tmp_path: Path, sql: str, words: str
) -> None:
    file = tmp_path / "target.csv"
    status, out, err = kvscope(capsys, "query", toy_traces["clean"], sql.replace("{file}", str(file)))
    assert (status, out) == (2, "")
    assert re.fullmatch(r"kvscope: error: .*\n", err), err
    assert words in err
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_fit_is_refused(trace: TraceReader) -> None:
    with pytest.raises(KVScopeError, match=r"(?i)memory"):
        rows(trace, "SELECT list(a.seq::VARCHAR || b.seq) FROM events a, events b, events c")


def test_forms_and_limits(capsys: pytest.CaptureFixture[str], toy_traces: dict[str, Path]) -> None:
    path, sql = toy_traces["clean"], "SELECT seq, kind FROM events ORDER BY seq"
    status, out, err = kvscope(capsys, "query", path, sql, "--limit", 2, "--json")
    assert json.loads(out) == {
        "schema": "kvscope-query/1",
        "columns": [{"name": "seq", "type": "BIGINT"}, {"name": "kind", "type": "VARCHAR"}],
        "rows": [[0, "SUBMIT"], [1, "SUBMIT"]], "truncated": True,
    }  # fmt: skip
    assert (status, err.count("\n")) == (0, 1)
    assert "--limit 0" in err
    status, out, err = kvscope(capsys, "query", path, sql, "--limit", 0, "--csv")
    assert (status, err, out.count("\n")) == (0, "", len(open_trace(path).events) + 1)
    assert out.startswith("seq,kind\n0,SUBMIT\n")
    status, out, err = kvscope(
        capsys, "query", path, "SELECT 'a' || chr(27) || chr(10) AS x, 1/3 AS y, NULL AS z, 'nan'::FLOAT AS f"
    )
    assert (status, err) == (0, "")
    assert [line.split() for line in out.splitlines()] == [["x", "y", "z", "f"], [r"a\x1b\n", "0.333333", "-", "nan"]]
    _, out, _ = kvscope(capsys, "query", path, "SELECT 'nan'::FLOAT f, [1, 2] l, DATE '2020-01-02' d, '=1' t", "--json")
    assert json.loads(out)["rows"] == [[None, [1, 2], "2020-01-02", "=1"]]
    _, out, _ = kvscope(capsys, "query", path, "SELECT '=1' AS t", "--csv")
    assert out == "t\n'=1\n"
    assert kvscope(capsys, "query", path, "SELECT 1", "--csv", "--json")[0] == 2


def test_without_duckdb_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], toy_traces: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    status, out, err = kvscope(capsys, "query", toy_traces["clean"], "SELECT 1")
    assert (status, out) == (2, "")
    assert "pip install 'kvscope[query]'" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("resize", [{"kind": Kind.SHRINK, "lblock": 1 << 23, "aux": 5}, {"kind": Kind.GAP, "aux": -5}])
def test_the_table_of_blocks_is_of_the_pool_at_the_end(tmp_path: Path, resize: dict[str, int]) -> None:
    with Recorder(tmp_path / "a.kvtrace", pool=PoolFacts(1 << 23, 4)) as sink:
        sink.emit(Kind.ALLOC, block=3, gen=1, ref_before=0, ref_after=1, seq_id=7, lblock=0)
        with pytest.raises(TraceError, match=r"the pool has 8,388,608 blocks: .* at most 4,194,304"):
            rows(open_trace(tmp_path / "a.kvtrace"), "SELECT count(*) FROM blocks")
        sink.emit(**resize)
    assert rows(open_trace(tmp_path / "a.kvtrace"), "SELECT count(*) FROM blocks") == [(5,)]


def test_every_table_can_be_shown(trace: TraceReader) -> None:
    assert {name for (name,) in rows(trace, "SHOW TABLES")} == set(tables(trace))
    for name in tables(trace):
        assert len(rows(trace, f"DESCRIBE {name}")) >= 3
        rows(trace, f"SELECT * FROM {name} LIMIT 1")
