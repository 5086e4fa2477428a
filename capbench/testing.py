"""For the tests of plugin authors: the conformance kit as one pytest class.

from capbench.testing import Conformance

class TestMyAttention(Conformance):
    plugin = MyAttention
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import ClassVar

from capbench.conformance.kit import checks_of
from capbench.conformance.outcome import Check, Verdict, judge
from capbench.conformance.subject import Subject
from capbench.plugin import Plugin
from capbench.provenance import Provenance
from capbench.registry import Provided, Registry, load_registry


class Conformance:
    """One test for each rule of the contract that holds for `plugin`."""

    plugin: ClassVar[type[Plugin]]
    """The plugin class under test."""
    compiles: ClassVar[bool] = False
    """Whether the step is compiled, too, which takes many seconds; `capbench check` does it anyway."""

    def __init_subclass__(cls) -> None:
        """Gives the class its tests, named for the rules."""
        super().__init_subclass__()
        for check in checks_of(cls.plugin) if hasattr(cls, "plugin") else ():
            setattr(cls, f"test_{check.__name__}", _test(check))

    @classmethod
    def subject(cls) -> Subject:
        """The plugin in the company of what is installed."""
        return _subject(cls.plugin, cls.compiles)


def _test(check: Check[Subject]) -> Callable[[Conformance], None]:
    def test(self: Conformance) -> None:
        __tracebackhide__ = True  # the message says it all
        outcome = judge(check, self.subject())
        if outcome.verdict is Verdict.NOT_APPLICABLE:
            import pytest  # only tests need it, and they have it

            pytest.skip(outcome.note)
        if outcome.verdict is Verdict.FAILED:
            raise AssertionError(
                f"{outcome.rule}\nexpected  {outcome.expected}\nseen      {outcome.seen}\nfix       {outcome.fix}"
            )

    test.__name__, test.__doc__ = f"test_{check.__name__}", check.__doc__
    return test


@cache
def _subject(plugin: type[Plugin], compiles: bool) -> Subject:
    provenance = Provenance(plugin.__module__, "under test", "?", plugin.__module__)
    return Subject(Provided(plugin, provenance), _installed(), compiles)


@cache
def _installed() -> Registry:
    return load_registry()
