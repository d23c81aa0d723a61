"""Laws of the scan that hold for any text."""

import re
from dataclasses import replace

import pytest
import re2
from hypothesis import example, given
from hypothesis import strategies as st
from phonenumbers import Leniency, PhoneNumberMatcher
from stdnum import luhn

from policies.pii.phone import DialledNumbers
from policies.pii.readings import normalise, normalise_with_offsets
from policies.pii.scan import DETECTORS, PiiScanner

SCANNER = PiiScanner(["US", "GB"])
ALONE = PiiScanner([])

characters = st.characters() | st.characters(categories=["Cs", "Nd", "Cf", "Mn", "Pd"])
dense = st.text(alphabet="0123456789 -.:/()+@abcfxGBDE=_\u200b\uff11\u0661\ud800", max_size=80)
anything = st.text(alphabet=characters, max_size=80) | dense


@given(anything)
def test_scan_and_spans_never_raise_and_agree(text):
    kind = SCANNER.scan(text)
    spans = SCANNER.spans(text)
    assert (kind is None) == (spans == [])
    assert kind is None or kind in {span.kind for span in spans}


@given(anything)
def test_spans_lie_in_the_text_in_order_and_apart(text):
    end = 0
    for span in SCANNER.spans(text):
        assert end <= span.start < span.end <= len(text)
        end = span.end


@given(st.sampled_from(["4", "51", "37", "6011"]), st.data())
def test_every_card_number_is_found(prefix, data):
    length = 15 if prefix == "37" else 16
    body = data.draw(st.text("0123456789", min_size=length - 1, max_size=length - 1))
    number = prefix + body[len(prefix) :]
    number += luhn.calc_check_digit(number)
    separator = data.draw(st.sampled_from(["", " ", "-", "."]))
    sizes = (4, 6, 5) if length == 15 else (4, 4, 4, 4)
    groups, start = [], 0
    for size in sizes:
        groups.append(number[start : start + size])
        start += size
    assert ALONE.scan(f"pay with {separator.join(groups)}, please") == "card"


@given(st.integers(1, 223), st.lists(st.integers(0, 255), min_size=3, max_size=3))
def test_every_public_ip_is_found(first, rest):
    if first != 127:
        address = ".".join(map(str, (first, *rest)))
        assert ALONE.scan(f"It was {address}, I think") == "ip"


@given(st.ip_addresses(v=6))
def test_every_ipv6_address_is_found(address):
    written = address.exploded
    if not (address.is_loopback or address.is_unspecified) and any(map(str.isdigit, written)):
        assert ALONE.scan(f"from {written} on") is not None


@given(
    st.text("abcdefghijklmnopqrstuvwxyz0123456789._+-", min_size=1, max_size=20).map("a".__add__),
    st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=1, max_size=20),
    st.sampled_from(["com", "de", "co.uk", "museum"]),
)
def test_every_address_is_found(local, host, top):
    assert ALONE.scan(f"<{local}@{host}.{top}>") is not None


PUBLIC = (
    *("*@acme.example", "+1 800 555 0100", "203.0.113.7", "GB82 WEST 1234 5698 7654 32"),
    "pk_live_abcdefghij1234",
)
ALLOWING = PiiScanner(["US", "GB"], PUBLIC)
public = st.sampled_from(
    ["x@acme.example", "(800) 555-0100", "203.0.113.7", "GB82WEST12345698765432", PUBLIC[-1]]
)
personal = st.sampled_from(
    [
        *("ada@example.com", "4111 1111 1111 1111", "123-45-6789", "(415) 555-2671"),
        *("203.0.113.8", "DE89370400440532013000", "sk_live_abcdefghij1234", "x@acme.example.org"),
    ]
)
between = st.sampled_from([" ", ", ", "\n", "; ", " and ", " (", ") ", "\u200b \u200b", "\u3000"])


FINDERS = [(each, each.find(["US", "GB"])) for each in DETECTORS]
token = st.text("aB3-_gh.=:", min_size=8, max_size=60)
labelled = st.sampled_from(["sk-", "password: ", "basic ", "NO93", "::"]).flatmap(
    lambda label: (token | dense).map(label.__add__)
)


