"""The guards and names: people, places, days, and single letters that are labels."""

from itertools import combinations
from string import ascii_lowercase

import pytest
from guarding import both_ways

FRAMES = (
    "where is gate {}?",
    "what does the {} flag mean in grep?",
    "how do I renew a class {} license?",
    "is influenza {} dangerous?",
    "how do I clean the {} drive?",
    "what does pressing {} do in vim?",
    "how do i read plan {}?",
    "what is in appendix {}?",
    "when does kiosk {} open?",
    "which bus goes to terminal {}?",
    "can i swap seat {}?",
    "what does {} mean in music?",
)


@pytest.mark.parametrize(
    ("asked", "stored", "reason"),
    [
        ("Are you open on Monday?", "Are you open on Sunday?", "name"),
        ("Is it hot in May?", "Is it hot in July?", "name"),
        ("Who is Barack Obama?", "Who is Michelle Obama?", "name"),
        ("Is Paris large?", "Is Rome large?", "name"),
        ("How old is Anna Kaminski?", "How old is Anna Petrova?", "name"),
        ("How do I get a visa for Canada?", "How do I get a visa?", "name"),
        ("What is the capital of France?", "What is the capital of Germany?", "name"),
        ("Do Indian people drink tea?", "Do Chinese people drink tea?", "name"),
        ("How do I cancel Netflix?", "How do I cancel Spotify?", "name"),
        ("Name three paintings by Manet.", "Name three paintings by Monet.", "name"),
        ("How much vitamin D do I need?", "How much vitamin C do I need?", "name"),
        ("Who followed Margaret Thatcher?", "Who followed Denis Thatcher?", "name"),
        ("Where did Vincent van Gogh die?", "Where did Theo van Gogh die?", "name"),
        ("Does Margaret swim well?", "Does Thatcher swim well?", "name"),
        ("How much vitamin d is enough", "how much vitamin c is enough", "name"),
        ("How do I bake a Victoria sponge?", "How do I bake a sponge?", "name"),
        ("What does a lessor sign?", "What does a lessee sign?", "words"),
        ("Is chlorate harmful?", "Is chlorite harmful?", "words"),
        ("Is sulphite harmful?", "Is sulphate harmful?", "words"),
        ("How is dysphagia treated?", "How is dysphasia treated?", "words"),
        ("Where is the peroneal nerve?", "Where is the perineal nerve?", "words"),
        ("Is hypoglycemia dangerous?", "What is the danger of hyperglycemia?", "words"),
        ("Are hotels in York dear?", "Are hotels in New York dear?", "name"),
        ("Do I need a visa for India?", "Do I need a visa for Indiana?", "name"),
        ("What is the capital of Korea?", "What is the capital of South Korea?", "name"),
        ("Hi Anna, who is Barack Obama?", "Hi Anna, who is Michelle Obama?", "name"),
        ("Is Sweden safe?", "Is Switzerland safe?", "name"),
        ("Is Niger safe?", "Is Nigeria safe?", "name"),
        ("Who is Paul Smith?", "Who is Paula Smith?", "name"),
        ("As Iraq is hot, what do I pack?", "As Iran is hot, what do I pack?", "name"),
        ("Is gpt-4o better?", "Is gpt-4 better?", "name"),
        ("Where is flat 12b?", "Where is flat 12c?", "name"),
        ("open on tuesdays?", "is it open on a friday", "name"),
        ("What is cheaper, flights in March?", "What is cheaper, flights in May?", "name"),
    ],
)
def test_another_name_is_refused(asked, stored, reason):
    assert both_ways(asked, stored) == reason


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ("Who followed Margaret Thatcher?", "Who followed Thatcher?"),
        ("Who wrote The Old Man and the Sea?", "who wrote Old Man and the Sea"),
        ("Who built the Sagrada Família?", "Who built the Sagrada Familia?"),
        ("How much vitamin D is enough?", "how much vitamin d is enough"),
        ("Where was Marie Curie born?", "What is Marie Curie's birthplace?"),
        ("What is the population of Iceland?", "How many people live in Iceland?"),
        ("When is the zoo open?", "What are the opening hours of the zoo?"),
        ("Who is Rosa Parks?", "who was rosa parks"),
        ("How much is it to ship a box?", "How much does it cost to ship a box?"),
        ("How far is Bern?", "How far is Bern roughly?"),
        ("Where was Ernest Hemingway born?", "Where was Hemingway born?"),
        ("Which Thai beaches are best?", "Which beaches in Thailand are best?"),
        ("Who joined the European Union?", "Who joined the EU?"),
        ("Has Node.js a debugger?", "Has Node a debugger?"),
        ("HOW DO I RESET MY PASSWORD?", "How do I get a new password?"),
        ("Hi Anna, how do I reset my password?", "How do I reset my password?"),
        ("Do Indian people drink tea?", "Do people in India drink tea?"),
        ("What do Koreans eat?", "What do people in Korea eat?"),
        ("When was India split from Pakistan?", "When did the Indian and Pakistani split occur?"),
        ("How tall is Mt. Everest?", "How tall is Mount Everest?"),
        ("How Do I Fix A Flat Tyre?", "how do I fix a flat tyre"),
    ],
)
def test_one_name_may_be_written_in_several_ways(asked, stored):
    assert both_ways(asked, stored) is None


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("case", [str.lower, str.upper])
def test_no_letter_passes_for_another(frame, case):
    asked = [frame.format(case(letter)) for letter in ascii_lowercase]
    assert [pair for pair in combinations(asked, 2) if both_ways(*pair) is None] == []


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ("What does the s flag mean in grep?", "What does the flag mean in grep?"),
        ("Where is gate a?", "Where is the gate?"),
        ("who teaches class a math?", "who teaches class math?"),
        ("when does kiosk a open?", "when does kiosk open?"),
        ("what is in section i of the lease", "what is in the section of the lease"),
        ("what is a type i error", "what is a type a error"),
        ("which class i licence do i need", "which class a licence do i need"),
        ("what does form i 9 say", "what does form d 9 say"),
        ("WHERE IS GATE A?", "WHERE IS GATE D?"),
        ("where is gate a? can you help", "can you help? where is gate d?"),
        ("read plan a. is it good?", "is plan d any good?"),
        ("WHERE IS GATE A?", "WHERE IS THE GATE?"),
        ("how many a's are in banana", "how many d's are in banana"),
        ("Can t cells recover?", "Can cells recover?"),
        ("how do i add a & b", "how do i add d & b"),
        ("where is gate s?", "can you tell me where gate n is?"),
        ("what does plan i cost?", "how much does plan u cost?"),
        ("what is team a's score?", "what's the score of team s?"),
        ("serie a standings", "serie i standings"),
        ("serie a standings", "serie standings"),
        ("team a score", "team score"),
        ("visa a application", "visa application"),
        ("how do I play a minor on guitar", "how do I play i minor on guitar"),
        ("x plus a", "x plus i"),
        ("is team b better than a", "is team c better than a"),
        ("how do I get to gate b", "can you tell me where the gate is?"),
    ],
)
def test_a_label_is_a_particular(asked, stored):
    assert both_ways(asked, stored) == "name"


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ("where is gate d?", "Where is Gate D?"),
        ("WHERE IS GATE A?", "where is gate a?"),
        ("how do I take vitamin d", "How should I take vitamin D?"),
        ("How do I plan a trip to Rome?", "How do I plan the trip to Rome?"),
        ("how do i form a company", "what is the way to form a company"),
        ("how do I make a will", "how can I make the will"),
        ("what 's the time in Rome", "what is the time in Rome"),
        ("what s the time in Rome", "what is the time in Rome"),
        ("i 'm locked out, how do i get in", "I'm locked out, how do I get in"),
        ("What is the plan I have?", "what is the plan that I have"),
        ("Can I PayPal my friend?", "can i paypal my friend"),
        ("how do i wash a t-shirt", "how do i wash the t-shirt"),
        ("where do I find the item I ordered", "where is the item that I ordered"),
        ("can you set a timer", "set the timer"),
        ("Write a poem about rain", "Please write the poem about rain"),
        ("What causes a rainbow?", "What causes rainbows?"),
        ("the booking I made, how do I cancel it", "how do I cancel the booking I've made"),
        ("Is Ann Lee a Greek teacher?", "Is Ann Lee a teacher and Greek?"),
        ("My e-book won't open", "My ebook won't open"),
    ],
)
def test_an_article_a_pronoun_and_a_contraction_are_none(asked, stored):
    assert both_ways(asked, stored) is None
