"""What looks like personal data or a secret and is none, and the sentences that it stands in.

Two halves: SEEN, which detectors may be tuned on, and UNSEEN, which they may not.
"""

import base64
import uuid
from random import Random

from stdnum import ean, isbn, luhn

from personal_data.values import BASE64, HEX, LOWER, UPPER, URL_SAFE, WORD, Maker, digits, draw_text

SEEN_SENTENCES = (
    "{}",
    "It is {}.",
    "Please use {} for this, thanks!",
    "I wrote ({}) on the form; what now?",
    "Name: Ada\nData: {}\nCity: London",
    "ref 12, {}, 3 items",
    'They said "{}" and hung up.',
    '{"field": "{}", "n": 1}',
    "- {}\n- second point",
    "| Ada | {} | 12.50 |",
    "Could you check {}? It does not work for me since 2024.",
    "user: hi\nassistant: hello\nuser: {}\nassistant: noted",
    "<td>{}</td><td>7</td>",
    "field='{}'",
    "> {}\n\nWhat does this mean?",
    "Subject: 3 questions\n\n1) {}\n2) something else",
    "1,Ada,{},open\n2,Bob,,closed",
    "Summarise the following text: {} -- end of text.",
    "...{}...",
    "Fwd: [{}]",
)
UNSEEN_SENTENCES = (
    "What does {} stand for? I found it on page 12.",
    "Q: {}?\nA: I do not know.",
    "* **{}**: see below",
    "2. {}\n3. next",
    "value={}&lang=en",
    "My reference says {}; my name is Ada Lovelace, born 1815-12-10.",
    '<p class="c1">{}<br/></p>',
    "print('{}')  # 42",
    "Ada;{};12,50;2024-05-01",
    "/imagine {} --ar 16:9",
    "\u201e{}\u201c stand auf dem Zettel.",
    "\u6211\u7684\u8cc7\u6599\u662f{}\uff0c\u8b1d\u8b1d",
)


def _wrong_card(draw: Random) -> str:
    number = "4" + digits(draw, 14)
    wrong = str((int(luhn.calc_check_digit(number)) + draw.randrange(1, 10)) % 10)
    return number + wrong


def _day(draw: Random) -> str:
    return f"{draw.randrange(1990, 2031)}-{draw.randrange(1, 13):02}-{draw.randrange(1, 29):02}"


def _clock(draw: Random) -> str:
    return f"{draw.randrange(24):02}:{draw.randrange(60):02}:{draw.randrange(60):02}"


def _hex(draw: Random, length: int) -> str:
    return draw_text(draw, HEX, length)


def _isbn(draw: Random) -> str:
    body = "978" + digits(draw, 9)
    thirteen = body + ean.calc_check_digit(body)
    ten = digits(draw, 9)
    ten += isbn._calc_isbn10_check_digit(ten)  # noqa: SLF001 - the library shows no other way
    return draw.choice(
        (
            f"ISBN {thirteen[:3]}-{thirteen[3]}-{thirteen[4:6]}-{thirteen[6:12]}-{thirteen[12]}",
            *(
                f"ISBN {thirteen}",
                thirteen,
                f"ISBN-10: {ten}",
                f"ISBN {ten[0]}-{ten[1:5]}-{ten[5:9]}-{ten[9]}",
            ),
        )
    )


def _version(draw: Random) -> str:
    four = ".".join(str(draw.randrange(200)) for _ in range(4))
    return draw.choice(
        (
            *(f"version {four}", f"v{four}", f"Chrome/{four}", f"build {four}", f"libfoo-{four}"),
            ".".join(str(draw.randrange(20)) for _ in range(5)),
            f"{draw.randrange(20)}.{draw.randrange(20)}.{draw.randrange(20)}-rc.{draw.randrange(9)}",
        )
    )


def _image(draw: Random) -> str:
    data = base64.b64encode(draw.randbytes(draw.choice((300, 700, 2000)))).decode()
    kind = draw.choice(("png", "jpeg", "gif"))
    return draw.choice(
        (f"data:image/{kind};base64,{data}", f"![x](data:image/{kind};base64,{data})")
    )


