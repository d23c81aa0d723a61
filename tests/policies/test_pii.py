"""What the scan finds, what it leaves alone, and what does not get past it in disguise."""

import base64

import phonenumbers
import pytest
from call_counting import calls_made

from policies.pii.phone import MOST_DIGITS
from policies.pii.scan import PiiScanner, Span
from policies.pii.secret import looks_random

SCANNER = PiiScanner(["US", "GB"])
FULL_WIDTH = str.maketrans({chr(code): chr(code + 0xFEE0) for code in range(0x21, 0x7F)})

FOUND = [
    ("email", "write to ada@example.com today"),
    ("email", "Ada.Lovelace+x@sub.example.co.uk"),
    ("email", "почта: иван@пример.рф"),
    ("email", "邮箱ada@example.com谢谢"),
    ("email", "ada.noreply@example.com"),
    ("email", "noreplyada@example.com"),
    ("email", "no-reply2@example.com"),
    ("email", "reply@example.com"),
    ("email", "ada+noreply@example.com"),
    ("email", "1234+ada@users.noreply.example.com"),
    ("email", "noreply@example.com, ada@example.com"),
    ("email", "noreply@example.com.ada@example.org"),
    ("email", "noreply@example.com@example.org"),
    ("card", "card 4111111111111111"),
    ("card", "4111 1111 1111 1111"),
    ("card", "5500-0000-0000-0004,"),
    ("card", "my amex is 3782 822463 10005"),
    ("card", "4 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1"),
    ("card", "items 12 4111 1111 1111 1111 7"),
    ("card", "4222222222222"),
    ("card", "6304000000000000"),
    ("card", "卡号4111111111111111"),
    ("card", "gift card 9991000000000002"),
    ("iban", "GB82 WEST 1234 5698 7654 32"),
    ("iban", "de89370400440532013000"),
    ("iban", "pay NO93-8601-1117-947 now"),
    ("iban", "MT84MALT011000012345MTLCAST001S"),
    ("ssn", "123-45-6789"),
    ("ssn", "078-05-1120"),
    ("ssn", "my ssn is 123456789"),
    ("ssn", "SS# 123456789"),
    ("ssn", "user_ssn_123456789"),
    ("ssn", "my social is 123456789"),
    ("ssn", "Social Security number: 123 45 6789"),
    ("phone", "call (415) 555-2671"),
    ("phone", "415.555.2671 x33"),
    ("phone", "4155552671x33"),
    ("phone", "+1 415 555 2671"),
    ("phone", "020 7946 0958"),
    ("phone", "+33 1 42 68 53 00"),
    ("phone", "+4915112345678"),
    ("phone", "555-123-4567"),
    ("phone", "my phone number is 467 3395"),
    ("phone", "1) 0044 20 7946 0958"),
    ("phone", "2. (415) 555-2671"),
    ("phone", "0207 946 0958"),
    ("phone", "+61.412.344.844"),
    ("phone", "011 44 20 7946 0958"),
    ("ip", "from 203.0.113.7"),
    ("ip", "...203.0.113.7... and so on"),
    ("ip", "it is...2001:db8::1..."),
    ("ip", "http://203.0.113.7:8080/x"),
    ("ip", "[2001:db8::1]:443"),
    ("ip", "2001:0db8:0000:0000:0000:ff00:0042:8329"),
    ("ip", "::ffff:203.0.113.7"),
    ("ip", "地址203.0.113.7。"),
    ("ip", "ada@10.0.0.7"),
    ("secret", "sk-proj-abcdefghijklmnop1234"),
    ("secret", "sk-ant-api03-" + "a1" * 20),
    ("secret", "ghp_" + "a1B2" * 9),
    ("secret", "github_pat_11ABCDEFG0" + "a1B2" * 9),
    ("secret", "AKIAIOSFODNN7EXAMPLE"),
    ("secret", "glptt-" + "a1b2" * 10),
    ("secret", "SK" + "0a1b2c3d" * 4),
    ("secret", "dapi" + "0a1b2c3d" * 4),
    ("secret", "0a1b2c3d0a1b2c3d0a1b2c3d0a1b2c3d-us7"),
    ("secret", "1234567890:AA" + "bC3dE5gH" * 4 + "i"),
    ("secret", "abc8Q~" + "aB3dE5gH7jK9mN1p" * 2 + "qR"),
    ("secret", "https://hooks.slack.com/services/T0A1B2C3D/B0A1B2C3D/aB3dE5gH7jK9"),
    ("secret", "hvs." + "aB3dE5gH7jK9mN1p" * 3),
    ("secret", "AGE-SECRET-KEY-1" + "QPZRY9X8" * 7),
    ("secret", "Authorization: Basic dXNlcjpQQHNzdzByZDE="),
    ("secret", "my password is hunter22"),
    ("secret", "curl -u ada:hunter22 https://x.example"),
    ("secret", "redis://:letmein@cache:6379/0"),
    ("secret", "https://acme.blob.core.windows.net/c?sv=1&sig=" + "aB3dE5gH" * 5),
    ("secret", "DefaultEndpointsProtocol=https;AccountKey=" + "aB3dE5gH" * 10 + "=="),
    ("secret", "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
    ("secret", "xoxb-123456789012-abcdefABCDEF"),
    ("secret", "AIza" + "Sy0" * 12),
    ("secret", "hf_" + "abcdEFGH" * 4),
    ("secret", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P"),
    ("secret", "-----BEGIN RSA PRIVATE KEY-----\nMIIE"),
    ("secret", "-----BEGIN PRIVATE KEY-----"),
    ("secret", "Authorization: Bearer abcdef1234567890abcdef"),
    ("secret", "password: hunter2hunter2"),
    ("secret", 'api_key = "0123456789abcdef0123456789abcdef"'),
    ("secret", "postgres://app:letmein@db/orders"),
    ("secret", "kP3x/Zq8LmN2vB+7tRwY5uJcD4sFgH9aEeK1oQiX is the other half"),
    ("secret", "use Zx8Kq2Lw9Vb4Nc7Mt1Rp5Hd3 for it"),
]

CLEAN = [
    "",
    "Co-Authored-By: Claude <noreply@anthropic.com>",
    "`noreply@example.com`, mailto:no-reply@mail.example.co.uk, from=no_reply@example.com",
    "NoReply@example.com DONOTREPLY@example.com Do-Not-Reply@example.com do_not_reply@example.com",
    "noreply+billing@example.com",
    "How do I reset my password?",
    "My password is incorrect, and the token: it expired.",
    "The meeting is at 12:30:45 on 2025-11-10 12:30.",
    "between 2019-2023 we sold 1,234,567 units at $12.99",
    "in 2019 2020 2021 2022 2023 2024",
    "4111 1111 1111 1112",
    "1234 5678 9012 3456",
    "0.4111111111111111",
    "411111111111111111111111111111",
    "GB82 WEST 1234 5698 7654 33",
    "000-12-3456 and 666-12-3456 and 900-12-3456 and 123-00-4567 and 123-45-0000",
    "part 1-123-45-6789-0",
    "version 10.2.33.4 of the driver",
    "version 181.98.128.163 of the driver",
    "v1.2.3.4",
    "release is 10.2.33.4",
    "Chrome/99.0.1.2 and libfoo-1.2.3.4 and 1.2.3.4-beta and 1.2.3.4.5 and 1.2.3.400",
    "listen on 127.0.0.1 or 0.0.0.0 with mask 255.255.255.0, or ::1 and ::",
    "std::vector<int> and a::b and Foo::Bar2",
    "00:1B:44:11:3A:B7",
    "550e8400-e29b-41d4-a716-446655440000",
    "commit 3f786850e387550fdab836ed7e6dc881de23001b",
    "sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "convertHtml2PdfDocumentWithOptions3 calls getHTTP2ResponseHandlerFactory",
    "/usr/lib/python3/dist-packages/Some_Module2/handlers",
    "call_aB3dE5gH7jK9mN1pQ3sT5uV7",
    "@decorator and foo@bar and types/node@1.2.3",
    "order number 4155552671, Order-ID: 4155552671, ISBN 0306406152, app.js?v=4155552671",
    "ISBN 0-8044-2957-X and 978-0-306-40615-7, INV-2025-669778",
    "1731240000 1731240000123 1731240000.123456",
    "52.520008, 13.404954; 49.9405 143.2597; EUR 1.647.605,12",
    "12 34 56 78 90 11 22 33",
    "tracking number 609503530774 and 9400 4633 0652 7129 4266 33",
    "+55 800 11",
    "sha512-"
    + base64.b64encode(bytes(range(100, 164))).decode()
    + ", h1:"
    + base64.b64encode(bytes(range(7, 250, 8))).decode(),
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2b7cX9Qw1Zp0Vt3Lr5Kd8Mn4Hs6Gy2Ux7Tf1Ra3We ada@laptop",
    "password=$DB_PASSWORD_2, api_key = your-api-key-0123, token: process.env.TOKEN2",
    "key: user:256710:profile, secret: my-k8s-secret-2, key: primary_key_2",
    "Authorization: Bearer <YOUR_TOKEN_1>, basic knowledge, basic auth01",
    "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 4).decode(),
    "x" * 5000,
    "3.14159265358979323846264338327950288",
    "naïve café, straße, Ωmega, 你好世界",
]


@pytest.mark.parametrize(("kind", "text"), FOUND)
def test_found(kind, text):
    assert SCANNER.scan(text) in {kind, "email"}
    assert kind in {span.kind for span in SCANNER.spans(text)}


@pytest.mark.parametrize("text", CLEAN)
def test_left_alone(text):
    assert SCANNER.spans(text) == []
    assert SCANNER.scan(text) is None


@pytest.mark.parametrize(("kind", "text"), FOUND)
@pytest.mark.parametrize(
    "disguise",
    [
        lambda text: text.translate(FULL_WIDTH),
        "\u200b".join,
        "\u00ad".join,
        lambda text: "".join(f"{character}\u0301" for character in text),
        lambda text: text.translate({48 + digit: 0x660 + digit for digit in range(10)}),
        lambda text: text.translate({48 + digit: 0x1D7CE + digit for digit in range(10)}),
        lambda text: text.replace("-", "\u2011").replace(" ", "\u00a0"),
        lambda text: text.replace("-", "\u2013").replace(" ", "\u2009"),
        lambda text: text.replace("A", "\u0410").replace("a", "\u0430").replace("e", "\u0435"),
        lambda text: f"\ud800 {text} \udfff",
    ],
    ids=[
        "full width",
        "zero width",
        "soft hyphens",
        "accents",
        "arabic",
        "bold",
        "no-break",
        "dashes",
        "cyrillic",
        "surrogates",
    ],
)
def test_found_in_disguise(kind, text, disguise):
    assert SCANNER.scan(disguise(text)) is not None


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        (
            "ada@example.com, 4111 1111 1111 1111; 203.0.113.7.",
            [Span("email", 0, 15), Span("card", 17, 36), Span("ip", 38, 49)],
        ),
        ("two: 123-45-6789 (020 7946 0958)", [Span("ssn", 5, 16), Span("phone", 17, 31)]),
        # what is more than one thing is the more telling one
        ("https://ada:pass@example.com/", [Span("secret", 0, 18)]),
        ("GB82WEST12345698765432", [Span("iban", 0, 22)]),
        # places are those of the text as given
        ("\u200bé \uff14111\u200b1111-no 2\u200b03.0.113.7", [Span("ip", 16, 28)]),
    ],
)
def test_spans(text, spans):
    assert SCANNER.spans(text) == spans


