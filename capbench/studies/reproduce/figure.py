"""Figures as a recipe declares them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from capbench.documents.expressions import check_braces, expand_braces
from capbench.documents.toml_file import StringTuple, TomlModel
from capbench.studies.reproduce.claims import PointFilter
from capbench.studies.suite import Name


class Figure(TomlModel):
    """A figure of one or more sweeps."""

    id: Name
    title: str
    kind: Literal["lines", "heat_map", "points"] = Field(description="points: with a fitted line")
    sweeps: StringTuple = Field(min_length=1)
    x: str
    across: StringTuple = Field((), description="values of x that replace {} in y, if x is not a field of the runs")
    per: str = Field("", description="on points: y is its slope in this field, over the points that share x")
    y: StringTuple = Field(min_length=1, description="one or more quantities, one line each; on a heat map the colour")
    series: str = Field("", description="a field that splits a sweep into lines; on a heat map the other axis")
    only: PointFilter = Field({}, description="only points with these values")
    bound: StringTuple = Field((), description="ids of bounds drawn as dashed lines")
    published: bool = Field(False, description="whether published tables of the same sweeps and y are drawn too")
    form: str = Field("", description="the form drawn through points; default: the one that predicts best")
    headline: bool = Field(False, description="whether the index shows it")
    x_title: str = ""
    y_title: str = ""
    log_x: bool = False
    log_y: bool = False

    @field_validator("y", "bound", mode="before")
    @classmethod
    def _accept_one_string(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _heat_map_has_two_axes(self) -> Figure:
        if self.kind == "heat_map" and (not self.series or len(self.y) > 1 or len(self.sweeps) > 1):
            raise ValueError("a heat map takes one sweep and one y (the colour) over x and series")
        return self

    @model_validator(mode="after")
    def _braces_have_values(self) -> Figure:
        check_braces(self.across, self.y)
        return self

    def expressions(self) -> tuple[str, ...]:
        """The expressions that it draws."""
        if self.across:
            return tuple(expression for y in self.y for expression in expand_braces(y, self.across))
        return (self.x, *self.y, *(f"bound.{each}" for each in self.bound))
