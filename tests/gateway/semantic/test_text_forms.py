"""Two texts that name others: a contradiction, a doubt, or neither."""

from difflib import SequenceMatcher

import pytest

from gateway.semantic.plain_text import MAX_LETTERS, MAX_PAIRS, names_differ


def told(one, other):
    there, back = (
        names_differ(one, other),
        names_differ(other, one),
    )
    assert there is back
    return there


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The author is Anna Karlsson.", "The author is Berta Holm."),
        ("It was written by Anna Karlsson", "It was written by Berta Holm in fact"),
        ("The capital is Paris.", "The capital is Lyon."),
        ("You have to ask Mr. Smith.", "You have to ask Mr. Jones."),
        ("It is made by J. Karlsson.", "It is made by B. Holm."),
        ("You reset it in Settings.", "You reset it in Accounts."),
        ("That is Anna's book.", "That is Berta's book."),
    ],
)
def test_others_in_the_same_english_words_contradict(one, other):
    assert told(one, other) is True


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The author is Anna Karlsson.", "The author is not known."),
        ("The author is Anna Karlsson.", "The author is Anna Holm."),
        ("The author is Anna Karlsson.", "Nobody but Berta Holm did it."),
        ("The author is Anna Karlsson.", "The author is a Swede."),
        ("It is called Kiev.", "It is called Kyiv."),
        ("It is made by NASA.", "It is made by Boeing."),
        ("THE AUTHOR IS ANNA.", "THE AUTHOR IS BERTA."),
        ("How The Author Is Called: Anna", "What The Book Is Called: Berta"),
        ("Reset Your Password", "Change Your Login"),
        ("A Guide to the Reset of Passwords", "A Guide to the Change of Logins and Names"),
        ("Das ist ein Hund.", "Das ist ein Tier."),
        ("Der Autor ist Karlsson.", "Die Autorin ist Holm."),
        ("Sie finden das in der Kasse.", "Sie finden das in der Abteilung."),
        ("Choose it in Settings.", "The button Options has that."),
    ],
)
def test_capitals_that_prove_no_name_are_a_doubt_at_most(one, other):
    assert told(one, other) is False


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Paris.", "It is Paris."),
        ("Anna wrote it.", "It was written by Anna."),
        ("The author is Anna Karlsson.", "ANNA KARLSSON"),
        ("Choose Reset in the menu.", "In the menu, choose reset."),
        ("Open it. Close it.", "Open it, then close it."),
        ("So: Close it.", 'So "Close it"'),
        ("I think I'm sure.", "Sure, we think."),
        ("The car (Anna has it).", "Has anna the car"),
        ("no capitals", "none at all"),
        ("", ""),
    ],
)
def test_the_same_names_and_the_capitals_of_sentences_tell_nothing(one, other):
    assert told(one, other) is None


class Compared:
    """Counts the letters that are looked at to find out how near two spellings are."""

    def __init__(self, monkeypatch):
        self.letters = 0
        monkeypatch.setattr(f"{names_differ.__module__}.SequenceMatcher", self._matcher)

    def _matcher(self, _junk, one, other, *, autojunk):
        self.letters += len(one) + len(other)
        return SequenceMatcher(None, one, other, autojunk=autojunk)


@pytest.mark.parametrize("length", [MAX_LETTERS + 1, 1_000, 9_000])
def test_words_without_end_are_no_names_to_compare(monkeypatch, length):
    compared = Compared(monkeypatch)
    one, other = "A" + "ba" * (length // 2), "B" + "cb" * (length // 2)
    assert told(f"The author is {one}.", f"The author is {other}.") is False
    assert compared.letters == 0


def test_the_longest_names_that_are_compared_contradict_still():
    one, other = "A" * 1 + "b" * (MAX_LETTERS - 1), "C" + "d" * (MAX_LETTERS - 1)
    assert told(f"The author is {one}.", f"The author is {other}.") is True


def test_many_names_are_not_compared_each_with_each(monkeypatch):
    compared = Compared(monkeypatch)
    count = int(MAX_PAIRS**0.5) + 1
    one, other = (" ".join(first + "abcdefghij"[n] for n in range(count)) for first in "XY")
    rest = "is that which has all of them from the one who wrote it by the sea to this"
    assert told(f"It {rest} {one}", f"It {rest} {other}") is False
    assert compared.letters == 0
