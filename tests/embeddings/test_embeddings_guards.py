"""The guards before the verifier: strings, signs; what they leave to it; any text."""

import sys

import pytest
from guarding import both_ways, guard


@pytest.mark.parametrize(
    ("asked", "stored", "reason"),
    [
        ("What does `ls -l` do?", "What does `ls -a` do?", "quoted"),
        ("What does grep -v do?", "What does grep -V do?", "quoted"),
        ("Did Ann beat Bob at chess?", "Did Bob beat Ann at chess?", "order"),
        ("What is ten minus five?", "what is five minus ten", "order"),
        ("Is Ann remembered by Bob?", "Does Ann remember Bob?", "order"),
        ("Was the total checked by Bob?", "Did the total check Bob?", "order"),
        ("Was Ann not trusted by Bob?", "Did Ann not trust Bob?", "order"),
        ("How long from March 3 to June 5?", "How long from June 5 to March 3?", "order"),
        ("Is 400 mcg of it safe?", "Is 400 mg of it safe?", "unit"),
        ("How much does 3 kW cost?", "How much does 3 kWh cost?", "unit"),
        ('What does "affect" mean?', 'What does "effect" mean?', "quoted"),
        ("Is https://a.example/x down?", "Is https://a.example/y down?", "quoted"),
        ("Write to ann@example.org", "Write to bob@example.org", "quoted"),
        ('Put into the past tense: "He runs."', 'Correct the grammar: "He run."', "quoted"),
        ("What does `x^2` do?", "What does `x squared` do?", "quoted"),
        (
            "What does print `no. of items: 5` do?",
            "What does print `number of items: 5` do?",
            "quoted",
        ),
        ('grep for "no. 5"', 'grep for "number 5"', "quoted"),
        ('x = "yes" if a else "no. 1"', 'x = "yes" if a else "number 1"', "quoted"),
        ("How do I write 'x^2' in LaTeX?", "How do I write 'x squared' in LaTeX?", "quoted"),
        ("Solve x + 2 = 5", "Solve x * 2 = 5", "symbol"),
        ("Expand (x - y)^2", "Expand x - y^2", "symbol"),
        ("Expand (x - y)^2", "Expand (x y)^2", "symbol"),
        ("What is (-3)^2?", "What is -3^2?", "symbol"),
        ("What is ln(x)^2?", "What is ln(x^2)?", "symbol"),
        ("sin(x)^2", "sin(x^2)", "symbol"),
        ("What is (a/b)^2?", "What is a/b^2?", "symbol"),
        ("What is 1/(x^2)?", "What is (1/x)^2?", "symbol"),
        ("What is x^2 - y?", "What is x^2 y?", "symbol"),
        ("What is (mean - median)^2?", "What is mean - median^2?", "symbol"),
        ("What is 12 - (4)^2?", "What is (12 4)^2?", "symbol"),
        ("How big is (5 m)²?", "How big is 5 m²?", "symbol"),
        ("Expand (a - b)³", "Expand a - b³", "symbol"),
        ("What is sin(x)²?", "What is sin(x²)?", "symbol"),
        ("What is 10²³?", "What is (10²)³?", "symbol"),
        ("Factor (x - 2)²", "Factor x - 2²", "symbol"),
        ("Expand (x - y) squared", "Expand x - y squared", "symbol"),
        ("Run `git add -A` first", "Run `git add -u` first", "quoted"),
        (
            "What is E1001 on https://a.example/b?",
            "What is E1001 on https://a.example/c?",
            "quoted",
        ),
    ],
)
def test_what_changes_the_answer_is_refused(asked, stored, reason):
    assert both_ways(asked, stored) == reason


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ("How do I reset my password?", "What's the best way to reset my password, please?"),
        ("How can I get my money back?", "What do I have to do to be refunded?"),
        ("How do I log in?", "how to sign in"),
        ("How do I become more brave?", "How do I become less fearful?"),
        ("Did Google buy Motorola?", "Was Motorola bought by Google?"),
        ("What is louder, a car or a bus?", "What is louder, a bus or a car?"),
        ("What happened before the war?", "what took place prior to the war"),
        ("Is Ann married to Bob?", "Is Bob married to Ann?"),
        ("Do both shops open?", "Do the two shops open?"),
        ("Who is Obama?", "Who is Barack Obama?"),
        ("Is tipping usual in the USA?", "Is tipping usual in the United States?"),
        ("Is tipping usual in the US?", "Is tipping usual in America?"),
        ("What is the capital of France?", "What is the French capital?"),
        ("Where is NYC?", "Where is New York City?"),
        ("What is the World Health Organization?", "What is the WHO?"),
        ("Why can't I log in?", "Why am I unable to log in?"),
        ("Why can't I log in?", "why cannot i log in"),
        ("I don't know how to cook rice", "How do I cook rice?"),
        ("Is it legal or not?", "Is it legal?"),
        ("How come the sky is blue?", "Why is the sky blue?"),
        ("What time does it close?", "When does it close?"),
        ("Where can I change my address?", "How do I change my address?"),
        ("How do I quickly delete a photo?", "How can I remove a picture?"),
        ("Is Ann really a nurse?", "Is Ann a nurse?"),
        ("If it rains, is the park open?", "Is the park open if it rains?"),
        ("How do I get the invoice I was sent?", "How do I get the invoice you sent me?"),
        ("Can I eat just meat?", "Can I eat only meat?"),
        ("How many children live there?", "How many kids live there?"),
        ("How many minutes does it take?", "How long does it take?"),
        ("What can I do with cold soup?", "How do I use up cold soup?"),
        ("What types of clouds are there?", "How are clouds classified?"),
        ("What size should my bike have?", "How big should my bike be?"),
        ("Rewrite without mistakes: he run", "Correct: he run"),
        ("Translate: good day", 'Please translate "good day".'),
        ("Must I register a boat?", "Do I have to register a boat?"),
        (
            "How do I change my email address on the account?",
            "How do I change the email address on my account?",
        ),
        ("my flight got cancelled, refund?", "How do I get a refund for a cancelled flight?"),
        ("How does a refrigerator work?", "How does a fridge work?"),
        ("Is the tyre flat?", "Is the tire flat?"),
        ("How do I thaw a chicken?", "How do I defrost a chicken?"),
        ("When did the band split up?", "When did the band break up?"),
        ("What is the flavour of saffron?", "What is the flavor of saffron?"),
        ("How do I organise a wedding?", "How do I organize a wedding?"),
        ("What is colour-blindness?", "What is color-blindness?"),
        ("Where is the shopping centre?", "Where is the shopping center?"),
        ("How do I analyse blood?", "How do I analyze blood?"),
        ("Is grey paint cheaper?", "Is gray paint cheaper?"),
        ("How do I fill in the form?", "How do I fill out the form?"),
        ("Do penguins fly?", "Are penguins able to fly?"),
        ("How do I bake a sponge?", "How do I really bake a sponge?"),
        ("How many people live in New Zealand?", "What is the population of New Zealand?"),
        ("What do penguins usually eat?", "What do penguins eat?"),
        ("Is it far from bergen to oslo by road?", "bergen to oslo: which road is it?"),
        ("Is a gate of 14 m by 8 m big?", "Is a gate big, 14 m times 8 m?"),
        ("How do I deploy on k8s?", "How do I deploy on Kubernetes?"),
        ("Is acne caused by stress?", "Does stress cause acne?"),
        ("What is the distance from Rome to Paris?", "What is the distance from Paris to Rome?"),
        ("How much does Walmart pay cashiers?", "How much are cashiers paid at Walmart?"),
        ("What is a lessor?", "What are lessors?"),
        ("whether or not it rains, do we go", "do we go whether it rains"),
        ("Which of these is not a mammal?", "Find the non-mammal of these"),
        ("Why is it unsafe?", "Why is it not safe?"),
        ('Put "Where is it?" in German', 'Put "where is it?" in German'),
        ("pancakes w/o milk how", "How do I make pancakes without milk?"),
    ],
)
def test_rewording_is_left_to_the_verifier(asked, stored):
    assert both_ways(asked, stored) is None


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ("How can I reset my password?", "How do I change my password?"),
        ("Is Ann a nurse?", "Was Ann a nurse?"),
        ("How do I open the app?", "How do I close the app?"),
        ("When did he die?", "Where did he die?"),
        ("is paris large", "is rome large"),
    ],
)
def test_what_a_network_learns_is_its_own_business(asked, stored):
    assert both_ways(asked, stored) is None


