"""The guards and wording: what may be written in two ways, and what only looks like it."""

import pytest
from notation_pairs import WRITTEN_OTHERWISE

from embeddings.verify.guards import REASONS, guard


def both_ways(asked, stored):
    one, other = guard(asked, stored), guard(stored, asked)
    assert one == other
    assert one is None or one in REASONS
    return one


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ("How does a refrigerator work?", "How does a fridge work?"),
        ("Plan a barbecue for ten", "Plan a BBQ for 10"),
        ("Is the tyre flat?", "Is the tire flat?"),
        ("Which language do people speak here?", "Which language do ppl speak here?"),
        ("How do I thaw a chicken?", "How do I defrost a chicken?"),
        ("When did the band split up?", "When did the band break up?"),
        ("What is the flavour of saffron?", "What is the flavor of saffron?"),
        ("How do I organise a wedding?", "How do I organize a wedding?"),
        ("What is colour-blindness?", "What is color-blindness?"),
        ("Where is the shopping centre?", "Where is the shopping center?"),
        ("How do I analyse blood?", "How do I analyze blood?"),
        ("Is grey paint cheaper?", "Is gray paint cheaper?"),
        ("How much is 2 miles in kilometers?", "How much is 2 miles in km?"),
        ("How do I fill in the form?", "How do I fill out the form?"),
        ("Where can I buy an aubergine?", "Where can I buy an eggplant?"),
        ("Who hosted the Olympics in 1936?", "Who hosted the Olympic Games in 1936?"),
    ],
)
def test_spellings_and_short_forms_of_one_word_are_no_difference(asked, stored):
    assert both_ways(asked, stored) is None


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ("How does a fridge work?", "How does a freezer work?"),
        ("Is the tyre flat?", "Is the tyre new?"),
        ("How do I thaw a chicken?", "How do I freeze a chicken?"),
        ("When did the band split up?", "When did the band get together?"),
        ("Is the flavour good?", "Is the colour good?"),
        ("How do I promise a refund?", "How do I prize a refund?"),
        ("How do I advise a client?", "How do I advertise a client?"),
        ("How much is 2 miles in km?", "How much is 2 miles in cm?"),
        ("How much vitamin D do I need?", "How much vitamin C do I need?"),
        ("Is grey paint cheaper?", "Is green paint cheaper?"),
        ("Which tyre centre is open?", "Which tire theater is open?"),
    ],
)
def test_words_that_look_like_other_spellings_stay_apart(asked, stored):
    assert both_ways(asked, stored) is not None


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ("What is the gate no. for flight LH456?", "What is the gate number for flight LH456?"),
        ("Where is room No. 5?", "Where is room number 5?"),
        ("I did not receive the confirmation email.", "I didn't get the confirmation email."),
        ("What is 0.375 as a fraction?", "what's .375 as a fraction"),
        ("Slope through (1, 2) and (3, 8)?", "slope through (1,2) and (3,8)"),
        ("cats to dogs is 3:2, how many dogs?", "cats to dogs is 3 : 2, how many dogs?"),
        ("Pace for 5 km in 27 minutes and 30 seconds?", "Pace for 5 km in 27:30 minutes?"),
        ("Pace for 5 km in 27 minutes and 30 seconds?", "Pace for 5 km in 27:30?"),
        ("Are 90 minutes enough?", "Are 1 hour and 30 minutes enough?"),
        ("Can I run a 5k in half an hour?", "Can I run 5 km in half an hour?"),
        ("Convert 2:45 pm to French", "Convert 2.45 p.m. to French"),
        ("Convert 100 degrees Fahrenheit to Celsius.", "convert 100 \u00b0F to \u00b0C"),
        ("What is the derivative of x squared?", "What's the derivative of x^2?"),
        ("How big is 15 m\u00b2?", "How big is 15 square meters?"),
        ("What is the square of 12?", "What is 12^2?"),
    ],
)
def test_one_number_may_be_written_in_several_ways(asked, stored):
    assert both_ways(asked, stored) is None


