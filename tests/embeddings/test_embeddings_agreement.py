"""The safety net: what it must let through, and what it must never."""

import time

import pytest
from notation_pairs import WRITTEN_OTHERWISE

from embeddings.verify.agreement import agree
from embeddings.verify.numbers import digits, number_words, ordinal_word

RESET = "How do I reset my password?"


@pytest.mark.parametrize(
    "asked",
    [
        "How do I reset my password?",
        "How can I reset my password?",
        "How should I reset my password",
        "how to reset my password",
        "how do i reset the password",
        "HOW DO I RESET MY PASSWORD?",
        "How To Reset My Password",
        "What is the way to reset my password?",
        "What's the best way to reset my password?",
        "What are the steps to reset my password?",
        "What is the process for resetting my password?",
        "What steps do I need to take to reset my password?",
        "What should I do to reset my password?",
        "Hi, could you please tell me how to reset my password?",
        "Hello! How do I reset my password? Thanks",
        "How do we reset our password?",
        "Please tell me how to reset my password.",
        "How do I reset my passwords?",
        "Do you know how to reset my password?",
    ],
)
def test_ordinary_paraphrases_agree(asked):
    assert agree(asked, RESET) is None


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ("Can I use my card abroad?", "Is it possible to use my card abroad?"),
        ("What's the refund policy?", "What is the refund policy?"),
        ("How do I log in?", "How do I sign in?"),
        ("How do I delete my account?", "How can I remove my account?"),
        ("Why can't I log in?", "why cannot I log in"),
        ("What is the colour of the sky?", "what is the color of the sky"),
        ("How many e-mails may I send?", "How many emails may I send?"),
        ("Is it 25 km?", "Is it twenty-five kilometers?"),
        ("Send 1,000 dollars", "send one thousand dollars"),
        ("What is the 2nd law?", "What is the second law?"),
        ("Must I pay?", "Do I have to pay?"),
        ("Expand (x - y)^2", "expand (x - y)^2"),
        ("What is gcd(100,200)?", "what's gcd(100,200)"),
        ("Is 1,000 a lot?", "is 1000 a lot"),
        ("How come the sky is blue?", "Why the sky is blue?"),
    ],
)
def test_spelling_and_plain_equals_agree(asked, stored):
    assert agree(asked, stored) is None
    assert agree(stored, asked) is None


