"""What a running engine tells others: Prometheus metrics, and debug routes over its pool and its trace.

gauges      what the engine says of itself between two steps
counted     event counts and block times, folded from the trace as it grows
watch       both together, and the sanitizer's findings: one look for all who ask
feed        events and blocks as Arrow streams
cost        what recording costs, measured in one step of many
prometheus  the collector behind /metrics
aliases     the same under vLLM's names
switch      whether OpenTelemetry is asked for; imports nothing of it
spans       events to spans of requests and steps
otel        those spans, and the measures, told to OpenTelemetry; the only module that imports its SDK
routes      /metrics
debug       /debug/kv/..., where asked for
"""
