"""What is not fit for the board is refused before anybody verifies it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from capbench.documents.result import Result, SuiteCell, TrialStatus
from capbench.engine.trials import ENGINE_VERSION
from capbench.errors import BadSetting
from capbench.measure.estimate.threshold import ESTIMATOR_VERSION
from capbench.studies.verify.submittable import refuse_unfit
from tests.leaderboard.synthetic import SyntheticRecord, write_record


def fit_run(**capacity: Any) -> Result:
    """A run of this capbench that is settled, in a suite that settles."""
    made = SyntheticRecord().result()
    return made.model_copy(
        update={
            "capacity": made.capacity.model_copy(update={"settled": True, "drift": 0.01, **capacity}),
            "suite": SuiteCell(name="standard", version=4, tier=1024, settle=0.05),
            "environment": made.environment.model_copy(update={"engine": ENGINE_VERSION}),
            "protocol": made.protocol.model_copy(update={"estimator": ESTIMATOR_VERSION}),
        }
    )


def test_a_run_that_is_complete_settled_and_of_this_version_is_accepted() -> None:
    refuse_unfit(fit_run())
    refuse_unfit(fit_run(settled=None).model_copy(update={"suite": None}))


def with_failed_trial() -> Result:
    run = fit_run()
    failed = run.trials[0].model_copy(update={"status": TrialStatus.FAILED})
    return run.model_copy(update={"trials": (failed, *run.trials[1:])})


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (fit_run().model_copy(update={"trials": ()}), "it has no trials"),
        (with_failed_trial(), "1 of its 44 trials failed; the same command tries them again"),
        (fit_run(settled=False, drift=0.12), r"not settled: more steps raise its capacity \(by \+12\.0% at the last"),
        (
            fit_run(settled=None),
            "the suite settles capacities to 5%, and this one was not; measure it with --settle 0.05",
        ),
        (SyntheticRecord().result(), "made with engine None .* measure it again"),
    ],
)
def test_a_run_that_is_not_fit_is_refused_with_the_reason_and_the_remedy(run: Result, message: str) -> None:
    with pytest.raises(BadSetting, match=f"the run {run.run_id} cannot be submitted: .*{message}"):
        refuse_unfit(run)


def test_a_record_of_another_version_of_its_suite_is_refused(capbench, tmp_path: Path) -> None:
    path = write_record(tmp_path, SyntheticRecord(suite_version=1))
    out = tmp_path / "submitted.json"
    done = capbench("leaderboard", "submit", str(path), "--out", str(out))
    assert done.code == 2
    assert "the document is of suite standard 1, here is standard 4" in done.err
    assert not out.exists()
