"""Hypothesis profiles: `ci` (the default) repeats the same examples on every run; `deep` looks at new ones, longer."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}

settings.register_profile("ci", derandomize=True, database=None, max_examples=100, stateful_step_count=40, **COMMON)
settings.register_profile("deep", max_examples=20_000, stateful_step_count=60, **COMMON)
settings.load_profile(os.environ.get("KVSCOPE_HYPOTHESIS", "ci"))
