"""The conformance kit as a pytest class, for the tests of plugin authors.

from capbench.testing import Conformance

class TestMyAttention(Conformance):
    plugin = MyAttention
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import ClassVar

from capbench.conformance.check import Check, CheckStatus, run_check
from capbench.conformance.kit import checks_of
from capbench.conformance.subject import Subject
from capbench.contract.plugin import Plugin
from capbench.registry.provenance import Provenance
from capbench.registry.registry import Provided, Registry, load_registry


class Conformance:
    """One test per rule of the contract that applies to `plugin`."""

    plugin: ClassVar[type[Plugin]]
    """The plugin class under test."""
    compiles: ClassVar[bool] = False
    """Whether to test the compiled step as well, which takes many seconds; `capbench check` does so by default."""

    def __init_subclass__(cls) -> None:
        """Adds one test method per rule, named after it."""
        super().__init_subclass__()
        for check in checks_of(cls.plugin) if hasattr(cls, "plugin") else ():
            setattr(cls, f"test_{check.__name__}", _test(check))

    @classmethod
    def subject(cls) -> Subject:
        """The plugin under test, with the installed plugins."""
        return _subject(cls.plugin, cls.compiles)


def _test(check: Check[Subject]) -> Callable[[Conformance], None]:
    def test(self: Conformance) -> None:
        __tracebackhide__ = True  # the message suffices
        result = run_check(check, self.subject())
        if result.verdict is CheckStatus.NOT_APPLICABLE:
            import pytest  # here, so that capbench does not depend on it

            pytest.skip(result.note)
        if result.verdict is CheckStatus.FAILED:
            raise AssertionError(
                f"{result.rule}\nexpected  {result.expected}\nseen      {result.seen}\nfix       {result.fix}"
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