def _tracking(draw: Random) -> str:
    return draw.choice(
        (
            f"1Z{draw_text(draw, UPPER + '0123456789', 6)}{digits(draw, 10)}",
            f"R{draw.choice(UPPER)}{digits(draw, 9)}DE",
            f"tracking 9400 {' '.join(digits(draw, 4) for _ in range(4))} {digits(draw, 2)}",
            f"JD{digits(draw, 18)}",
            f"tracking number {digits(draw, 12)}",
        )
    )


def _time(draw: Random) -> str:
    seconds = draw.randrange(10**9, 2 * 10**9)
    day, clock = _day(draw), _clock(draw)
    return draw.choice(
        (
            *(f"{day} {clock}", f"{day}T{clock}Z", f"{day}T{clock}.{digits(draw, 6)}+02:00"),
            *(str(seconds), f"{seconds}{digits(draw, 3)}", f"{seconds}{digits(draw, 6)}"),
            *(f"{seconds}.{digits(draw, 6)}", day.replace("-", ""), f"{day.replace('-', '')}T0930"),
            f"[{clock}] {'/'.join(reversed(day.split('-')))}",
            f"{draw.randrange(1900, 2030)}-{draw.randrange(1900, 2030)}",
        )
    )


def _price(draw: Random) -> str:
    return draw.choice(
        (
            f"${draw.randrange(1000)},{digits(draw, 3)},{digits(draw, 3)}.{digits(draw, 2)}",
            f"EUR 1.{digits(draw, 3)}.{digits(draw, 3)},{digits(draw, 2)}",
            f"{draw.randrange(1, 999)}.{digits(draw, 2)} USD",
            f"{draw.randrange(1, 99)} {digits(draw, 3)} {digits(draw, 3)} kr",
            f"0.{digits(draw, 16)}",
        )
    )


def _order(draw: Random) -> str:
    number = str(draw.randrange(10**7, 10**12))
    return draw.choice(
        (
            *(
                f"order #{draw.randrange(10**5, 10**6)}",
                f"order number {number}",
                f"Order-ID: {number}",
            ),
            *(f"invoice {number}", f"INV-{draw.randrange(2000, 2030)}-{digits(draw, 6)}"),
            f"order 11{digits(draw, 1)}-{digits(draw, 7)}-{digits(draw, 7)}",
            *(f"ticket #{number[:8]}", f"customer no. {number[:9]}", f"PO {number[:10]}"),
        )
    )


def _identifier(draw: Random) -> str:
    return draw.choice(
        (
            *(str(uuid.UUID(int=draw.getrandbits(128))), uuid.UUID(int=draw.getrandbits(128)).hex),
            *(_hex(draw, 7), _hex(draw, 12), _hex(draw, 40), _hex(draw, 64), _hex(draw, 32)),
            f"call_{draw_text(draw, WORD, 24)}",
            f"chatcmpl-{draw_text(draw, WORD, 29)}",
            f"create{draw.choice(('Html', 'Json'))}5DocumentFromTemplateV{draw.randrange(10)}",
            f"SKU-{digits(draw, 4)}-{draw_text(draw, UPPER, 2)}{digits(draw, 3)}",
            f"{draw_text(draw, UPPER, 3)}{digits(draw, 6)}",
            f"part {digits(draw, 3)}-{digits(draw, 4)}",
            f"@user{draw.randrange(100)} and pkg@{draw.randrange(10)}.{draw.randrange(10)}.0",
        )
    )


