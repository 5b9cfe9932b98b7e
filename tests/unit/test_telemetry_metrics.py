"""/metrics of a served engine: what is scraped is what the measures of the trace say; queries in docs/ find it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import httpx
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from kvscope.engine.model import LoadedModel, load_model
from kvscope.inspector.findings import CODES
from kvscope.inspector.measures import summary
from kvscope.traces import Kind, open_trace

DOCS = Path(__file__).parents[2] / "docs" / "monitoring"


@pytest.fixture(scope="module")
def loaded(tiny_folder: Path) -> LoadedModel:
    return load_model(tiny_folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("metrics") / "run.kvtrace"


@pytest.fixture(scope="module")
def base(served_engine: ModuleType, loaded: LoadedModel, folder: Path) -> Iterator[str]:
    """A sanitized server with a small pool that has been busy: shared prefixes, copies, preemptions, evictions."""
    with served_engine.serving(loaded, folder, sanitize=True, blocks=24) as (address, loop, watch):
        words = "the cat sat on the mat and the dog sat on the cat and"
        for number in range(4):
            served_engine.ask(address, prompt=[f"{words} {number}", f"{number} {words}"], n=3, max_tokens=60)
        served_engine.until(lambda: not loop.call(lambda engine: engine.has_work))
        loop.call(lambda _: watch.sanitizer.check())
        yield address


def scrape(base: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(httpx.get(f"{base}/metrics").text)}


def value(families: dict[str, Metric], name: str, **labels: str) -> float:
    (found,) = (
        sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
    return float(found)


def test_counters_are_the_measures_of_the_trace(base: str, folder: Path) -> None:
    families, measured = scrape(base), summary(open_trace(folder))
    for name in ("cow_copies", "cow_bytes", "oom_events", "prefix_hit_tokens", "prefix_query_tokens"):
        assert value(families, f"kvscope_{name}_total") == measured[name], name
    for name in ("preemptions", "refusals", "evictions"):
        assert sum(s.value for s in families[f"kvscope_{name}"].samples) == measured[name], name
    assert value(families, "kvscope_prefix_hit_ratio") == pytest.approx(measured["prefix_hit_rate"])
    assert value(families, "kvscope_benefit_ratio") == pytest.approx(measured["benefit_ratio"])
    for name in ("lifetime", "idle_before_evict", "reuse_gap"):
        times = measured[f"{name}_s"]
        assert value(families, f"kvscope_block_{name}_seconds_count") == times["count"] > 0
        assert value(families, f"kvscope_block_{name}_seconds_sum") == pytest.approx(times["mean"] * times["count"])
    assert measured["preemptions"] > 0
    assert value(families, "kvscope_trace_dropped_events_total") == 0
    kinds = {s.labels["kind"]: s.value for s in families["kvscope_block_events"].samples}
    events = open_trace(folder).events
    assert {name: n for name, n in kinds.items() if n} == {
        kind.name.lower(): int((events["kind"] == kind).sum()) for kind in Kind if (events["kind"] == kind).any()
    }


def test_gauges_add_up_and_empty_ratios_are_absent(base: str) -> None:
    families = scrape(base)
    assert sum(s.value for s in families["kvscope_blocks"].samples) == value(families, "kvscope_pool_blocks") == 24
    assert "kvscope_tail_waste_ratio" not in families  # nothing is held
    assert value(families, "kvscope_pool_utilization_ratio") == 0
    assert value(families, "kvscope_external_fragmentation_ratio") == 0
    assert value(families, "kvscope_info", run="abc", model="m") == 1
    assert 0 < value(families, "kvscope_trace_overhead_ratio") < 1


def test_latencies_count_every_token(base: str) -> None:
    families = scrape(base)
    first, rest = (
        value(families, f"kvscope_{n}_seconds_count") for n in ("time_to_first_token", "inter_token_latency")
    )
    assert (first, rest) == (8, value(families, "kvscope_generated_tokens_total") - 3 * 8)
    assert value(families, "kvscope_request_duration_seconds_count") == 8
    assert value(families, "kvscope_queue_time_seconds_count") == 8
    assert value(families, "kvscope_request_duration_seconds_sum") > value(
        families, "kvscope_time_to_first_token_seconds_sum"
    )


def test_findings_are_counted_by_code_and_none_is_zero(base: str, folder: Path) -> None:
    families = scrape(base)
    assert {s.labels["code"]: s.value for s in families["kvscope_findings"].samples} == dict.fromkeys(CODES, 0)
    assert value(families, "kvscope_checked_events_total") == len(open_trace(folder).events)


def test_labels_are_bounded_and_named_as_they_should_be(base: str) -> None:
    families = scrape(base)
    for name, family in families.items():
        assert name.startswith(("kvscope_", "vllm:")), name
        assert len(family.samples) <= 80, name
        assert family.documentation
        for sample in family.samples:
            assert set(sample.labels) <= {"state", "kind", "reason", "code", "run", "model", "version", "le",
                                          "model_name", "engine", "finished_reason"}  # fmt: skip
            if name.startswith("kvscope_") and family.type == "counter":
                assert sample.name.endswith("_total")


def test_aliases_say_the_same(base: str) -> None:
    families = scrape(base)
    for theirs, ours in (
        ("vllm:generation_tokens_total", "kvscope_generated_tokens_total"),
        ("vllm:prefix_cache_hits_total", "kvscope_prefix_hit_tokens_total"),
        ("vllm:prefix_cache_queries_total", "kvscope_prefix_query_tokens_total"),
        ("vllm:num_requests_running", "kvscope_sequences_running"),
        ("vllm:time_to_first_token_seconds_count", "kvscope_time_to_first_token_seconds_count"),
        ("vllm:kv_block_lifetime_seconds_sum", "kvscope_block_lifetime_seconds_sum"),
    ):
        assert value(families, theirs) == value(families, ours)
    assert value(families, "vllm:kv_cache_usage_perc") == 0


# -- docs/monitoring --------------------------------------------------------------------------------------------------


def expressions() -> list[str]:
    """Every query of the Grafana dashboard and of the alert rules."""
    board = json.loads((DOCS / "grafana.json").read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    rules = (DOCS / "alerts.yaml").read_text()
    return found + re.findall(r"^ +expr: (.+)$", rules, re.M)


def selectors(expression: str) -> Iterator[tuple[str, dict[str, str]]]:
    """(metric, label matchers) of every selector in a query."""
    for name, matchers in re.findall(r"\b(kvscope_\w+)(?:\{([^}]*)\})?", expression):
        yield name, dict(re.findall(r'(\w+)=~?"([^"]*)"', matchers))


def test_every_query_finds_its_metric_in_a_scrape(base: str) -> None:
    samples: dict[str, list[dict[str, str]]] = {}
    for family in scrape(base).values():
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(sample.labels)
    queries = expressions()
    assert len(queries) > 20
    absent_when_idle = {"kvscope_tail_waste_ratio", "kvscope_sharing_factor", "kvscope_utilization_ratio"}
    for query in queries:
        found = list(selectors(query))
        assert found, query
        for name, matchers in found:
            if name in absent_when_idle:
                continue
            assert name in samples, (query, name)
            for label, pattern in matchers.items():
                if label in ("instance", "job"):
                    continue
                assert any(re.fullmatch(pattern, labels.get(label, "")) for labels in samples[name]), (query, name)
        for labels in re.findall(r"by \(([^)]*)\)", query):
            for label in (word.strip() for word in labels.split(",")):
                assert label in ("instance", "job") or any(
                    label in given for name, _ in found for given in samples.get(name, [])
                ), query
        assert query.count("(") == query.count(")")


def test_counters_are_asked_for_rates_and_gauges_are_not(base: str) -> None:
    types = {s.name: f.type for f in scrape(base).values() for s in f.samples}
    for query in expressions():
        for name, _ in selectors(query):
            if name.endswith(("_total", "_bucket", "_sum", "_count")):
                assert re.search(rf"(rate|increase)\({name}\b[^\[]*\[", query), query
            else:
                assert types.get(name, "gauge") == "gauge", query


def test_the_dashboard_is_whole(base: str) -> None:
    board = json.loads((DOCS / "grafana.json").read_text())
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        assert {"title", "type", "gridPos"} <= set(panel)
        assert panel["type"] == "row" or panel["targets"]
    rules = (DOCS / "alerts.yaml").read_text()
    names = re.findall(r"alert: (\w+)", rules)
    assert {"KVScopeLeak", "KVScopeWaste", "KVScopeThrash", "KVScopeDroppedEvents"} <= set(names)
    assert len(names) == len(re.findall(r"summary:", rules)) == len(re.findall(r"^ +expr:", rules, re.M))
