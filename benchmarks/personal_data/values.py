"""Personal data and secrets in the forms that people, tools and vendors write them; all invented.

Every function draws from the generator it is given, so a seed names a set of cases.
"""

import base64
import string
from collections.abc import Callable
from random import Random

import phonenumbers
from phonenumbers import PhoneMetadata, PhoneNumberFormat, PhoneNumberType
from stdnum import iban, luhn

Maker = Callable[[Random], str]

LOWER, UPPER, DIGITS = string.ascii_lowercase, string.ascii_uppercase, string.digits
WORD = string.ascii_letters + DIGITS
URL_SAFE = WORD + "-_"
BASE64 = WORD + "+/"
HEX = "0123456789abcdef"
HEX_UPPER = HEX.upper()

BRANDS = (
    # prefixes, lengths
    (("4",), (13, 16, 19)),  # Visa
    (("51", "52", "53", "54", "55", "2221", "2345", "2720"), (16,)),  # Mastercard
    (("34", "37"), (15,)),  # American Express
    (("300", "305", "3095", "36", "38", "39"), (14, 16)),  # Diners Club
    (("6011", "644", "649", "65"), (16, 19)),  # Discover
    (("3528", "3589"), (16, 19)),  # JCB
    (("62", "81"), (16, 17, 18, 19)),  # UnionPay
    (("5018", "5020", "5038", "5893", "6304", "6759", "6761", "6763"), (12, 13, 16, 19)),  # Maestro
    (("2200", "2204"), (16, 19)),  # Mir
    (("60", "6521", "8172"), (16,)),  # RuPay
    (("9792",), (16,)),  # Troy
    (("5067", "4576", "6362", "6363"), (16,)),  # Elo
    (("606282",), (16,)),  # Hipercard
    (("506099", "650002"), (16, 18, 19)),  # Verve
    (("5019",), (16,)),  # Dankort
    (("637", "639"), (16,)),  # InstaPayment
)


def draw_text(draw: Random, alphabet: str, length: int) -> str:
    """Return ``length`` characters of an alphabet."""
    return "".join(draw.choices(alphabet, k=length))


def digits(draw: Random, length: int) -> str:
    """Return ``length`` digits."""
    return draw_text(draw, DIGITS, length)


def mixed(draw: Random, alphabet: str, length: int) -> str:
    """Return characters among which are two digits and a letter of each case, as of a key."""
    while True:
        text = draw_text(draw, alphabet, length)
        if (
            sum(map(str.isdigit, text)) > 1
            and any(map(str.isupper, text))
            and any(map(str.islower, text))
        ):
            return text


def email(draw: Random) -> str:
    """Return an email address."""
    first = draw.choice(("ada", "grace.hopper", "a_l+news", "O'Hara", "x-7", "анна", "josé", "m.k"))
    local = draw.choice((first, first.upper(), f"{first}{draw.randrange(100)}", f"{first}%eu"))
    host = draw.choice(
        (
            *("example.com", "mail.example.co.uk", "xn--bcher-kva.example", "bücher.de", "b-c.io"),
            *("EXAMPLE.ORG", "a.b.c.example.museum", "3com.example", "пример.рф", "例え.jp"),
        )
    )
    return f"{local}@{host}"


def card(draw: Random) -> str:
    """Return a card number of any brand."""
    prefixes, lengths = draw.choice(BRANDS)
    prefix, length = draw.choice(prefixes), draw.choice(lengths)
    body = prefix + digits(draw, length - len(prefix) - 1)
    number = body + luhn.calc_check_digit(body)
    sizes = {15: (4, 6, 5), 14: (4, 6, 4)}.get(length, (4, 4, 4, 4, 4))
    groups, start = [], 0
    for size in sizes:
        groups.append(number[start : start + size])
        start += size
    return draw.choice(("", "", " ", " ", "-", "-", ".", "\u00a0")).join(filter(None, groups))


def bank_account(draw: Random, countries: dict[str, str]) -> str:
    """Return an IBAN of one of ``countries`` (code to structure, such as 8!n10!n)."""
    country = draw.choice(sorted(countries))
    alphabets = {"n": DIGITS, "a": UPPER, "c": UPPER + DIGITS}
    bban = ""
    for part in (
        countries[country]
        .replace("!", "")
        .replace("n", "n ")
        .replace("a", "a ")
        .replace("c", "c ")
        .split()
    ):
        bban += draw_text(draw, alphabets[part[-1]], int(part[:-1]))
    compact = country + iban.calc_check_digits(country + "00" + bban) + bban
    written: str = draw.choice((compact, iban.format(compact), iban.format(compact, "-")))
    return draw.choice((written, written, written.lower()))


def social_security(draw: Random) -> str:
    """Return an issued US social security number, labelled where it is in one piece."""
    area = draw.choice([n for n in range(1, 900) if n != 666])
    parts = (f"{area:03}", f"{draw.randrange(1, 100):02}", f"{draw.randrange(1, 10_000):04}")
    separator = draw.choice("--- ..")
    label = draw.choice(("SSN: ", "ssn ", "SSN# ", "social security number is ", "SS# "))
    return draw.choice((separator.join(parts), label + "".join(parts)))