def _code(draw: Random) -> str:
    n = draw.randrange(1000)
    return draw.choice(
        (
            f"std::vector<int> x{{1, 2, {n}}};",
            f"for i in range({n}): print(f'{{i:>{n}}}')",
            "127.0.0.1:8080",
            f"SELECT * FROM t WHERE id = {n} AND at > '{_day(draw)}'",
            f"token_count = len(tokens[{n}:])",
            "password: required, token: expired",
            "api_key = os.environ['OPENAI_API_KEY']",
            "password: str = Field(min_length=12)",
            "Authorization: Bearer <YOUR_TOKEN_HERE>",
            "API_KEY=${SECRET_API_KEY} PASSWORD=********",
            f"max_tokens: {n}, top_k: 40, seed: {n}{n}",
            f"https://example.com/docs/{draw.randrange(2000, 2030)}/getting-started-with-python-3",
            f"#include <sys/socket.h> // line {n}",
            f'{{"id": {n}{n}, "values": [{n}.25, {n}, -{n}.5], "ok": true}}',
            "@dataclass(frozen=True) class A: key: str = 'name'",
        )
    )


def _place(draw: Random) -> str:
    return draw.choice(
        (
            f"{draw.uniform(-90, 90):.6f}, {draw.uniform(-180, 180):.6f}",
            f"{draw.uniform(-90, 90):.4f} {draw.uniform(-180, 180):.4f}",
            f"geo:{draw.uniform(0, 90):.7f},{draw.uniform(0, 180):.7f}",
            f"{draw.randrange(90)}°{draw.randrange(60)}'{draw.randrange(60)}\"N",
        )
    )


def _odd(draw: Random) -> str:
    return draw.choice(
        (
            f"DE{draw.randrange(2, 98):02}" + draw_text(draw, UPPER, 18),
            f"{draw.choice(('000', '666', '987'))}-{digits(draw, 2)}-{digits(draw, 4)}",
            *(f"{digits(draw, 3)} x {digits(draw, 4)} mm", "4111 **** **** 1111", "xxx-xx-1234"),
            ":".join(_hex(draw, 2) for _ in range(6)),
            f"{draw.randrange(10)}-{draw.randrange(10)}, {draw.randrange(10)}-{draw.randrange(10)}",
            " ".join(str(draw.randrange(100)) for _ in range(8)),
            ", ".join(str(draw.randrange(10**5)) for _ in range(8)),
        )
    )


def _log(draw: Random) -> str:
    return (
        f"{_day(draw)} {_clock(draw)},{digits(draw, 3)} INFO worker-{draw.randrange(99)} "
        f"[req {_hex(draw, 8)}] took {draw.randrange(5000)} ms, {draw.randrange(10**6)} bytes"
    )


def _goods(draw: Random) -> str:
    body = digits(draw, 12)
    thirteen = body + ean.calc_check_digit(body)
    return draw.choice(
        (
            *(
                f"EAN {thirteen}",
                thirteen,
                f"UPC {digits(draw, 12)}",
                f"GTIN-14 {digits(draw, 14)}",
            ),
            f"ASIN B0{draw_text(draw, UPPER + '0123456789', 8)}",
            f"lot {digits(draw, 6)}/{digits(draw, 2)}",
            f"article {digits(draw, 3)}.{digits(draw, 3)}.{digits(draw, 2)}",
        )
    )


def _paper(draw: Random) -> str:
    return draw.choice(
        (
            f"doi:10.{digits(draw, 4)}/j.x.20{digits(draw, 2)}.{digits(draw, 2)}.{digits(draw, 3)}",
            *(f"arXiv:{digits(draw, 4)}.{digits(draw, 5)}", f"PMID {digits(draw, 8)}"),
            f"pp. {digits(draw, 3)}-{digits(draw, 3)}, vol. {digits(draw, 2)}({digits(draw, 1)})",
            f"ISSN {digits(draw, 4)}-{digits(draw, 4)}",
            f"RFC {digits(draw, 4)}, section {'.'.join(digits(draw, 4))}",
        )
    )


