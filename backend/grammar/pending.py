"""A grammar between who asked for it and who compiles it."""

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backend.grammar.matcher import GrammarError, GrammarMatcher
from backend.grammar.trials import Trial
from backend.ports import OverloadedError
from backend.scheduler.request import Grammar

if TYPE_CHECKING:
    import xgrammar


@dataclass(slots=True, eq=False)
class PendingGrammar:
    """A grammar that was asked for; read it when ``done``."""

    grammar: Grammar
    tenant: str = ""
    done: bool = False
    num_wanted: int = 1
    deadline: float = 0.0
    trial: Trial | None = None
    """While it is tried."""
    timer: threading.Timer | None = None
    _compiled: "xgrammar.CompiledGrammar | None" = None
    _error: GrammarError | OverloadedError | None = None

    def matcher(self) -> GrammarMatcher:
        """Return a new matcher. Raises GrammarError, OverloadedError where it had no turn."""
        if self._error is not None:
            raise self._error
        if self._compiled is None:
            raise RuntimeError("the grammar is not compiled yet")
        return GrammarMatcher(self._compiled)

    def settle(
        self,
        compiled: "xgrammar.CompiledGrammar | None",
        error: GrammarError | OverloadedError | None,
    ) -> bool:
        """Set what came of it. False: it was settled before."""
        if self.done:
            return False
        self._compiled, self._error = compiled, error
        self.done = True
        return True