@pytest.mark.parametrize("text", ["", " ", "?!", "\x00", "\U0001f389", "\u4f60\u597d", "''", "```"])
def test_what_says_nothing_fits_only_itself(text):
    assert guard(text, text) is None
    assert both_ways(text, "How do I reset my password?") is not None


def test_texts_of_other_scripts_differ():
    assert both_ways("\u4f60\u597d\u5417", "\u4f60\u597d") is not None
    assert (
        both_ways("\u043f\u0430\u0440\u043e\u043b\u044c", "\u043b\u043e\u0433\u0438\u043d")
        is not None
    )


HOSTILE = (
    "a", "a-", "a.", "1 ", "1/", "not ", "'a ", "\u201c", "a@", "a_", "please ", "Word ",
    "if only at least ", "what ", "from a to b ", "$1 ", "half past ", "Ann has 3 ",
)  # fmt: skip
WHOLE = 6_000


@pytest.mark.parametrize("piece", HOSTILE)
def test_a_hostile_text_takes_steps_in_proportion_to_its_length(piece):
    text = piece * (WHOLE // len(piece))
    tenth = piece * (WHOLE // 10 // len(piece))
    # Ten times the length takes some ten times as many steps; squared it would be a hundred times.
    assert steps(text) < 20 * (steps(tenth) + 200)


def test_very_many_different_words_take_steps_in_proportion_to_their_number():
    whole, tenth = (" ".join(f"w{n}x" for n in range(count)) for count in (2_000, 200))
    assert steps(whole) < 20 * steps(tenth)


def test_a_hundred_thousand_characters_are_judged():
    text = "How do I reset my password? " * 3_600
    assert guard(f"{text} 7", f"{text} 8") == "number"


def steps(text):
    """Count the lines that are run to judge a text."""
    lines = 0

    def count(_frame, event, _argument):
        nonlocal lines
        lines += event == "line"
        return count

    guard(text + " x", text[::-1] + " y")
    before = sys.gettrace()
    sys.settrace(count)
    try:
        guard(text + " x", text[::-1] + " y")
    finally:
        sys.settrace(before)
    return lines