def _cloud(draw: Random) -> str:
    return draw.choice(
        (
            f"arn:aws:iam::{digits(draw, 12)}:role/reader",
            f"i-0{_hex(draw, 16)}",
            f"web-{_hex(draw, 9)}-{draw_text(draw, LOWER + '0123456789', 5)}",
            f"sha256:{_hex(draw, 64)}",
            f"sha512-{base64.b64encode(draw.randbytes(64)).decode()}",
            f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{draw_text(draw, BASE64, 43)} ada@laptop",
            f'ETag: W/"{_hex(draw, 16)}"',
            f"trace 00-{_hex(draw, 32)}-{_hex(draw, 16)}-01",
            f"https://www.youtube.com/watch?v={draw_text(draw, URL_SAFE, 11)}",
            f"main.{_hex(draw, 8)}.chunk.js:2:{digits(draw, 6)}",
        )
    )


def _figures(draw: Random) -> str:
    return draw.choice(
        (
            *("3.14159265358979323846264338327950288", "6.02214076e23", "0x1F4A9C00"),
            f"{digits(draw, 2)}.{digits(draw, 3)}.{digits(draw, 3)}",
            "; ".join(f"{draw.random():.7f}" for _ in range(6)),
            "\t".join(digits(draw, draw.randrange(2, 7)) for _ in range(7)),
            f"{digits(draw, 4)} + {digits(draw, 4)} = {digits(draw, 5)}",
            f"{draw.randrange(1, 999)} {digits(draw, 3)} {digits(draw, 3)} people",
            f"1920x1080@60, {digits(draw, 4)}x{digits(draw, 4)}",
            f"IMEI 35{digits(draw, 13)}",
            f"ZIP 94105-{digits(draw, 4)}, EIN 12-{digits(draw, 7)}",
            f"routing {digits(draw, 9)}",
        )
    )


def _prose(draw: Random) -> str:
    return draw.choice(
        (
            "the secret to success is patience and 10000hours of work",
            f"a token limit of {draw.randrange(1000, 9999)}tokens applies",
            "How do I change my password on Windows11?",
            "the key takeaway2024 slide",
            f"in {draw.randrange(1900, 2020)}, 20{digits(draw, 2)} and 19{digits(draw, 2)}",
            f"Room {digits(draw, 3)}, floor {digits(draw, 1)}, {digits(draw, 1)}:30-9:45 pm",
            f"flight LH{digits(draw, 4)} at gate B{digits(draw, 2)}",
            "call me maybe 24/7, text me a 10 out of 10",
            f"won {digits(draw, 1)}:{digits(draw, 1)} after {digits(draw, 2)} min, row 12 seat 34",
            "basic auth vs. bearer tokens: which is better in OAuth2?",
            "rank @1 and @2; follow @acme_support",
        )
    )


def _settings(draw: Random) -> str:
    return draw.choice(
        (
            *("secretName: my-tls-secret-2", "key: primary_key_id_2", "tokenizer: cl100k_base"),
            *(
                '"password": {"type": "string", "minLength": 8}',
                "token: ${{ secrets.GITHUB_TOKEN }}",
            ),
            *("access_token: <token>", "password = getpass()", "apiKey: process.env.API_KEY2"),
            *("pwd: /home/ada/src2", "secret: [REDACTED]", "key=value&page=2"),
            "api_key = 'your-api-key-here'",
            "sk-...",
            "export AWS_SECRET_ACCESS_KEY=$AWS_SECRET_ACCESS_KEY_2",
            f"primary key (order_id_{draw.randrange(9)}, customer_id)",
            f"key: user:{draw.randrange(10**6)}:profile",
        )
    )


SEEN: tuple[Maker, ...] = (
    *(_wrong_card, _isbn, _version, _image, _tracking, _time, _price, _order, _identifier),
    *(_code, _place, _odd, _log, _goods, _paper, _cloud, _figures, _prose, _settings),
)


def _match(draw: Random) -> str:
    return draw.choice(
        (
            f"{digits(draw, 1)}-{digits(draw, 1)} (3:{digits(draw, 1)}, 0:2), {digits(draw, 5)} fans",  # noqa: E501 - a line of its own
            f"lap {digits(draw, 2)}: 1:{digits(draw, 2)}.{digits(draw, 3)} +0.{digits(draw, 3)}",
            f"e4 e5 {draw.randrange(1, 40)}. Nf3 Nc6 {draw.randrange(1, 40)}. Bb5 a6 O-O",
            f"lotto {' '.join(str(draw.randrange(1, 50)) for _ in range(6))}",
        )
    )


