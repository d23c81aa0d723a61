"""Who is compiled when, and what becomes of grammars that take too much."""

import threading
from concurrent.futures import Future

import pytest
from grammar_walks import BYTES, END, HeldTrials, NoTrials, Walks, next_tokens

from backend.grammar.compiler import CompilerLimits, GrammarCompiler
from backend.grammar.jobs import Job, Refused, Tried
from backend.grammar.library import SharedLibrary, Vocabulary
from backend.grammar.matcher import GrammarError
from backend.grammar.trials import NoTrialsError, ProcessTrials
from backend.ports import OverloadedError
from backend.scheduler.request import Grammar, GrammarKind


def regex(text):
    return Grammar(GrammarKind.REGEX, text)


class Compiler:
    """With trials that a test holds."""

    def __init__(self, **limits):
        self.trials = HeldTrials()
        self.compiler = GrammarCompiler(lambda: BYTES, CompilerLimits(**limits), self.trials)
        self._woken = threading.Semaphore(0)
        self.compiler.wake = self._woken.release

    def ask(self, text, tenant=""):
        return self.compiler.compile(regex(text), tenant)

    def wait(self):
        assert self._woken.acquire(timeout=60)

    def begun(self):
        trial = self.trials.next()
        return trial, trial.job.grammar.source


def test_a_quick_grammar_overtakes_slow_ones():
    compiler = Compiler(quick_threads=1, slow_threads=1)
    for text in ("slow", "slower"):
        compiler.ask(text)
        trial, source = compiler.begun()
        assert (source, trial.job.cpu_seconds) == (text, 0.5)
        trial.answer(None)
        if text == "slow":
            held, source = compiler.begun()
            assert (source, held.job.cpu_seconds) == ("slow", None)
    quick = compiler.ask("quick")
    trial, source = compiler.begun()
    assert source == "quick"
    trial.answer(Tried(None))
    compiler.wait()
    assert ord("q") in next_tokens(quick.matcher(), [])
    assert compiler.trials.idle
    held.answer(Refused("it is slow"))
    compiler.wait()
    assert compiler.begun()[1] == "slower"


def test_no_tenant_has_all_places_of_the_slow_line():
    compiler = Compiler(quick_threads=1, slow_threads=2)
    begun = []
    for text, tenant in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        compiler.ask(text, tenant)
        trial, source = compiler.begun()
        assert trial.job.cpu_seconds is not None
        trial.answer(None)
        if source != "a2":
            begun.append(compiler.begun())
    assert [source for _, source in begun] == ["a1", "b1"]
    assert compiler.trials.idle
    begun[0][0].answer(Refused("no"))
    assert compiler.begun()[1] == "a2"


def test_a_full_line_refuses_the_tenant_that_has_most_in_it():
    compiler = Compiler(quick_threads=1, waiting=2)
    compiler.ask("a0", "a")
    compiler.begun()
    kept, greedy, modest = (compiler.ask(*each) for each in (("a1", "a"), ("a2", "a"), ("b1", "b")))
    assert (kept.done, greedy.done, modest.done) == (False, True, False)
    with pytest.raises(OverloadedError, match="too many grammars"):
        greedy.matcher()


def test_a_grammar_is_given_up_at_its_deadline_and_its_trial_ended():
    compiler = Compiler(quick_threads=1)
    slow, unlucky = compiler.ask("slow"), compiler.ask("unlucky")
    trial, _ = compiler.begun()
    compiler.compiler._give_up(unlucky)
    while slow.trial is None:
        pass
    compiler.compiler._give_up(slow)
    assert trial.cancelled.is_set()
    with pytest.raises(GrammarError, match="not compiled within 30 seconds"):
        slow.matcher()
    with pytest.raises(OverloadedError, match="other grammars"):
        unlucky.matcher()
    # Nobody waits for them, so they keep nobody waiting.
    compiler.ask("last")
    assert compiler.begun()[1] == "last"
    assert not slow.timer.is_alive() or slow.timer.finished.is_set()


def test_a_trial_goes_on_until_the_last_who_wanted_it_has_left():
    compiler = Compiler(quick_threads=1)
    pending = compiler.ask("x")
    assert compiler.ask("x") is pending
    trial, _ = compiler.begun()
    compiler.compiler.forget(pending)
    assert not pending.done
    compiler.compiler.forget(pending)
    assert trial.cancelled.wait(60)
    again = compiler.ask("x")
    assert again is not pending
    compiler.begun()[0].answer(Tried(None))
    compiler.wait()
    compiler.wait()
    assert again.done
    compiler.compiler.forget(again)
    assert compiler.ask("x").done


@pytest.mark.parametrize(
    ("outcome", "error", "words"),
    [
        (Refused("it is odd"), GrammarError, "it is odd"),
        (NoTrialsError("no process"), OverloadedError, "at the moment"),
        (ValueError("secret"), GrammarError, "could not be compiled"),
    ],
)
def test_what_a_trial_says_is_told(outcome, error, words):
    compiler = Compiler()
    pending = compiler.ask("x")
    compiler.begun()[0].answer(outcome)
    compiler.wait()
    with pytest.raises(error, match=words):
        pending.matcher()


