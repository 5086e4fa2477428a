"""Whether a run is fit to be submitted, as far as this can be said before anything is run again."""

from __future__ import annotations

from capbench.documents.result import Result, TrialStatus
from capbench.engine.trials import ENGINE_VERSION
from capbench.errors import BadSetting
from capbench.measure.estimate.threshold import ESTIMATOR_VERSION


def refuse_unfit(result: Result) -> None:
    """Raises BadSetting for a run that is incomplete, not settled, or of other versions than this capbench."""
    reason = _incomplete(result) or _outdated(result) or _unsettled(result)
    if reason:
        raise BadSetting(f"the run {result.run_id} cannot be submitted: {reason}")


def _incomplete(result: Result) -> str:
    failed = [trial for trial in result.trials if trial.status is TrialStatus.FAILED]
    if not result.trials:
        return "it has no trials; submit the document that `capbench run` stored"
    if failed:
        return f"{len(failed)} of its {len(result.trials)} trials failed; the same command tries them again"
    return ""


def _outdated(result: Result) -> str:
    stated = (result.environment.engine, result.protocol.estimator)
    if stated == (ENGINE_VERSION, ESTIMATOR_VERSION):
        return ""
    return (
        f"it was made with engine {stated[0]} and estimator {stated[1]}, this capbench has engine {ENGINE_VERSION} and "
        f"estimator {ESTIMATOR_VERSION}; measure it again"
    )


def _unsettled(result: Result) -> str:
    capacity, share = result.capacity, result.suite and result.suite.settle
    if capacity.settled is False:
        drift = "" if capacity.drift is None else f" (by {capacity.drift:+.1%} at the last doubling)"
        return (
            f"it is not settled: more steps raise its capacity{drift}, and it would not be ranked; submit settled ones"
        )
    if capacity.settled is None and share:
        return f"the suite settles capacities to {share:.0%}, and this one was not; measure it with --settle {share:g}"
    return ""
