"""The guards and rare words, counterparts and exchanged ends: in doubt another name."""

import pytest
from guarding import both_ways, guard

from embeddings.verify import guards


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ("What is the maximum daily dose of prednisone?", "maximum daily dose of prednisolone"),
        ("Is celebrex safe?", "Is celexa safe?"),
        ("IS CELEBREX SAFE?", "IS CELEXA SAFE?"),
        ("Celebrex side effects", "Celexa side effects"),
        ("What does hexane smell of?", "What does hexene smell of?"),
        ("How is nitrate made?", "How is nitrite made?"),
        ("How do I export a report in Quantix?", "How do I export a report in Quantex?"),
        ("how do i cancel aventra", "how do i cancel aventro"),
        ("What does kubectl do?", "What does kubelet do?"),
        ("What does the payer sign?", "What does the payee sign?"),
        ("Is tachycardia treated?", "Is bradycardia treated?"),
        ("What does the drug do, lisinopril?", "What does the drug do?"),
        ("How do I restart kubelet?", "How do I restart the service?"),
        ("Can I take aspirin with warfarin?", "Can I take aspirin with heparin?"),
        ("What is Sjögren syndrome?", "What is Alport syndrome?"),
        ("How do I reset my password?", "How do I reset my pasword?"),
    ],
)
def test_a_rare_word_has_to_stand_in_both(asked, stored):
    assert both_ways(asked, stored) in {"words", "name"}


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ("Are antihistamines safe?", "Is an antihistamine safe?"),
        ("How do I descale my kettle?", "descaling a kettle - how?"),
        ("Is hyperkalaemia dangerous?", "Is hyperkalemia a danger?"),
        ("Is sulphite harmful?", "is sulfite harmful"),
        ("How do I randomise a list?", "randomizing a list, how"),
        ("How do I set up my wifi?", "How do I set up my wi-fi?"),
        ("What is Sjögren's syndrome?", "what is sjogren syndrome"),
        ("What is a VPN?", "What is a virtual private network?"),
        ("How do I install Node.js?", "How do I install Node?"),
        ("WHAT IS A KUBELET?", "What is a kubelet?"),
        ("How can I get my money back?", "What do I have to do to be refunded?"),
        ("Is it 20 °C?", "Is it 20 degrees celsius?"),
    ],
)
def test_another_form_of_a_rare_word_is_the_same_word(asked, stored):
    assert both_ways(asked, stored) is None


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ("What may the buyer do?", "What may the seller do?"),
        ("Rights of landlords", "What are the rights of a tenant?"),
        ("Does the plaintiff pay?", "Does the defendant pay?"),
        ("What is longitude?", "What does latitude mean?"),
    ],
)
def test_the_other_side_of_a_matter_is_refused(asked, stored):
    assert both_ways(asked, stored) == "words"


def test_both_sides_in_both_questions_are_left_to_the_verifier():
    asked = "Who pays, the buyer or the seller?"
    assert both_ways(asked, "Does the seller pay or the customer?") is None


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ("How do I set up Slack for Jira?", "How do I connect Jira to Slack?"),
        ("set up the printer for the laptop", "connect the laptop to the printer"),
        ("Is kafka faster than flink?", "is flink quicker than kafka"),
        ("How do I send files from Trello to Asana?", "send files to Trello from Asana, how"),
        ("Do I take iron before zinc?", "Should I take zinc before iron?"),
    ],
)
def test_ends_that_are_exchanged_are_refused(asked, stored):
    assert both_ways(asked, stored) == "order"


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ("How do I export contacts from Outlook to Gmail?", "export Outlook contacts to Gmail"),
        ("How do I use vinegar to clean a kettle?", "How do I clean a kettle with vinegar?"),
        ("How far is it from Rome to Bern?", "How far is it to Rome from Bern?"),
    ],
)
def test_ends_that_stay_are_left_to_the_verifier(asked, stored):
    assert both_ways(asked, stored) is None


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ("Which diseases are linked to BRCA1?", "What diseases go along with BRCA2?"),
        ("What may people with type 1 diabetes eat?", "food for type 2 diabetes"),
        ("Is pandas fast?", "How fast is panda3d?"),
    ],
)
def test_a_number_in_a_name_is_no_detail(asked, stored):
    assert both_ways(asked, stored) == "number"


def test_without_a_list_of_common_words_every_word_counts_as_rare():
    asked, stored = "How do I clean the kettle?", "How do I wash the kettle?"
    assert guards.guard(asked, stored, frozenset()) == "words"
    assert guard(asked, stored) is None


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ("When was Watt born?", "When was Watts born?"),
        ("where does cole live", "In which town does coles live?"),
        ("Which books are by Job?", "Which books are by Jobs?"),
    ],
)
def test_a_name_that_ends_in_s_is_no_plural(asked, stored):
    assert both_ways(asked, stored) == "words"


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ("How does gpt-4 work?", "Explain how gpt-4o works."),
        ("licence of log4j", "Which licence does log4net have?"),
        ("who was the wife of gonzales", "To whom was gonzalez married?"),
        ("How much does sydney cost?", "What's the price of sidney?"),
    ],
)
def test_versions_and_whole_names_that_are_nearly_alike_are_refused(asked, stored):
    assert both_ways(asked, stored) == "words"


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ("Is it open at 5pm?", "Is it open at 5 pm?"),
        ("Is 5gb enough?", "Is 5 GB enough?"),
        ("How does a heat pump work?", "How do heat pumps work?"),
        ("What is price of ticket?", "What are the prices of tickets?"),
    ],
)
def test_a_plural_is_the_same_word(asked, stored):
    assert both_ways(asked, stored) is None


def test_a_rare_word_more_in_a_long_text_is_left_to_the_verifier():
    story = "A farmer sells eggs on the market and keeps some of them for his family. " * 2
    asked, stored = f"{story} What is the sum?", f"{story} What is the total of the lollipops?"
    assert both_ways(asked, stored) is None
    assert both_ways(f"{story} Take kubectl.", f"{story} Take kubelet.") == "words"