def _library(draw: Random) -> str:
    return draw.choice(
        (
            f"numpy=={digits(draw, 1)}.{digits(draw, 2)}.{digits(draw, 1)}; python_version < '3.12'",  # noqa: E501 - a line of its own
            f"pip install torch-2.{digits(draw, 1)}.0+cu121-cp311-cp311-linux_x86_64.whl",
            f"image: nginx:1.{digits(draw, 2)}.{digits(draw, 1)}@sha256:{_hex(draw, 64)}",
            f"go.sum h1:{base64.b64encode(draw.randbytes(32)).decode()}",
            f"refs/heads/feature/ABC-{digits(draw, 4)}-add-login-{digits(draw, 2)}",
            f"git diff {_hex(draw, 7)}..{_hex(draw, 7)} 100644",
            f"CVE-20{digits(draw, 2)}-{digits(draw, 5)}, KB{digits(draw, 7)}",
            f"MD5 ({digits(draw, 3)}.iso) = {_hex(draw, 32)}",
        )
    )


def _science(draw: Random) -> str:
    return draw.choice(
        (
            f"CAS {digits(draw, 4)}-{digits(draw, 2)}-{digits(draw, 1)}",
            f"rs{digits(draw, 8)}, chr7:{digits(draw, 8)}-{digits(draw, 8)}",
            f"{draw.uniform(1, 9):.4f}e-{draw.randrange(5, 20)} ± {draw.uniform(0, 1):.4f}",
            f"NCT{digits(draw, 8)}, EudraCT 20{digits(draw, 2)}-{digits(draw, 6)}-{digits(draw, 2)}",  # noqa: E501 - a line of its own
            f"[[{digits(draw, 2)}, {digits(draw, 2)}], [{digits(draw, 3)}, {digits(draw, 4)}]]",
            f"p = 0.{digits(draw, 5)}, n = {digits(draw, 6)}, df = {digits(draw, 2)}",
            "".join(draw.choices("ACGT", k=60)),
        )
    )


def _paperwork(draw: Random) -> str:
    return draw.choice(
        (
            f"VIN {draw_text(draw, 'ABCDEFGHJKLMNPRSTUVWXYZ0123456789', 17)}",
            f"HS code {digits(draw, 4)}.{digits(draw, 2)}.{digits(draw, 4)}",
            f"Form W-{digits(draw, 1)}, line {digits(draw, 2)}, 26 U.S.C. § {digits(draw, 4)}",
            f"D-U-N-S {digits(draw, 2)}-{digits(draw, 3)}-{digits(draw, 4)}",
            f"case 2:{digits(draw, 2)}-cv-{digits(draw, 5)}",
            f"US patent {digits(draw, 2)},{digits(draw, 3)},{digits(draw, 3)}",
            f"meter reading {digits(draw, 6)} on {_day(draw)}",
        )
    )


def _markup(draw: Random) -> str:
    return draw.choice(
        (
            f"#{_hex(draw, 6)}; rgba({digits(draw, 2)}, 20, 30, 0.5); 1.25rem 12px",
            f'<path d="M{digits(draw, 2)}.{digits(draw, 3)} {digits(draw, 2)}.5c-2.2 0-4 1.7-4 4z"/>',  # noqa: E501 - a line of its own
            f"https://cdn.example.com/v2/{_hex(draw, 32)}/app.min.js?v={digits(draw, 10)}",
            f"https://example.com/p/{digits(draw, 9)}?utm_source=x&ref={digits(draw, 4)}",
            f'viewBox="0 0 {digits(draw, 4)} {digits(draw, 4)}"',
            f"&#{digits(draw, 4)};&#{digits(draw, 4)};",
        )
    )


UNSEEN: tuple[Maker, ...] = (*SEEN, _match, _library, _science, _paperwork, _markup)
