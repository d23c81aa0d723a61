"""Laws of the scan that hold for any text."""

from hypothesis import given
from hypothesis import strategies as st
from stdnum import luhn

from policies.pii import PiiScanner

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