@pytest.mark.parametrize(
    ("asked", "stored", "reason"),
    [
        # another thing
        ("How do I delete my account?", "How do I delete my project?", "words"),
        ("Is Ann an activist?", "Is Ann a terrible activist?", "words"),
        ("How do I cook rice?", "How do I cook brown rice?", "words"),
        ("hello", "hi", "words"),
        ("", "How?", "words"),
        # numbers, units, versions, dates
        ("What is 2 + 2?", "What is 2 + 3?", "number"),
        ("Cancel after 7 days", "Cancel after seventeen days", "number"),
        ("Install Python 3.1", "Install Python 3.10", "number"),
        ("What happened on 2024-05-01?", "What happened on 2024-05-10?", "number"),
        ("Meet at 10:30", "Meet at 10:45", "number"),
        ("What is the first law?", "What is the third law?", "number"),
        ("Is -5 even?", "Is 5 even?", "number"),
        ("Do I get 5%?", "Do I get $5?", "unit"),
        ("Is 5 km far?", "Is 5 miles far?", "unit"),
        ("Meet at 10 am", "Meet at 10 pm", "unit"),
        ("Meet at 10am", "Meet at 10", "unit"),
        ("What is 5 - 3?", "What is 5 * 3?", "symbol"),
        # negation and polarity
        ("Can I smoke here?", "Can't I smoke here?", "negation"),
        ("Is it safe to drive?", "Is it safe not to drive?", "negation"),
        ("Coffee without milk", "Coffee with milk", "negation"),
        ("Who never won?", "Who won?", "negation"),
        ("Why isnt it on?", "Why is it on?", "negation"),
        ("How do I upgrade my plan?", "How do I downgrade my plan?", "antonym"),
        ("How do I enable tracking?", "How do I disable tracking?", "antonym"),
        ("Is it legal?", "Is it illegal?", "antonym"),
        ("Is it useful?", "Is it useless?", "antonym"),
        ("What to do before flying", "What to do after flying", "antonym"),
        ("Should I buy gold?", "Should I sell gold?", "antonym"),
        ("How do I turn on sync?", "How do I turn off sync?", "antonym"),
        ("What is the monthly price?", "What is the yearly price?", "antonym"),
        ("How do I log in?", "How do I log out?", "antonym"),
        ("How do I become more open?", "How do I become less open?", "antonym"),
        # quoted strings and code
        ('How do I print "foo"?', 'How do I print "bar"?', "quoted"),
        ("What does “yes” mean?", "What does “no” mean?", "quoted"),
        ("What does `ls -l` do?", "What does `ls -a` do?", "code"),
        ("What does git --amend do", "What does git --abort do", "code"),
        ("Open /etc/hosts", "Open /etc/passwd", "code"),
        ("What is my_var?", "What is my_val?", "code"),
        ("Is https://a.example up?", "Is https://b.example up?", "code"),
        # names
        ("Who is Emma Hernandez?", "Who is Emma Gonzalez?", "name"),
        ("What was World War I?", "What was World War II?", "name"),
        ("What was World War I?", "What was World War?", "name"),
        ("What does vitamin A do?", "What does vitamin D do?", "name"),
        ("Who leads the US?", "Who leads us?", "person"),
        ("Do C++ loops end?", "Do C loops end?", "name"),
        # kinds of question, tense
        ("How do I pay?", "Why do I pay?", "question"),
        ("How do I pay?", "Can I pay?", "question"),
        ("Should I pay?", "Can I pay?", "question"),
        ("When is it open?", "Where is it open?", "question"),
        ("Is Ann a pilot?", "Was Ann a pilot?", "question"),
        ("Did Ann win?", "Does Ann win?", "question"),
        # roles
        ("flights from Rome to Paris", "flights from Paris to Rome", "order"),
        ("Do dogs chase cats?", "Do cats chase dogs?", "order"),
        ("flights from Rome", "flights to Rome", "relation"),
        ("Is it on the table?", "Is it under the table?", "relation"),
        ("Can I sue my boss?", "Can my boss sue me?", "question"),
        ("How do I forgive him?", "How do I forgive her?", "person"),
        ("What is my name?", "What is your name?", "person"),
        ("Is Ann taller than Bob?", "Is Bob taller than Ann?", "order"),
        # what only looks equal to an encoder without case, accents and rare characters
        ("What does 🎉 mean?", "What does 🎈 mean?", "symbol"),
        ("怎么重置密码", "怎么删除密码", "words"),
        ("a\x00b", "a\x01b", "symbol"),
        ("What is x²?", "What is x2?", "words"),
        ("(a+b)*c", "a+(b*c)", "order"),
        ("pâté", "pate", "words"),
        ("x" * 200, "y" * 200, "words"),
    ],
)
def test_near_misses_are_refused_with_their_reason(asked, stored, reason):
    assert agree(asked, stored) == reason
    assert agree(stored, asked) == reason


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        *WRITTEN_OTHERWISE,
        ("How do I type 20\u00b0C?", "How do I type 20 celsius?"),
        ("How many dollars is 5 pounds?", "How many dollars is 5 lbs?"),
        ("What is 0.375?", "What is .375?"),
        ("What is 375?", "What is .375?"),
        ("Convert 100 \u00b0F to \u00b0C", "Convert 100 Fahrenheit to Celsius"),
        ("Slope through (1,2)?", "Slope through (1, 2)?"),
        ("Are the dogs 3:2?", "Are the dogs 3 : 2?"),
        ("Where is gate no. 5?", "Where is gate number 5?"),
    ],
)
def test_what_is_equal_in_most_questions_only_does_not_agree(asked, stored):
    assert agree(asked, stored) is not None
    assert agree(stored, asked) is not None


def test_a_long_text_takes_no_longer_than_its_length_asks_for():
    text = "How do I and (maybe) not " * 650
    started = time.process_time()
    assert agree(text, text + " now") is not None
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    ("words", "number", "taken"),
    [
        ("seven", "7", 1),
        ("zero points", "0", 1),
        ("twenty five", "25", 2),
        ("twenty twenty", "20", 1),
        ("five six", "5", 1),
        ("hundred", "100", 1),
        ("one hundred and five apples", "105", 4),
        ("one hundred and apples", "100", 2),
        ("two thousand three hundred and forty five", "2345", 7),
        ("three million", "3000000", 2),
        ("nineteen ninety", "19", 1),
    ],
)
def test_numbers_in_words_are_read_to_their_end(words, number, taken):
    assert number_words(words.split()) == (number, taken)


def test_what_is_no_number_word_is_none():
    assert number_words(["and", "five"]) is None
    assert number_words([]) is None
    assert ordinal_word("seconds") is None


@pytest.mark.parametrize(
    ("written", "form"),
    [
        ("1,000", "1000"),
        ("1,000,000.50", "1000000.50"),
        ("1,00", "1,00"),
        ("3.10", "3.10"),
        ("3rd", "3th"),
    ],
)
def test_numbers_in_digits_keep_what_was_written(written, form):
    assert digits(written) == form
