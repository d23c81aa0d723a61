"""The operator's public contacts do not count, in any writing; whatever stands beside them does."""

import pytest

from policies.pii.scan import DETECTOR_VERSION, PiiScanner, Span

REGIONS = ["US", "GB"]
ALLOWED = (
    "*@acme.example",
    "*@*.shops.example",
    "Help@Bar.example",
    "+1 800 555 0100",
    "020 7946 0958",
    "GB82 WEST 1234 5698 7654 32",
    "203.0.113.7",
    "2001:db8::1",
    "pk_live_abcdefghij1234",
)
SCANNER = PiiScanner(REGIONS, ALLOWED)


@pytest.mark.parametrize(
    "text",
    [
        "Write to Sales.Team+x@ACME.example.",
        "a\uff44a\uff20acme.example",
        "ada@acme\u00ad.example\nNext line",
        "ada@north.shops.example, bob@a.b.shops.example",
        "<help@bar.example>",
        "Call (800) 555-0100",
        "1-800-555-0100, tel:+1-800-555-0100",
        "001 800 555 0100 from abroad, 24/7: +1 800 555 0100 24/7",
        "+44 (0)20 7946 0958 or (020) 79460958",
        "gb82west12345698765432 or GB82-WEST-1234-5698-7654-32",
        "http://203.0.113.7:8080/ and [2001:0db8:0:0::1]:443",
        "our key is pk_live_abcdefghij1234",
    ],
)
def test_public_contacts_do_not_count(text):
    assert PiiScanner(REGIONS).scan(text) is not None
    assert SCANNER.scan(text) is None
    assert SCANNER.spans(text) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x@acme.example.evil.com", "x@acme.example.evil.com"),
        ("x@acme.example\u200b.evil.com", "x@acme.example\u200b.evil.com"),
        ("x@notacme.example", "x@notacme.example"),
        ("a@acme.example@evil.com", "a@acme.example"),
        ("a@acme.example-1.org", "a@acme.example-1.org"),
        ("x@shops.example", "x@shops.example"),
        ("not.help@bar.example", "not.help@bar.example"),
        ("victim@other.com, a@acme.example", "victim@other.com"),
        ("a@acme.example,victim@other.com", "victim@other.com"),
        ("a@acme.example;victim@other.com;help@bar.example", "victim@other.com"),
        ("+1 800 555 0100 or +1 800 555 0101", "+1 800 555 0101"),
        ("+1 800 555 0100 415 555 2671", "415 555 2671"),
        ("+44 800 555 0100", "+44 800 555 0100"),
        ("4155552671@acme.example", "4155552671"),
        ("https://ada:secret@acme.example/", "https://ada:secret@a"),
        ("pk_live_abcdefghij12345", "pk_live_abcdefghij12345"),
        ("PK_live_abcdefghij1234 sk_live_abcdefghij1234", "sk_live_abcdefghij1234"),
        ("203.0.113.7 and 203.0.113.77", "203.0.113.77"),
        ("GB82 WEST 1234 5698 7654 32, DE89 3704 0044 0532 0130 00", "DE89 3704 0044 0532 0130 00"),
    ],
)
def test_what_is_not_the_same_counts(text, found):
    assert [text[span.start : span.end] for span in SCANNER.spans(text)] == [found]
    assert SCANNER.scan(text) is not None


def test_places_are_those_of_the_text_as_given():
    text = "é\u200b help@bar.example \uff0c ada@example.com"
    assert SCANNER.spans(text) == [Span("email", 22, 37)]


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ("*", "too short"),
        ("", "too short"),
        ("*@*", "too short"),
        ("*@*.com", r"\*@acme.example"),
        ("*@*.*.example", r"\*@acme.example"),
        ("*@acme.*", r"\*@acme.example"),
        ("+1 800 *", r"\* stands for"),
        ("a@b@*.acme.example", r"\* stands for"),
    ],
)
def test_an_entry_that_allows_too_much_or_nothing_is_refused(entry, complaint):
    with pytest.raises(ValueError, match=complaint):
        PiiScanner(REGIONS, [entry])


def test_an_entry_without_regions_is_taken_in_international_form():
    scanner = PiiScanner([], ["+1 800 555 0100"])
    assert scanner.scan("+1 (800) 555-0100") is None
    assert scanner.scan("+1 (800) 555-0101") == "phone"


def test_the_identity_says_regions_and_list_whatever_their_order():
    assert PiiScanner(["US", "GB"]).identity == f"{DETECTOR_VERSION}/GB,US"
    assert PiiScanner(["GB", "US"], ALLOWED).identity == SCANNER.identity
    assert PiiScanner(REGIONS, ALLOWED[::-1]).identity == SCANNER.identity
    assert PiiScanner(REGIONS, ALLOWED[1:]).identity != SCANNER.identity
    assert "acme" not in SCANNER.identity
    assert PiiScanner(REGIONS, ["a@b.example", "c@d.example"]).identity != (
        PiiScanner(REGIONS, ["a@b.example"]).identity
    )
