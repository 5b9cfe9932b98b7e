"""Why paging helps here, or does not: the three layers of the problem, five symptoms, five cases that do not pay.

evidence   what is known of a run or a workload, as numbers; None where nobody measured it
verdicts   what follows, each with its evidence, confidence and next step
prefixes   prompts that should have shared and do not: the first difference and what it looks like
"""

from kvscope.inspector.doctor.evidence import Evidence, of_trace, of_workload
from kvscope.inspector.doctor.prefixes import Split, splits
from kvscope.inspector.doctor.verdicts import Diagnosis, Layer, Verdict, diagnose

__all__ = ["Diagnosis", "Evidence", "Layer", "Split", "Verdict", "diagnose", "of_trace", "of_workload", "splits"]
