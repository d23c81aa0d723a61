"""What marks and encodings do not hide, what they are not taken for, and what they cost."""

import base64
from collections.abc import Callable
from urllib.parse import quote

import pytest
from call_counting import calls_made
from hypothesis import given
from hypothesis import strategies as st

from policies.pii.readings import Reading, may_be_disguised, other_readings
from policies.pii.scan import PiiScanner, Span

SCANNER = PiiScanner(["US", "GB"])

PERSONAL = {
    "email": "ada@example.com",
    "card": "4111 1111 1111 1111",
    "iban": "GB82 WEST 1234 5698 7654 32",
    "ssn": "123-45-6789",
    "phone": "(415) 555-2671",
    "phone abroad": "+44 20 7946 0958",
    "ip": "203.0.113.7",
    "secret": "sk-proj-abcdefghijklmnop1234",
}


def with_separator(mark: str) -> Callable[[str], str]:
    return lambda text: text.replace(" ", mark).replace("-", mark)


def with_middle(mark: str) -> Callable[[str], str]:
    return lambda text: text[: len(text) // 2] + mark + text[len(text) // 2 :]


def percent(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())


def base64_of(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


DISGUISES: dict[str, Callable[[str], str]] = {
    "fillers": "\u3164".join,
    "empty braille": "\u2800".join,
    "control characters": "\0".join,
    "a tab after each character": "\t".join,
    "an underscore after each character": "_".join,
    "bold groups": lambda text: f"**{text.replace(' ', '** **').replace('-', '**-**')}**",
    "bold within": with_middle("**"),
    "code within": with_middle("`"),
    "struck out": with_middle("~~"),
    "escapes of Markdown": lambda text: text.replace("@", "\\@").replace("-", "\\-"),
    "tags within": lambda text: with_middle("<b>")(text) + "</b>",
    "tags with attributes": with_middle('</span><SPAN class="x">'),
    "a comment": with_middle("<!-- here -->"),
    "a break for words": with_middle("<wbr>"),
    "entities": lambda text: "".join(f"&#{ord(character)};" for character in text),
    "hexadecimal entities": lambda text: "".join(f"&#x{ord(character):x};" for character in text),
    "escaped entities": lambda text: "".join(f"&amp;#{ord(character)};" for character in text),
    "named entities": lambda text: (
        text.replace("@", "&commat;").replace(".", "&period;").replace(" ", "&nbsp;")
    ).replace("-", "&hyphen;"),
    "percent": percent,
    "percent where needed": lambda text: quote(text, safe="").replace("-", "%2D"),
    "percent twice": lambda text: quote(percent(text)),
    "base64": base64_of,
    "base64 of a sentence": lambda text: base64_of(f"write it down: {text}, please"),
    "base64 for addresses": lambda text: base64.urlsafe_b64encode(
        f"ÿ¿? {text} ?".encode()
    ).decode(),
    "base64 in lines": lambda text: base64.encodebytes(b"long " * 10 + text.encode() * 2).decode(),
    "base64 twice": lambda text: base64_of(base64_of(text)),
    "base64 in percent": lambda text: percent(base64_of(text)),
    "percent in base64": lambda text: base64_of(percent(text)),
    "hexadecimal": lambda text: text.encode().hex(),
    "bytes": lambda text: "".join(f"\\x{byte:02x}" for byte in text.encode()),
}


@pytest.mark.parametrize("kind", PERSONAL)
@pytest.mark.parametrize("disguise", DISGUISES)
def test_it_is_found_in_disguise(disguise: str, kind: str):
    text = f"Mine is {DISGUISES[disguise](PERSONAL[kind])} since May."
    assert SCANNER.scan(text) is not None
    assert SCANNER.spans(text)


@pytest.mark.parametrize("kind", ["card", "iban", "ssn", "phone", "phone abroad"])
@pytest.mark.parametrize("mark", ["\t", "_", "` `", "</td><td>", "</TH>\n<TD align=right>"])
def test_it_is_found_where_its_groups_are_set_apart_otherwise(mark: str, kind: str):
    assert SCANNER.scan(f"Mine is <td>{with_separator(mark)(PERSONAL[kind])}</td>") is not None


@pytest.mark.parametrize(
    "text",
    [
        "4111/1111/1111/1111",
        "4111·1111·1111·1111",
        "[4111][1111][1111][1111]",
        "(123)(45)(6789)",
        "ada [at] example [dot] com",
        "ada(AT)example.com",
        "a d a @ e x a m p l e . c o m",
        "ada_@_example_._com",
        "ada\t@\texample.com",
        "**ada** @ **example.com**",
        "<b>ada</b> @ <i>example.com</i>",
        "ada%u0040example.com",
        "ada\\u{40}example.com",
        "ada\\100example.com",
        "4111:1111:1111:1111",
        "4111#1111#1111#1111",
        "4111=1111=1111=1111",
        '"4111" "1111" "1111" "1111"',
        "'123' '45' '6789'",
        "card=4111+1111+1111+1111",
        "iban=GB82+WEST+1234+5698+7654+32&next",
        "+1+415+555+2671",
        "+1.201\t556\t8238",
        "+44.20\t7946\t0958",
    ],
)
def test_it_is_found_in_other_writings(text: str):
    assert SCANNER.scan(f"it is {text} now") is not None


@pytest.mark.parametrize(
    "text",
    [
        "**Step 1:** open `settings.json`, *then* 2 * 3 = 6 and 2**31-1, a*b*c",
        "snake_case_names_2, __init__, MAX_VALUE_2, IMG_20240101_123456, 1_000_000_000_000",
        "https://example.com/2024/01/1234567890/a%20b%2Fc?page=2&lang=en&copy=3",
        "2\t345\t6789\t12\t3456\t789\n1\t22\t333\t4444\t55555\t666666",
        "<tr><td>2024</td><td>1,234</td><td>56.7</td></tr><p>5</p><p>1234567</p>",
        "if (a < 4111 && b > 1111) { c[1][2] = x(3)(4); } R&D, AT&T",
        "12/31/2024 10:30, 1/2 and 3/4, and/or, TCP/IP, A/B",
        "50%40 off &#65; 100%25",
        "x=1+2+3, y=A1+B2+C3, total=4000+1500+275, C:\\100\\101, \\033[31m",
        "2024:12:31 10:30:00, 12:4111:1111:1111:1111, 1080=1080=0000",
        "join us @ **example.com**, 5 @ 3.50 each",
        'seq "1" "2" "300" "4" "5"',
        "see [1][2][3], Figure 2019[12][13]",
        "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 4).decode(),
        base64_of("the quick fox"),
        "sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "internationalisation, ABCDEFGHIJKLMNOPQRST, x = a + b - c * d / e - f + g - h",
        "ada at example dot com, lunch @ noon, foo@bar, node@1.2.3",
    ],
)
def test_marked_and_encoded_text_without_personal_data_is_left_alone(text: str):
    assert SCANNER.spans(text) == []
    assert SCANNER.scan(text) is None


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("ada&#64;example.com.", Span("email", 0, 19)),
        ("to: **ada@**exam**ple.com**", Span("email", 6, 25)),
        (f"x {base64_of('4111 1111 1111 1111')} y", Span("card", 2, 30)),
        ("é 123<b>-45-</b>6789", Span("ssn", 2, 20)),
    ],
)
def test_places_are_those_of_the_text_as_given(text: str, span: Span):
    assert span in SCANNER.spans(text)