def test_regions_say_whose_national_numbers_are_known():
    french = "01 42 68 53 00"
    assert SCANNER.scan(french) is None
    assert PiiScanner(["FR"]).scan(french) == "phone"
    assert PiiScanner([]).scan(french) is None
    assert PiiScanner([]).scan("+33 " + french[1:]) == "phone"


@pytest.mark.parametrize("region", sorted(phonenumbers.SUPPORTED_REGIONS))
def test_numbers_of_every_region_are_found_as_they_are_written_there(region):
    scanner = PiiScanner([region])
    for kind in (phonenumbers.PhoneNumberType.FIXED_LINE, phonenumbers.PhoneNumberType.MOBILE):
        example = phonenumbers.example_number_for_type(region, kind)
        # Small territories have numbers of five digits, which nothing tells from other numbers.
        if example is None or len(str(example.national_number)) < 7:
            continue
        for form in (
            phonenumbers.PhoneNumberFormat.NATIONAL,
            phonenumbers.PhoneNumberFormat.INTERNATIONAL,
            phonenumbers.PhoneNumberFormat.E164,
        ):
            written = phonenumbers.format_number(example, form)
            assert scanner.scan(f"reach me under {written} please") is not None, written


def test_an_unknown_region_is_refused():
    with pytest.raises(ValueError, match="region 'UK'"):
        PiiScanner(["US", "UK"])