@pytest.mark.parametrize(
    ("asked", "stored", "reason"),
    [
        ("Where is room no. 5?", "Where is room no. 6?", "number"),
        ("Is no pet allowed?", "Is a pet allowed?", "negation"),
        ("Why is there no 5G here?", "Why is there 5G here?", "negation"),
        ("I got the confirmation email.", "I didn't get the confirmation email.", "negation"),
        ("Is 0.375 a lot?", "Is .475 a lot?", "number"),
        ("Is 375 a lot?", "Is .375 a lot?", "number"),
        ("Slope through (1, 2)?", "Slope through (1,3)?", "number"),
        ("Is (1,000) a lot?", "Is (1, 0) a lot?", "number"),
        ("Are the dogs 3:2?", "Are the dogs 2 : 3?", "number"),
        ("Pace for 5 km in 27:30?", "Pace for 5 km in 3:30?", "number"),
        ("Run 27 minutes and 30 seconds", "Run 27 minutes and 20 seconds", "number"),
        ("Run 27 minutes and 30 seconds", "Run 27 hours and 30 minutes", "number"),
        ("Can I run a 5k today?", "Can I run 10 km today?", "number"),
        ("Convert 2.45 p.m. to French", "Convert 2:54 pm to French", "number"),
        ("Is 100 \u00b0F hot?", "Is 100 \u00b0C hot?", "unit"),
        ("What is the derivative of x^2?", "What is the derivative of x cubed?", "number"),
        ("What is the derivative of x^2?", "What is the derivative of x?", "number"),
        ("What is 2^10?", "What is 10^2?", "symbol"),
        ("What does `x^2` do?", "What does `x squared` do?", "quoted"),
    ],
)
def test_another_number_is_refused_however_it_is_written(asked, stored, reason):
    assert both_ways(asked, stored) == reason


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ("Who followed Margaret Thatcher?", "Who followed Thatcher?"),
        ("Who wrote The Old Man and the Sea?", "who wrote Old Man and the Sea"),
        ("Who built the Sagrada Fam\u00edlia?", "Who built the Sagrada Familia?"),
        ("How much vitamin D is enough?", "how much vitamin d is enough"),
        ("Where was Marie Curie born?", "What is Marie Curie's birthplace?"),
        ("What is the population of Iceland?", "How many people live in Iceland?"),
        ("When is the zoo open?", "What are the opening hours of the zoo?"),
        ("Who is Rosa Parks?", "who was rosa parks"),
        ("How much is it to ship a box?", "How much does it cost to ship a box?"),
        ("How far is Bern?", "How far is Bern roughly?"),
    ],
)
def test_names_and_questions_may_be_put_in_other_words(asked, stored):
    assert both_ways(asked, stored) is None