@pytest.mark.parametrize(
    "text",
    [
        "How do I get a refund for order 12, which never arrived at my place? It cost $12.99.",
        "Use `git status`, then **commit**; see https://example.com/docs for more.",
        "self.value = first_value + other.value[0]  # 3 of 4",
    ],
)
def test_ordinary_text_has_no_other_reading(text: str):
    assert not may_be_disguised(text)
    assert list(other_readings(Reading(text))) == []


UNITS = [
    "%41", "%", "%25", "&#52;", "&amp;", "&#", "<b>", "<b ", "1</b> <b>", "</td> ", "1</td><td>",
    "((", "1\t", "\t", "_", "1_", "_@", "`", "1`", "1 ` ", "\\@", "\\x41", "YWRh", "64", "\0", "a ",
    "a-", "[at]", "1][", "1/", "</td><td>", "VFZKa1lRPT0=", " .", "_.", "%2541", "<!--",
    "1+", "=1+", "=1+1", "4111:", ":4111", "%u0041", "\\u{41}", "* @", "*@*", '1" "',
]  # fmt: skip


def calls_to_scan(text: str) -> int:
    return calls_made(lambda: SCANNER.scan(text))


@pytest.mark.parametrize("unit", UNITS, ids=ascii)
def test_work_grows_with_the_length_only(unit: str):
    short, long = ((unit * (length // len(unit) + 1))[:length] for length in (2000, 16_000))
    # Eight times the text; half as much again for what is done once, and none for a square (64).
    assert calls_to_scan(long) <= 12 * calls_to_scan(short)


@pytest.mark.parametrize("mark", ["\t", "</td><td>"])
def test_figures_with_fractions_take_no_more_work_in_cells_than_with_commas(mark: str):
    rows = [[f"{row * 7919 % 9999}.{row % 90 + 10}", f"{row}.5", "12.75"] for row in range(500)]
    plain, cells = ("\n".join(map(each.join, rows)) for each in (", ", mark))
    assert SCANNER.scan(cells) is None
    # What stands between cells is replaced, and no number is put together.
    assert calls_to_scan(cells) <= calls_to_scan(plain) + 6 * len(rows)


@pytest.mark.parametrize("end", ["", ".", ", and more", " 2.5"])
def test_a_row_may_end_a_sentence(end: str):
    assert SCANNER.scan(f"It is 4111\t1111\t1111\t1111{end}") == "card"


@given(st.text(alphabet="%2541&#;amp<b>/td`*_\\x@. \t[]()ayWRh=\u3164\uff11\ud800", max_size=120))
def test_readings_are_few_and_end(text: str):
    # Twice decoded; each time as it is and twice unescaped; each without marks and set apart.
    assert len(list(other_readings(Reading(text.replace("\ud800", "?"))))) <= 3 * 3 * 3
    assert (SCANNER.scan(text) is None) == (SCANNER.spans(text) == [])