def test_what_ends_in_both_lines_is_too_large():
    compiler = Compiler()
    pending = compiler.ask("x")
    compiler.begun()[0].answer(None)
    compiler.begun()[0].answer(None)
    compiler.wait()
    with pytest.raises(GrammarError, match="too large"):
        pending.matcher()


def test_grammars_that_are_kept_are_bounded_together_and_each():
    sizes = {}
    for text in ("a{1,20}", "b{1,20}"):
        walks = Walks()
        walks.matcher(regex(text))
        sizes[text] = walks.compiler._ready_bytes
    walks = Walks(CompilerLimits(cache_bytes=sum(sizes.values()) - 1))
    for text in sizes:
        walks.matcher(regex(text))
    assert [grammar.source for grammar in walks.compiler._ready] == ["b{1,20}"]
    with pytest.raises(GrammarError, match=r"compiled it has .* bytes, of which 10 are allowed"):
        Walks(CompilerLimits(cache_bytes=10)).matcher(regex("a"))


def test_a_vocabulary_without_an_end_holds_nobody_to_a_grammar():
    endless = Vocabulary((b"a",), 1, frozenset())
    compiler = GrammarCompiler(lambda: endless, trials=NoTrials())
    woken = threading.Event()
    compiler.wake = woken.set
    pending = compiler.compile(regex("a"))
    assert woken.wait(60)
    with pytest.raises(GrammarError, match="no token that ends an answer"):
        pending.matcher()


@pytest.fixture(scope="module")
def trials():
    trials = ProcessTrials(lambda: BYTES, 2**26)
    yield trials
    process = trials._process
    trials.close()
    assert process.poll() is not None


def job(grammar, *, seconds=60.0, cpu_seconds=None, quick=30.0):
    return Job(grammar, seconds, cpu_seconds, quick)


# The library says so, and what the pattern is, on its standard error.
WARNED_OF = '{"type": "string", "pattern": "^(ab)$c"}'
# Minutes, even for a vocabulary of bytes.
ENDLESS = regex("|".join(f"a{{{i},{i + 50}}}[b-z]{{2,{i + 2}}}" for i in range(300)))


def test_a_process_that_died_is_started_again(trials):
    trial = trials.begin(job(regex("a")))
    trials._process.kill()
    with pytest.raises(NoTrialsError):
        trial.result()
    assert trials.begin(job(regex("a"))).result() == Tried(None)


def test_a_child_says_what_is_quick_and_sends_what_is_not(trials):
    assert trials.begin(job(regex("(ab|c){2}"))).result() == Tried(None)
    tried = trials.begin(job(regex("(ab|c){2}"), quick=0.0)).result()
    library = SharedLibrary(lambda: BYTES, 2**26)
    restored = library.make(regex("(ab|c){2}"), tried.serialised)
    from backend.grammar.matcher import GrammarMatcher

    matcher = GrammarMatcher(restored)
    assert next_tokens(matcher, list(b"ab")) == [ord("a"), ord("c")]
    assert next_tokens(matcher, list(b"abc")) == [END]
    refused = trials.begin(job(regex("[a-"))).result()
    assert "Regex parsing error" in refused.reason
    warned_of = trials.begin(job(Grammar(GrammarKind.JSON_SCHEMA, WARNED_OF))).result()
    assert warned_of.serialised is not None
    surrogate = Grammar(GrammarKind.EBNF, 'root ::= "\ud800"')
    assert trials.begin(job(surrogate)).result() == Refused("it could not be compiled")


def test_children_end_with_their_time_or_when_nobody_waits(trials):
    assert trials.begin(job(ENDLESS, cpu_seconds=0.05)).result() is None
    assert trials.begin(job(ENDLESS, seconds=0.05)).result() is None
    trial = trials.begin(job(ENDLESS))
    trial.cancel()
    assert trial.result() is None
    assert trials.begin(job(regex("a"))).result() == Tried(None)


def test_closing_ends_what_is_being_tried():
    trials = ProcessTrials(lambda: BYTES, 2**26)
    trial = trials.begin(job(ENDLESS, seconds=600.0))
    assert trials.begin(job(regex("a"))).result() == Tried(None)
    outcome = Future()

    def wait():
        try:
            outcome.set_result(trial.result())
        except NoTrialsError as error:
            outcome.set_exception(error)

    threading.Thread(target=wait, daemon=True).start()
    trials.close()
    with pytest.raises(NoTrialsError):
        outcome.result(60)


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar(GrammarKind.EBNF, "root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000),
        regex("(" * 30_000 + "a" + ")" * 30_000),
    ],
)
def test_what_would_take_the_stack_takes_no_more_than_its_child(trials, grammar):
    outcome = trials.begin(job(grammar)).result()
    assert outcome is None or isinstance(outcome, Refused | Tried)
    assert trials.begin(job(regex("a"))).result() == Tried(None)
