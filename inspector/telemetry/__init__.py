"""What a running engine tells others: Prometheus metrics, and debug routes over its pool and its trace.

gauges      what the engine says of itself between two steps
counted     event counts and block times, folded from the trace as it grows
watch       both together, and the sanitizer's findings: one look for all who ask
feed        events and blocks as Arrow streams
prometheus  the collector behind /metrics
routes      /metrics
debug       /debug/kv/..., where asked for
"""
