"""Exchanged objects, subjects, sides and units are refused; the same said otherwise is not."""

import pytest

from embeddings.verify.differences import difference
from embeddings.verify.exchanges import check_exchanges
from embeddings.verify.guards import guard
from embeddings.verify.statement import state


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ("How do I convert JSON to CSV?", "How do I turn CSV into JSON?"),
        (
            "How do I copy a file from the server to my machine?",
            "How do I copy a file from my machine to the server?",
        ),
        (
            "How long after drinking can I take ibuprofen?",
            "How long after taking ibuprofen can I drink?",
        ),
        ("What can I substitute for cream?", "What can I substitute cream for?"),
        (
            "What can I use instead of eggs in baking?",
            "What can eggs be used instead of in baking?",
        ),
        ("Can I shower after applying the cream?", "Can I apply the cream after a shower?"),
        ("How do I merge develop into master?", "How is master merged into develop?"),
        ("Is obesity a risk factor for sleep apnea?", "Is sleep apnea a risk factor for obesity?"),
        ("Is every rational number an integer?", "Is every integer a rational number?"),
        ("What causes insomnia?", "What can insomnia cause?"),
        ("What affects blood sugar?", "What does blood sugar affect?"),
        (
            "Does my landlord have to fix the heating?",
            "Do I have to fix the heating for my landlord?",
        ),
        (
            "Can my neighbor build a fence on my land?",
            "Can I build a fence on my neighbor's land?",
        ),
        ("How many US dollars is 100 euros?", "How many euros is 100 US dollars?"),
    ],
)
def test_an_exchange_is_refused(asked, stored):
    assert guard(asked, stored) == guard(stored, asked) == "roles"


@pytest.mark.parametrize(
    ("asked", "stored", "reason"),
    [
        ("What percent of 40 is 8?", "What is 8 percent of 40?", "question"),
        ("What is log base 2 of 8?", "What is log base 8 of 2?", "roles"),
    ],
)
def test_exchanged_numbers_are_refused(asked, stored, reason):
    a, b = state(asked), state(stored)
    assert check_exchanges(a, b, difference(a, b)) == reason
    assert check_exchanges(b, a, difference(b, a)) == reason


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ("Did John call Mary?", "Was Mary called by John?"),
        ("Does smoking cause cancer?", "Is cancer caused by smoking?"),
        ("What causes insomnia?", "What is insomnia caused by?"),
        ("How do I convert JSON to CSV?", "How do I turn JSON into CSV?"),
        ("How do I turn on the light?", "How do I turn the light on?"),
        (
            "How do I turn on the heater in my car?",
            "How do I turn the heater on in my car?",
        ),
        ("How long after a meal can I swim?", "After a meal, how long until I can swim?"),
        ("How far is Paris from Rome?", "How far is Rome from Paris?"),
        ("How far is it from Paris to Rome?", "How far is it to Rome from Paris?"),
        (
            "How do I connect my laptop to a projector?",
            "How do I connect a projector to my laptop?",
        ),
        ("What are the symptoms of type 2 diabetes?", "What are the symptoms of diabetes type 2?"),
        ("Is Puerto Rico a US state?", "Is Puerto Rico a state of the US?"),
        ("Is it safe to microwave plastic containers?", "Is microwaving plastic containers safe?"),
        ("Do I have to pay for shipping?", "Is shipping something I have to pay for?"),
        ("Can my landlord enter my flat?", "Is my landlord allowed to enter my flat?"),
        ("How many euros is 100 US dollars?", "How many euros are 100 US dollars?"),
        ("What percent of 40 is 8?", "8 is what percent of 40?"),
    ],
)
def test_the_same_said_otherwise_is_not_called_an_exchange(asked, stored):
    a, b = state(asked), state(stored)
    assert check_exchanges(a, b, difference(a, b)) is None
    assert check_exchanges(b, a, difference(b, a)) is None
