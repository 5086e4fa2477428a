"""The criterion decides what holds, and is a part of the result document."""

from __future__ import annotations

import math

import pytest
from pydantic import TypeAdapter, ValidationError

from capbench import Criterion

READER = TypeAdapter(Criterion)


def test_a_value_at_the_threshold_meets_the_criterion() -> None:
    up, down = Criterion("f1", 0.9), Criterion("mse", 0.1, at_least=False)
    assert [up.is_met(value) for value in (0.8, 0.9, 1.0, math.nan)] == [False, True, True, False]
    assert [down.is_met(value) for value in (0.2, 0.1, 0.0, math.nan)] == [False, True, True, False]
    assert (str(up), str(down)) == ("f1 ≥ 0.9", "mse ≤ 0.1")


def test_a_criterion_is_read_back_as_it_was_written() -> None:
    criterion = Criterion("mse", 0.1, at_least=False)
    text = READER.dump_json(criterion)
    assert text == b'{"metric":"mse","threshold":0.1,"at_least":false}'
    read = READER.validate_json(text, strict=True)
    assert (read, hash(read)) == (criterion, hash(criterion))


@pytest.mark.parametrize(
    "text",
    [
        '{"metric": "f1"}',
        '{"metric": "f1", "threshold": "1"}',
        '{"metric": "f1", "threshold": 1e999}',
        '{"metric": "f1", "threshold": 1, "at_least": 1}',
        '{"metric": "f1", "threshold": 1, "at_most": true}',
        '["f1", 1]',
    ],
)
def test_a_criterion_is_read_strictly(text: str) -> None:
    with pytest.raises(ValidationError):
        READER.validate_json(text, strict=True)


def test_a_threshold_that_is_not_a_number_does_not_get_into_a_document() -> None:
    with pytest.raises(ValidationError, match="finite number"):
        READER.validate_python(Criterion("f1", math.nan))