def phone(draw: Random, regions: list[str]) -> str:
    """Return a number that exists in a region, in a form that is used there."""
    region = draw.choice(regions)
    kinds = (PhoneNumberType.MOBILE, PhoneNumberType.FIXED_LINE, PhoneNumberType.TOLL_FREE)
    while True:
        example = phonenumbers.example_number_for_type(region, draw.choice(kinds))
        if example is None or len(str(example.national_number)) < 8:
            continue
        national = str(example.national_number)
        number = phonenumbers.parse(national[:-5] + digits(draw, 5), region)
        if phonenumbers.is_valid_number_for_region(number, region):
            return _written(draw, number, region)


def _written(draw: Random, number: phonenumbers.PhoneNumber, region: str) -> str:
    styles = (PhoneNumberFormat.E164, PhoneNumberFormat.INTERNATIONAL, PhoneNumberFormat.NATIONAL)
    international = phonenumbers.format_number(number, styles[1])
    national = phonenumbers.format_number(number, styles[2])
    country = f"+{number.country_code}"
    return draw.choice(
        (
            phonenumbers.format_number(number, styles[0]),
            international,
            international.replace(" ", "-"),
            international.replace(" ", "."),
            international.replace("+", "00"),
            f"tel:{international.replace(' ', '-')}",
            international.replace(f"{country} ", f"{country} (0)")
            if getattr(PhoneMetadata.metadata_for_region(region), "national_prefix", "") == "0"
            else f"{number.country_code}-{national.replace('(', '').replace(') ', '-')}",
            national,
            national,
            national.replace(" ", "-").replace(")-", ") "),
            "".join(filter(str.isdigit, national)),
            f"{national} ext. {draw.randrange(10, 999)}",
        )
    )


def address(draw: Random) -> str:
    """Return an IP address, v4 or v6, alone or as configuration and logs have it."""
    first = draw.choice([n for n in range(1, 224) if n != 127])
    v4 = ".".join(map(str, (first, *(draw.randrange(256) for _ in range(3)))))
    groups = [f"{draw.randrange(1, 65_536):x}" for _ in range(8)]
    groups[0] = f"2{draw.randrange(4096):03x}"
    whole = ":".join(groups)
    short = ":".join(groups[: draw.randrange(2, 5)]) + "::" + groups[-1]
    link = "fe80::" + ":".join([*groups[1:4], f"{draw.randrange(10)}{digits(draw, 2)}"])
    v6 = draw.choice((whole, whole.upper(), short, short, link, f"::ffff:{v4}"))
    return draw.choice(
        (
            *(v4, v4, f"{v4}:8080", f"http://{v4}/login", f"root@{v4}", f"{v4}/24", f"({v4})"),
            *(v6, v6, f"[{v6}]:443", f"{v6}/64", f"http://[{v6}]/", f"{link}%eth0"),
        )
    )


def secret(draw: Random) -> str:
    """Return a credential of a vendor, a labelled one, or one that only looks random."""
    return draw.choice((_issued, _issued, _issued, _labelled, _labelled, _connecting, _bare))(draw)


