"""What keeps text from the costly parts of the scan takes no finding away and adds none."""

import re
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from phonenumbers import COUNTRY_CODE_TO_REGION_CODE, Leniency, PhoneNumberMatcher

from policies.pii import identifiers, phone, scan, secret
from policies.pii.phone import PhoneDetector
from policies.pii.readings import normalise

Spans = Iterator[tuple[int, int]]

PIECES = (
    *("+", "+ ", "++", "(", "+(", "call ", "phone: ", "tel ", "tel", "sms", "Mobile", "text me "),
    *("\n", " ", "  ", "-", " - ", ".", "/", ")", "] ", "1. ", "2) ", "x", "x33", "é", "漢", "a"),
    *("Z", "id=", "order ", "order\n", "INV-", "v", "version ", "::", ":", "fe80::", "2001:db8:"),
    *("ab12", "DE89", "BE12 a", "GB82 WEST", "SSN ", "ss#", "social ", "123-45-6789", "&sig=", "?"),
    *("@", "sk-", "password: ", "basic ", "key ", "aB3", "Zq9_", "aB3dEfGh1JkLmN0pQrStUv", "="),
    *("0", "00", "011", "1", "44", "49", "39", "800", "(415) 555-2671", "020 7946 0958", "#", "~"),
    *("2026-11-29 12", "12:30:45", "1.2.3.4", "3.14159265", "1764423087123", "+49 30 123456"),
)
digits = st.text("0123456789", min_size=1, max_size=14)
texts = st.lists(st.sampled_from(PIECES) | digits, max_size=14).map("".join)
any_text = texts | st.text("0123456789 -.:/()+@abcfxGBDE=_[]\n", max_size=80)


class AllRuns(PhoneDetector):
    """Reads every run of seven digits, whatever stands before it."""

    __slots__ = ()
    run = re.compile(phone.DIGITS + "{6,}")

    def _runs(self, text: str) -> Iterator[tuple[int, int, bool]]:
        for run in self.run.finditer(text):
            yield *run.span(), True


REGIONS = (("US", "GB"), (), ("DE", "FR"), ("AR", "IT", "SE"))
DETECTORS = {regions: (PhoneDetector(regions), AllRuns(regions)) for regions in REGIONS}


@pytest.mark.parametrize("regions", REGIONS)
@given(any_text)
@example("phone: sms3.14159265")
@example("+1x555 1234 5678")
@example("+0.12345678 and +999 1234567")
def test_no_run_of_digits_is_left_out_that_may_be_a_number(regions: tuple[str, ...], text: str):
    quick, thorough = DETECTORS[regions]
    plain = normalise(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(phone, "_may_be_abroad", lambda _groups: True)
        expected = list(thorough.find(plain))
    assert list(quick.find(plain)) == expected


@given(
    st.sampled_from([str(code) for code in COUNTRY_CODE_TO_REGION_CODE]) | digits,
    st.lists(digits, max_size=4),
    st.sampled_from(" -./("),
)
def test_what_the_library_finds_behind_a_plus_is_let_through(
    code: str, groups: list[str], separator: str
):
    text = "+" + separator.join((code, *groups))
    found = PhoneNumberMatcher(text, None, Leniency.POSSIBLE, max_tries=100)
    if found.has_next():
        assert phone._may_be_abroad([code, *groups])


def all_ips(text: str) -> Spans:
    for pattern, is_address in (
        (identifiers._V4, identifiers._is_v4),
        (identifiers._V6, identifiers._is_v6),
    ):
        spans = (match.span() for match in pattern.finditer(text))
        yield from (span for span in spans if is_address(text, *span))


def all_ibans(text: str) -> Spans:
    return identifiers._ibans_of_line(text, 0, len(text))


def all_random(text: str) -> Spans:
    for token in re.finditer(secret.LONG, text):
        start, end = token.span()
        if secret._DIGEST.match(token.group()) or text[max(0, start - 3) : start] == "h1:":
            continue
        if end - start == secret._AWS_SECRET and secret.looks_random(token.group()):
            yield start, end
        elif end - start <= secret._BLOB:
            for piece in secret._PIECE.finditer(text, start, end):
                if secret.looks_random(piece.group()):
                    yield piece.span()


def all_labelled(text: str) -> Spans:
    for search in (secret._known, secret._basic, secret._labelled, secret._find_spoken):
        yield from search(text)


@given(any_text | st.text("aB3-_/+gh.=: ", max_size=90))
def test_no_address_account_or_token_is_left_out(text: str):
    plain = normalise(text)
    assert list(identifiers.find_ips(plain)) == list(all_ips(plain))
    assert list(identifiers.find_ibans(plain)) == list(all_ibans(plain))
    assert list(secret._random(plain)) == list(all_random(plain))
    assert list(secret.find_secrets(plain)) == sorted([*all_random(plain), *all_labelled(plain)])
    if scan._rare_sign(plain.encode()) is None:
        assert not any(identifiers.find_ips(plain))
        assert not any(identifiers.find_ssns(plain))