def holds_one(text: str, *patterns: str) -> bool:
    return any(re2.search(pattern, text.encode()) is not None for pattern in patterns)


@pytest.mark.parametrize("detector", DETECTORS, ids=lambda detector: detector.kind)
def test_a_detector_without_a_sign_is_refused(detector):
    with pytest.raises(ValueError, match=f"no text would reach the detector of {detector.kind}"):
        replace(detector, signs=())


@given(st.lists(public | personal | dense | labelled, max_size=4).map("".join))
def test_the_first_look_lets_no_finding_pass(text):
    plain = normalise(text)
    for detector, find in FINDERS:
        if any(find(plain)):
            assert holds_one(plain, *detector.signs, detector.sign_apart or detector.signs[0])
            assert not detector.rare or holds_one(plain, *detector.rare)
            assert SCANNER.scan(plain) is not None
    if SCANNER.is_clean(text):
        assert SCANNER.scan(text) is None


@given(st.sampled_from(["Where is my parcel?", "你好", "é ü"]), personal)
def test_words_are_clean_and_personal_data_are_not(words, data):
    assert SCANNER.is_clean(words)
    assert not SCANNER.is_clean(f"{words} {data}")


@given(st.lists(st.tuples(public, between)), personal, st.lists(st.tuples(between, public)))
@example([("(800) 555-0100", " ")], "4111 1111 1111 1111", [(" ", "203.0.113.7")])
def test_an_allowed_finding_hides_no_other(before, found, after):
    text = "".join(a + b for a, b in before) + found + "".join(a + b for a, b in after)
    assert ALLOWING.scan(text) is not None
    assert len(ALLOWING.spans(text)) == 1


@given(st.lists(st.tuples(public, between)))
def test_public_contacts_alone_are_clean(parts):
    assert ALLOWING.scan("".join(a + b for a, b in parts)) is None


@given(anything | st.lists(public | personal | dense).map("".join))
def test_an_allow_list_only_takes_findings_away(text):
    found = {(span.start, span.end) for span in ALLOWING.spans(text)}
    assert (ALLOWING.scan(text) is None) == (not found)
    if SCANNER.scan(text) is None:
        assert not found


@given(anything)
def test_every_character_of_the_normal_form_has_its_origin(text):
    plain, offsets = normalise_with_offsets(text)
    assert plain == normalise(text)
    assert len(offsets) == len(plain)
    assert list(offsets) == sorted(offsets)
    assert all(normalise(text[origin]) != "" for origin in offsets)
    assert all(
        character in normalise(text[at]) for character, at in zip(plain, offsets, strict=True)
    )


GROUPS = st.lists(st.text("0123456789", min_size=1, max_size=11), min_size=1, max_size=5)
REGIONS = ("GB", "DE", "FR", "IN", "AU", "IT", "BR", "AR", "MX", "JP", "RU", "CO", "IE")
NUMBERS = {region: DialledNumbers(region) for region in REGIONS}


@pytest.mark.parametrize("region", REGIONS)
@given(
    st.sampled_from(["", "0", "00", "(0"]),
    GROUPS | st.sampled_from([["020", "7946", "0958"], ["030", "123456"], ["01", "42685300"]]),
    st.sampled_from(" -.)"),
)
def test_what_the_library_finds_in_a_region_is_let_through(region, before, groups, separator):
    """But for what is shorter than the region's ordinary numbers."""
    text = before + separator.join(groups)
    shortest = NUMBERS[region].shortest
    for match in PhoneNumberMatcher(text, region, Leniency.VALID, max_tries=100):
        if len(str(match.number.national_number)) >= shortest:
            assert NUMBERS[region].may_be_among(re.findall("[0-9]+", text))


@pytest.mark.parametrize("region", ["RU", "KZ"])
def test_a_number_may_begin_with_what_is_a_prefix_before_others(region):
    assert DialledNumbers(region).may_be_among(["8000000000"])
