"""The auditor: reads the topics from their beginning, and says whether every promise was kept. It knows nothing of the engine."""

from headrace.audit.facts import Call
from headrace.audit.judge import Told, judge
from headrace.audit.reader import audit, calls_in
from headrace.audit.standings import Sample
from headrace.audit.verdict import Row, Rule, Verdict, Violation

__all__ = ["Call", "Row", "Rule", "Sample", "Told", "Verdict", "Violation", "audit", "calls_in", "judge"]
