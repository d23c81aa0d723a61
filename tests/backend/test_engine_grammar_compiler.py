"""Who is compiled when, and what becomes of grammars that take too much."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref

import pytest
import torch
from grammar_walks import BYTES, END, HeldWorker, LocalWorker, Walks, next_tokens

from backend.grammar.compiler import CompilerLimits, GrammarCompiler
from backend.grammar.matcher import (
    GrammarError,
    GrammarMatcher,
    allocate_bitmask,
    apply_bitmask_,
)
from backend.grammar.worker import GrammarWorker, Vocabulary, WorkerError
from backend.ports import OverloadedError
from backend.scheduler.request import Grammar, GrammarKind


def regex(text):
    return Grammar(GrammarKind.REGEX, text)


class Compiler:
    """With a worker that a test holds."""

    def __init__(self, **limits):
        self.worker = HeldWorker()
        self.compiler = GrammarCompiler(lambda: BYTES, CompilerLimits(**limits), self.worker)
        self._woken = threading.Semaphore(0)
        self.compiler.wake = self._woken.release

    def ask(self, text):
        return self.compiler.compile(regex(text))

    def wait(self):
        assert self._woken.acquire(timeout=60)

    def begun(self):
        return self.worker.begun().source


def test_grammars_are_compiled_in_order_of_arrival_and_cached():
    compiler = Compiler()
    first, second = compiler.ask("a"), compiler.ask("b")
    assert compiler.begun() == "a"
    assert compiler.worker.idle
    compiler.worker.answer()
    assert compiler.begun() == "b"
    compiler.worker.answer()
    compiler.wait()
    compiler.wait()
    assert next_tokens(first.matcher(), []) == [ord("a")]
    assert next_tokens(second.matcher(), []) == [ord("b")]
    again = compiler.ask("a")
    assert again.done
    assert next_tokens(again.matcher(), list(b"a")) == [END]


def test_a_full_queue_refuses_the_newest():
    compiler = Compiler(waiting=2)
    kept = [compiler.ask("a"), compiler.ask("b")]
    refused = compiler.ask("c")
    assert [each.done for each in (*kept, refused)] == [False, False, True]
    with pytest.raises(OverloadedError, match="too many grammars"):
        refused.matcher()
    with pytest.raises(RuntimeError, match="not compiled yet"):
        kept[0].matcher()
    compiler.compiler.close()


def test_a_grammar_that_gets_no_turn_in_time_is_refused_as_overload():
    compiler = Compiler(wait_seconds=0.5)
    first = compiler.ask("a")
    assert compiler.begun() == "a"
    late = [compiler.ask("b"), compiler.ask("c")]
    while not late[1].done:  # though the first one is compiled all the while
        compiler.wait()
    for each in late:
        words = r"other grammars were being compiled for \d+\.\d seconds"
        with pytest.raises(OverloadedError, match=words):
            each.matcher()
    assert not first.done
    compiler.compiler.forget(late[0])  # its client leaves in this moment
    compiler.worker.answer()
    while not first.done:
        compiler.wait()
    assert next_tokens(first.matcher(), []) == [ord("a")]
    assert compiler.worker.idle


class Referred(Grammar):
    """Can be referred to weakly."""


def test_what_was_forgotten_is_kept_nowhere():
    compiler = Compiler(waiting=2)
    first = compiler.ask("a")
    assert compiler.begun() == "a"
    forgotten = []
    for number in range(10):
        pending = compiler.compiler.compile(Referred(GrammarKind.REGEX, f"b{number}"))
        forgotten.append(weakref.ref(pending.grammar))
        compiler.compiler.forget(pending)
        del pending
    gc.collect()
    assert not any(reference() for reference in forgotten)
    last = compiler.ask("c")
    compiler.worker.answer()
    assert compiler.begun() == "c"
    compiler.worker.answer()
    while not (first.done and last.done):
        compiler.wait()


def test_who_leaves_gives_up_a_place_in_the_queue_but_ends_no_compilation():
    compiler = Compiler()
    first, second = compiler.ask("a"), compiler.ask("b")
    assert compiler.ask("b") is second
    assert compiler.begun() == "a"
    for pending in (first, second, second):
        compiler.compiler.forget(pending)
    other = compiler.ask("b")
    assert other is not second
    joined = compiler.ask("a")
    assert joined is first
    compiler.worker.answer()
    assert compiler.begun() == "b"
    compiler.worker.answer()
    compiler.wait()
    compiler.wait()
    assert joined.done
    assert other.done
    assert not second.done


@pytest.mark.parametrize(
    ("outcome", "error", "words"),
    [
        (GrammarError("it is odd"), GrammarError, "it is odd"),
        (WorkerError("no process"), OverloadedError, "at the moment"),
        (ValueError("secret"), GrammarError, "could not be compiled"),
    ],
)
def test_what_the_worker_says_is_passed_on(outcome, error, words, caplog):
    compiler = Compiler()
    pending = compiler.ask("x")
    compiler.begun()
    compiler.worker.answer(outcome)
    compiler.wait()
    with pytest.raises(error, match=words):
        pending.matcher()
    assert "secret" not in caplog.text


def test_a_worker_is_restarted_behind_a_refusal_before_the_next_grammar():
    compiler = Compiler()
    compiler.ask("x")
    compiler.ask("y")
    compiler.begun()
    compiler.worker.answer(GrammarError("it took too long"))
    assert compiler.begun() == "y"
    assert compiler.worker.num_restarts == 1
    compiler.compiler.close()


def test_closing_refuses_all_that_wait():
    compiler = Compiler()
    pending = [compiler.ask("a"), compiler.ask("b")]
    compiler.begun()
    compiler.compiler.close()
    compiler.wait()
    for each in pending:
        with pytest.raises(OverloadedError):
            each.matcher()


def test_grammars_that_are_kept_are_bounded_together_and_each():
    sizes = {}
    for text in ("a{1,20}", "b{1,20}"):
        walks = Walks()
        walks.matcher(regex(text))
        sizes[text] = walks.compiler._cache_bytes
    walks = Walks(CompilerLimits(cache_bytes=sum(sizes.values()) - 1))
    for text in sizes:
        walks.matcher(regex(text))
    assert [grammar.source for grammar in walks.compiler._cache] == ["b{1,20}"]
    with pytest.raises(GrammarError, match=r"compiled it has .* bytes, of which 10 are allowed"):
        Walks(CompilerLimits(cache_bytes=10)).matcher(regex("a"))


def test_a_vocabulary_without_an_end_holds_nobody_to_a_grammar():
    worker = GrammarWorker(lambda: Vocabulary((b"a",), 1, frozenset()), 2**26)
    with pytest.raises(GrammarError, match="no token that ends an answer"):
        worker.compile(regex("a"), 60.0)


def test_without_xgrammar_a_grammar_is_refused_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    worker = GrammarWorker(lambda: BYTES, 2**26)
    with pytest.raises(GrammarError, match=r"pip install 'refrain-gateway\[structured\]'"):
        worker.compile(regex("a"), 60.0)


@pytest.fixture(scope="module")
def worker():
    worker = GrammarWorker(lambda: BYTES, 2**26)
    yield worker
    worker.close()
    assert worker._process.poll() is not None


# The library says so, and what the pattern is, on its standard error.
WARNED_OF = '{"type": "string", "pattern": "^(ab)$c"}'
# Minutes, even for a vocabulary of bytes.
ENDLESS = regex("|".join(f"a{{{i},{i + 50}}}[b-z]{{2,{i + 2}}}" for i in range(300)))


def test_a_grammar_compiled_in_the_worker_is_restored_whole(worker, capfd):
    matcher = GrammarMatcher(worker.compile(regex("(ab|c){2}"), 60.0))
    assert next_tokens(matcher, list(b"ab")) == [ord("a"), ord("c")]
    assert next_tokens(matcher, list(b"abc")) == [END]
    worker.compile(Grammar(GrammarKind.JSON_SCHEMA, WARNED_OF), 60.0)
    assert "(ab)" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        (regex("[a-"), "Regex parsing error"),
        (Grammar(GrammarKind.EBNF, 'root ::= "\ud800"'), "it could not be compiled"),
        (Grammar(GrammarKind.EBNF, "root ::= root"), "no token of the model fits"),
    ],
)
def test_a_refusal_says_why_and_costs_no_process(worker, grammar, words):
    worker.compile(regex("a"), 60.0)
    process = worker._process
    with pytest.raises(GrammarError, match=words):
        worker.compile(grammar, 60.0)
    assert next_tokens(GrammarMatcher(worker.compile(regex("a"), 60.0)), []) == [ord("a")]
    assert worker._process is process


def test_a_worker_that_was_killed_is_no_fault_of_the_grammar_and_is_started_again(worker):
    worker.compile(regex("a"), 60.0)
    process = worker._process
    # Stopped, it takes the next grammar and does not answer.
    process.send_signal(signal.SIGSTOP)
    killer = threading.Timer(0.2, process.kill)
    killer.start()
    matcher = GrammarMatcher(worker.compile(regex("b"), 60.0))
    assert next_tokens(matcher, []) == [ord("b")]
    assert worker._process.pid != process.pid


class LateTimer(threading.Timer):
    """Runs out when it is too late: when it is cancelled."""

    def start(self):
        pass

    def cancel(self):
        self.function()


def test_a_time_that_runs_out_behind_the_answer_kills_nothing(worker, monkeypatch):
    worker.compile(regex("a"), 60.0)
    process = worker._process
    with monkeypatch.context() as patched:
        patched.setattr(threading, "Timer", LateTimer)
        worker.compile(regex("b"), 60.0)
    worker.compile(regex("c"), 60.0)
    assert worker._process is process


def test_a_compilation_is_killed_at_its_deadline(worker):
    worker.compile(regex("a"), 60.0)
    process = worker._process
    with pytest.raises(GrammarError, match=r"not compiled within 0.05 seconds; make it simpler"):
        worker.compile(ENDLESS, 0.05)
    assert process.poll() == -signal.SIGKILL
    worker.compile(regex("a"), 60.0)


def test_closing_ends_a_compilation_that_is_under_way(worker):
    worker.compile(regex("a"), 60.0)
    threading.Timer(0.2, worker.close).start()
    with pytest.raises(WorkerError):
        worker.compile(ENDLESS, 600.0)


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar(GrammarKind.EBNF, "root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000),
        regex("(" * 30_000 + "a" + ")" * 30_000),
    ],
)
def test_what_takes_the_stack_takes_no_more_than_the_worker(worker, grammar):
    with contextlib.suppress(GrammarError):
        worker.compile(grammar, 60.0)
    worker.compile(regex("a"), 60.0)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel bounds no data elsewhere")
def test_what_takes_too_much_memory_is_refused_and_the_next_grammar_compiled(worker):
    with pytest.raises(GrammarError, match="it is too large; make it simpler"):
        worker.compile(Grammar(GrammarKind.EBNF, f'root ::= "{"ab" * 20_000_000}"'), 60.0)
    worker.compile(regex("a"), 60.0)


# A parent that dies while its worker has work for minutes.
DYING = """
import os, sys
from grammar_walks import BYTES
from backend.grammar.worker import GrammarWorker
from backend.scheduler.request import Grammar, GrammarKind
worker = GrammarWorker(lambda: BYTES, 2**26)
worker.compile(Grammar(GrammarKind.REGEX, "a"), 60.0)
worker._connection.send(Grammar(GrammarKind.REGEX, sys.argv[1]))
os.kill(os.getpid(), 9)
"""


def test_a_worker_ends_with_its_parent():
    path = os.pathsep.join(each for each in sys.path if each)
    # The worker shares standard output, so ``run`` returns when both have ended.
    dead = subprocess.run(
        [sys.executable, "-c", DYING, ENDLESS.source],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        timeout=100,
        check=False,
    )
    assert dead.returncode == -signal.SIGKILL


def test_a_bitmask_excludes_the_tokens_of_its_rows_alone():
    library = LocalWorker().library
    matchers = [GrammarMatcher(library.compile(regex(text))) for text in ("a", "[bc]", "a")]
    matchers[2].accept_tokens(list(b"x"))
    assert matchers[2].failure == "token 120 does not fit the grammar"
    bitmask = allocate_bitmask(3, 257)
    assert bitmask.shape == (3, 9)
    for row, matcher in enumerate(matchers):
        matcher.fill_bitmask(bitmask, row)
    logits = torch.zeros(3, 257)
    apply_bitmask_(logits, bitmask, torch.arange(len(bitmask)))
    assert [row.isfinite().nonzero().flatten().tolist() for row in logits] == [
        [ord("a")],
        list(b"bc"),
        list(range(257)),
    ]
    logits = torch.zeros(4, 257, dtype=torch.bfloat16)
    apply_bitmask_(logits, bitmask[:2], torch.tensor([3, 1]))
    assert logits.isfinite().sum(-1).tolist() == [257, 2, 257, 1]