def test_more_digits_than_are_looked_through_are_not_clean():
    nearly = "020 7946 09 "
    assert SCANNER.scan(nearly * (MOST_DIGITS // len(nearly) + 1)) == "phone"
    assert SCANNER.scan(nearly * 100) is None


def test_digits_that_are_no_number_of_the_region_are_clean_however_many():
    assert SCANNER.scan("2025-11-10,4006381333931,12.99,0044123\n" * 2000) is None


@pytest.mark.parametrize(
    ("token", "random"),
    [
        ("aB3dE5gH7jK9mN1pQ3sT5", True),
        ("Zx8Kq2Lw9Vb4Nc7Mt1Rp5Hd3", True),
        ("aB3dE5gH7jK9", False),
        ("a" * 30 + "B1C2", False),
        ("thisIsACamelCaseIdentifier42", False),
        ("ABCDEFGHIJKLMNOPQRST12345", False),
        ("msg_aB3dE5gH7jK9mN1pQ3sT5", False),
    ],
)
def test_what_looks_random(token, random):
    assert looks_random(token) is random


ADVERSARIAL = [
    "1", "1 ", "4000 ", "4111-1111-1111-1112 ", "1234567 ", "1.2.", "1:", "::1 ", "@", "a@", "a.b@",
    "GB12", "GB82WEST12345698765431 ", "abcdef0123456789", "aB3dE5gH7jK9mN1pQ3 ", "password ",
    "key=", "123-45-", "(((", "1(2)3[4]", "+1", "+44 20 794 ", "1\u200b", "a\u0301", "eyJabcdefgh.",
    "http://a:", "价格", "\u0661", "\ufdfa", "\ud800",
]  # fmt: skip


@pytest.mark.parametrize("unit", ADVERSARIAL, ids=ascii)
def test_work_grows_with_the_length_only(unit):
    def calls(characters):
        text = (unit * (characters // len(unit) + 1))[:characters]
        return calls_made(lambda: SCANNER.scan(text))

    # Eight times the text; half as much again for what is done once, and none for a square (64).
    assert calls(16_000) <= 12 * calls(2000)
