"""Claims of a paper, as a recipe declares them: what was published, and which runs it is held against."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, model_validator

from capbench.declared import Declared, Words
from capbench.quantity import check_across, filled
from capbench.suite import Name

Numbers = Annotated[tuple[float, ...], Field(strict=False)]
Only = dict[str, JsonValue]
"""Values by field that a point must have; of a list, one of them."""
Range = Annotated[tuple[float, float], Field(strict=False)]
Span = float | Range
"""What was published: a number, or the ends of a range."""


class Claim(Declared):
    """Something a paper says that can turn out otherwise."""

    id: Name
    claim: str = Field(min_length=1, description="what is claimed, in a line")
    pedigree: Literal["paper", "code", "derived", "protocol"] = Field(description="of the published side")
    where: str = Field(min_length=1, description="where it is published: arXiv number, table, figure")
    not_shown: str = Field("", description="why it cannot be shown here, where it cannot")

    def sweep_ids(self) -> tuple[str, ...]:
        """The sweeps it speaks of."""
        raise NotImplementedError

    def expressions(self) -> tuple[str, ...]:
        """The quantities it is about."""
        raise NotImplementedError


class OneSweep(Claim):
    """A claim on one quantity of one sweep."""

    sweep: str
    y: str
    only: Only = Field({}, description="only points with these values")

    def sweep_ids(self) -> tuple[str, ...]:
        """Its sweep."""
        return (self.sweep,)

    def expressions(self) -> tuple[str, ...]:
        """Its quantity."""
        return (self.y,)


class TableClaim(OneSweep):
    """Published numbers, one a point of the sweep as it is declared, in its order."""

    kind: Literal["table"]
    published: Numbers = Field(min_length=1)
    within: float = Field(gt=0, description="largest difference that counts as the same")


class ValueClaim(OneSweep):
    """A published number or range; several points count by their mean."""

    kind: Literal["value"]
    published: Span
    within: float = Field(0.0, ge=0, description="how far from it still counts as the same")


class TrendClaim(OneSweep):
    """How y goes with x; points with the same x count by their mean."""

    kind: Literal["trend"]
    x: str
    across: Words = Field((), description="values of x that stand for {} in y, where x is no field of the runs")
    expected: Literal["rises", "falls", "flat", "peaks inside", "dips inside"]
    within: float | None = Field(None, gt=0, description="what counts as flat")

    @model_validator(mode="after")
    def _flat_is_measured(self) -> TrendClaim:
        if (self.expected == "flat") != (self.within is not None):
            raise ValueError('`within` belongs to expected = "flat", which needs it: how much change counts as none')
        return self

    @model_validator(mode="after")
    def _values_stand_for_braces(self) -> TrendClaim:
        check_across(self.across, (self.y,))
        return self

    def expressions(self) -> tuple[str, ...]:
        """Both axes."""
        return filled(self.y, self.across) if self.across else (self.x, self.y)


class LargerClaim(OneSweep):
    """One quantity is larger than another (times a factor); several points count by their mean."""

    kind: Literal["larger"]
    than_sweep: str = Field("", description="default: the same sweep")
    than_only: Only | None = Field(None, description="default: the same points")
    than_y: str = Field("", description="default: the same quantity")
    factor: float = Field(1.0, gt=0)

    @model_validator(mode="after")
    def _sides_differ(self) -> LargerClaim:
        if (self.sweep, self.only, self.y) == self.other():
            raise ValueError("nothing is larger than itself; set than_sweep, than_only or than_y")
        return self

    def other(self) -> tuple[str, Only, str]:
        """Sweep, selection and quantity of the other side."""
        only = self.only if self.than_only is None else self.than_only
        return self.than_sweep or self.sweep, only, self.than_y or self.y

    def sweep_ids(self) -> tuple[str, ...]:
        """Both sweeps."""
        return tuple(dict.fromkeys((self.sweep, self.other()[0])))

    def expressions(self) -> tuple[str, ...]:
        """Both quantities."""
        return (self.y, self.other()[2])


class FitClaim(Claim):
    """A parameter of a form fitted over the points of one sweep or several; or its R²."""

    kind: Literal["fit"]
    sweeps: Words = Field(min_length=1)
    x: str
    y: str
    per: str = Field("", description="y is its slope in this field, over the points that share x")
    only: Only = Field({}, description="only points with these values")
    form: str = Field(description="as capbench fit names it: proportional, linear, power, x log x")
    parameter: str = Field(description="of the form; or r_squared")
    published: Span
    within: float = Field(0.0, ge=0)

    def sweep_ids(self) -> tuple[str, ...]:
        """Its sweeps."""
        return self.sweeps

    def expressions(self) -> tuple[str, ...]:
        """Both axes."""
        return (self.x, self.y)


class RatioClaim(OneSweep):
    """What is measured over a bound, at every point: inside a published range, or never below a number."""

    kind: Literal["ratio"]
    bound: str = Field(description="id of the bound")
    published: Range | None = None
    least: float | None = None

    @model_validator(mode="after")
    def _one_side_is_given(self) -> RatioClaim:
        if (self.published is None) == (self.least is None):
            raise ValueError("give published = [low, high], or least = number")
        return self

    def expressions(self) -> tuple[str, ...]:
        """What is divided, and by what."""
        return (self.y, f"bound.{self.bound}")


AnyClaim = Annotated[
    TableClaim | ValueClaim | TrendClaim | LargerClaim | FitClaim | RatioClaim, Field(discriminator="kind")
]
