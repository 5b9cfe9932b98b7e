"""What a running engine tells others: Prometheus metrics, and debug routes over its pool and its trace.

counted     event counts and block times, folded from the trace as it grows
prometheus  the collector behind /metrics
routes      /metrics and, where asked for, /debug/kv/...
"""