@pytest.mark.parametrize(
    ("asked", "stored", "reason"),
    [
        ("Who followed Margaret Thatcher?", "Who followed Denis Thatcher?", "name"),
        ("Where did Vincent van Gogh die?", "Where did Theo van Gogh die?", "name"),
        ("Does Margaret swim well?", "Does Thatcher swim well?", "name"),
        ("Is Paris Airport big?", "Is the Airport big?", "name"),
        ("How much vitamin d is enough", "how much vitamin c is enough", "name"),
        ("What is the population of Iceland?", "When was Iceland populated?", "question"),
        ("What is the population of Iceland?", "How many people visit Iceland?", "question"),
        ("What is Marie Curie's birthplace?", "When was Marie Curie born?", "question"),
        ("What are the opening hours of the zoo?", "Why is the zoo open?", "question"),
        ("Who is the president of France?", "Who was the president of France?", "tense"),
        ("Who is Prime Minister?", "Who was Prime Minister?", "tense"),
        ("Who is the CEO of Tesla?", "Who was the CEO of Tesla?", "tense"),
        ("What is the price of gold?", "What was the price of gold?", "tense"),
        ("What is a dog?", "What does a dog cost?", "added"),
    ],
)
def test_another_name_or_question_is_refused(asked, stored, reason):
    assert both_ways(asked, stored) == reason


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ("Can you drown in quicksand?", "Are you allowed to drown in quicksand?"),
        ("Can penguins fly?", "Are penguins allowed to fly?"),
        ("Can robots feel pain?", "Are robots allowed to feel pain?"),
        ("Can police lie to you?", "Are police allowed to lie to you?"),
        ("How long is the Suez Canal?", "How long does the Suez Canal take?"),
        ("Is DDT still used?", "Is DDT still widely used?"),
        ("Is German spoken in Italy?", "Is German widely spoken in Italy?"),
        ("Is DDT used?", "Is DDT still used?"),
        ("How did Theo van Gogh die?", "How did van Gogh die?"),
        ("When was Anne Frank born?", "When was Frank born?"),
        ("How do I bake a Victoria sponge?", "How do I bake a sponge?"),
        ("Who is the Dalai Lama?", "Who was the Dalai Lama?"),
        ("Who is the Duke of Sussex?", "Who was the Duke of Sussex?"),
        ("Who is the Archbishop of Canterbury?", "Who was the Archbishop of Canterbury?"),
        ("Who is the Poet Laureate?", "Who was the Poet Laureate?"),
        ("Who is the Emir of Qatar?", "Who was the Emir of Qatar?"),
        ("Who is the Sheriff of Nottingham?", "Who was the Sheriff of Nottingham?"),
        ("What is the Google Doodle?", "What was the Google Doodle?"),
        ("What is the Wordle?", "What was the Wordle?"),
        ("How many people live in poverty in India?", "What is the population of India?"),
        ("How many people live alone in Tokyo?", "What is the population of Tokyo?"),
        (
            "A train takes 2 hours, 30 minutes of which it stops.",
            "A train takes 150 minutes of which it stops.",
        ),
        ("I study 1 hour. 30 minutes are for math", "I study 90 minutes are for math"),
        ("Is 300 K warm?", "Is 300 km warm?"),
        ("How do I get to 10k?", "How do I get to 10 km?"),
        ("What is a 401k?", "What is 401 km?"),
        ("Where is my 10K report?", "Where is my 10 km report?"),
        ("What does Genesis 32:24 mean?", "What do 32 minutes and 24 seconds mean?"),
        ("Is the aspect ratio 32:18 wide?", "Is the aspect ratio 32 minutes and 18 seconds wide?"),
        ("What is the ratio 15 : 20?", "What is the ratio 3 : 20?"),
        ("What is the ratio 15:20?", "What is the ratio 3:20?"),
        ("Is Nelson Mandela free?", "Is Nelson Mandela free of charge?"),
        ("What is my environment?", "What is my env?"),
        ("How many dollars is 5 pounds?", "How many dollars is 5 lbs?"),
        ("How long does the trip take?", "How long is the trip?"),
        ("Who was Joan of Arc?", "Who is Joan of Arc?"),
        ("Is it usually cold in March?", "Is it cold in March?"),
        ("Is the ratio 15:20 good?", "Is the ratio 3:20 good?"),
        ("How much gold is there in Ghana?", "How much does gold cost in Ghana?"),
        ("Is 5 lbs a lot?", "Is \u00a35 a lot?"),
        *WRITTEN_OTHERWISE,
    ],
)
def test_what_is_the_same_in_other_questions_is_refused(asked, stored):
    assert both_ways(asked, stored) is not None


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ("Expand (x - y)^2", "Expand (x - y) squared"),
        ("Do penguins fly?", "Are penguins able to fly?"),
        ("What is the mean of (1,2,3)?", "What is the mean of (1, 2, 3)?"),
        ("How cold is -5\u00b0C?", "How cold is -5 celsius?"),
        ("How do I bake a sponge?", "How do I really bake a sponge?"),
        ("How many people live in New Zealand?", "What is the population of New Zealand?"),
        ("Is the train at 15:20 late?", "Is the train at 3:20 late?"),
        ("What do penguins usually eat?", "What do penguins eat?"),
    ],
)
def test_what_is_safe_to_equate_is_left_to_the_verifier(asked, stored):
    assert both_ways(asked, stored) is None
