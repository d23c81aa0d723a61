"""What OpenTelemetry records of the steps of a request. A gateway without it has no such hook."""

from gateway.cache.lookup import (
    FetchCandidate,
    Hit,
    LookUpExact,
    LookUpPersonal,
    ScanPrompt,
    VerifyCandidate,
)
from gateway.protocol.http.cache_status import Reason
from gateway.server.pipeline import Near
from gateway.telemetry.observation import Observation
from gateway.telemetry.otel.attributes import answer_facts
from gateway.upstream.answer import Admission
from gateway.upstream.request import Exchange

LOOKUP = "refrain.lookup"
SCAN = "refrain.pii_scan"
EMBEDDING = "refrain.embedding"
VERIFICATION = "refrain.verification"
REWRITE = "refrain.rewrite"
ADMISSION = "refrain.admission"


def on_step(step: object, began: float, seen: Observation, outcome: object) -> None:
    """Record a step of a traced request; see ``OnStep``."""
    if (trace := seen.trace) is None:
        return
    match step:
        case LookUpExact() | LookUpPersonal() | FetchCandidate():
            kind = "candidate" if isinstance(step, FetchCandidate) else "exact"
            found = isinstance(outcome, Hit | VerifyCandidate)
            trace.note_step(LOOKUP, began, {"refrain.lookup": kind, "refrain.found": found})
        case ScanPrompt():
            trace.note_step(SCAN, began, {})
        case Near(found=near):
            noted = {
                "refrain.candidates": len(near),
                "refrain.similarity": near[0][1] if near else None,
                "refrain.semantic_fault": seen.lookup.semantic_fault,
            }
            trace.note_step(EMBEDDING, began, noted)
        case VerifyCandidate() if seen.lookup.verified:
            result, score = seen.lookup.verified[-1]
            noted = {"refrain.verification": result, "refrain.semantic_score": score}
            trace.note_step(VERIFICATION, began, noted)
        case Exchange() if step.rewrites or step.not_rewritten or step.compression is not None:
            applied = [each.value for each in step.rewrites]
            trace.note_step(REWRITE, began, {"refrain.rewrites": applied or None})
        case Admission(call=call, result=result):
            call.answer = answer_facts(result)
            if outcome is not None:
                declined = outcome.value if isinstance(outcome, Reason) else None
                noted = {"refrain.stored": outcome is True, "refrain.declined": declined}
                trace.note_step(ADMISSION, began, noted)