def _issued(draw: Random) -> str:
    def word(length: int) -> str:
        return mixed(draw, WORD, length)

    def safe(length: int) -> str:
        return mixed(draw, URL_SAFE, length)

    def hexadecimal(length: int) -> str:
        return draw_text(draw, HEX, length)

    return draw.choice(
        (
            *(f"sk-proj-{safe(120)}", f"sk-{word(48)}", f"sk-svcacct-{safe(60)}"),
            *(f"sk-ant-api03-{safe(93)}AA", f"sk-or-v1-{hexadecimal(64)}", f"gsk_{word(52)}"),
            *(f"xai-{word(80)}", f"pplx-{word(48)}", f"r8_{word(37)}", f"hf_{word(34)}"),
            *(f"ghp_{word(36)}", f"gho_{word(36)}", f"ghs_{word(36)}"),
            f"github_pat_{word(22)}_{word(59)}",
            *(f"glpat-{safe(20)}", f"glrt-{safe(20)}", f"glptt-{hexadecimal(40)}"),
            "AKIA" + draw_text(draw, UPPER + "234567", 16),
            "ASIA" + draw_text(draw, UPPER + "234567", 16),
            *(f"AIza{safe(35)}", f"ya29.{safe(80)}", f"GOCSPX-{safe(28)}", f"1//0{safe(40)}"),
            f"{draw_text(draw, WORD, 3)}8Q~{safe(34)}",
            f"xoxb-{digits(draw, 12)}-{digits(draw, 12)}-{word(24)}",
            f"xoxp-{digits(draw, 12)}-{digits(draw, 12)}-{hexadecimal(32)}",
            f"https://hooks.slack.com/services/T{word(8).upper()}/B{word(10).upper()}/{word(24)}",
            f"https://discord.com/api/webhooks/{digits(draw, 18)}/{safe(68)}",
            *(f"sk_live_{word(24)}", f"rk_test_{word(24)}", f"whsec_{word(32)}"),
            *(f"SK{hexadecimal(32)}", f"SG.{safe(22)}.{safe(43)}", f"key-{hexadecimal(32)}"),
            *(f"{hexadecimal(32)}-us{draw.randrange(1, 22)}", f"npm_{word(36)}"),
            *(f"pypi-AgEIcHlwaS5vcmc{safe(90)}", f"dckr_pat_{safe(27)}", f"dapi{hexadecimal(32)}"),
            *(f"dop_v1_{hexadecimal(64)}", f"shpat_{hexadecimal(32)}", f"sq0atp-{safe(22)}"),
            f"M{word(23)}.{safe(6)}.{safe(27)}",
            f"{digits(draw, 10)}:AA{safe(33)}",
            *(f"lin_api_{word(40)}", f"ntn_{word(43)}", f"figd_{safe(40)}", f"hvs.{safe(90)}"),
            *(f"glsa_{word(32)}_{hexadecimal(8)}", f"NRAK-{word(27).upper()}"),
            *(f"sbp_{hexadecimal(40)}", f"pscale_tkn_{safe(43)}", f"dp.pt.{word(43)}"),
            f"pat{word(14)}.{hexadecimal(64)}",
            f"AGE-SECRET-KEY-1{draw_text(draw, UPPER + DIGITS, 58)}",
            f"eyJ{safe(30)}.eyJ{safe(60)}.{safe(43)}",
            "-----BEGIN "
            + draw.choice(("", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED ", "DSA "))
            + "PRIVATE KEY-----\n"
            + draw_text(draw, BASE64, 64),
            f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n{draw_text(draw, BASE64, 64)}",
        )
    )


def _password(draw: Random) -> str:
    return draw.choice(
        (
            f"hunter{draw.randrange(10, 999)}x",
            mixed(draw, WORD + "!#%^*", 14),
            f"Summer{draw.randrange(2000, 2030)}!",
            f"correct-horse-{draw.randrange(100)}",
            f"P@ssw0rd{draw.randrange(10)}",
        )
    )


def _labelled(draw: Random) -> str:
    password, token = _password(draw), draw_text(draw, HEX, draw.choice((32, 40, 64)))
    random = mixed(draw, URL_SAFE, draw.choice((24, 32, 43)))
    basic = base64.b64encode(f"user:{password}".encode()).decode()
    return draw.choice(
        (
            *(f"Authorization: Bearer {token}", f"Authorization: Bearer {random}"),
            *(f"Authorization: Basic {basic}", f"curl -u ada:{password} https://x.example"),
            *(f"api_key: {token}", f'"apiKey": "{random}"', f"X-API-Key: {random}"),
            *(f"client_secret={random}", f"TWILIO_AUTH_TOKEN={token[:32]}"),
            *(f"password: {password}", f"DB_PASSWORD={password}", f"--password={password}"),
            *(f'"password": "{password}"', f"passwd = '{password}'", f"pwd: {password}"),
            *(f"my password is {password}", f"the passphrase is {password}"),
            f"aws_secret_access_key = {mixed(draw, BASE64, 40)}",
            f"HEROKU_API_KEY={token[:8]}-{token[8:12]}-4{token[12:15]}-a{token[15:18]}-{token[18:30]}",
            *(f"SECRET_KEY = '{random}'", f"access_token={random}", f"refresh_token: {random}"),
        )
    )


def _connecting(draw: Random) -> str:
    password = _password(draw).replace("@", "%40").replace("#", "%23")
    storage = base64.b64encode(draw.randbytes(64)).decode()
    return draw.choice(
        (
            f"postgres://app:{password}@db.internal:5432/orders",
            f"mysql+pymysql://root:{password}@10.0.0.7/shop",
            f"mongodb+srv://app:{password}@cluster0.abcde.mongodb.net/",
            f"redis://:{password}@cache.internal:6379/0",
            f"amqps://svc:{password}@mq.example.com/vhost",
            f"https://ada:{password}@git.example.com/repo.git",
            f"Server=db;Database=shop;User Id=sa;Password={password};",
            f"Driver={{SQL Server}};Uid=sa;Pwd={password};",
            f"DefaultEndpointsProtocol=https;AccountName=acme;AccountKey={storage};",
            f"Endpoint=sb://x.servicebus.windows.net/;SharedAccessKey={storage[:43]}=",
            f"https://acme.blob.core.windows.net/c?sv=2022-11-02&sig={storage[:43]}%3D",
            f"smtp://mailer:{password}@smtp.example.com:587",
        )
    )


def _bare(draw: Random) -> str:
    return draw.choice(
        (
            *(mixed(draw, WORD, 32), mixed(draw, WORD, 40), mixed(draw, BASE64, 40)),
            *(mixed(draw, URL_SAFE, 43), mixed(draw, WORD, 24), mixed(draw, WORD, 64)),
        )
    )
