"""Forms: fields are found however bytes are cut; what readers take differently is broken."""

import pytest

from gateway.protocol.http.form import Form, boundary_of

FILE = b"\r\n--xy\r\n--xy\r\n\r\n" * 3


def part(head: bytes, value: bytes = b"m") -> bytes:
    return b"--xyz\r\n" + head + b"\r\n\r\n" + value + b"\r\n"


def field(name: bytes, value: bytes, more: bytes = b"") -> bytes:
    return part(b'Content-Disposition: form-data; name="' + name + b'"' + more, value)


WHOLE = (
    field(b"file", FILE, b'; filename="a.mp3"\r\nContent-Type: audio/mpeg')
    + field(b"empty", b"")
    + field(b"model", b"whisper-1")
    + b"--xyz--\r\n"
)


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64, len(WHOLE)])
def test_the_fields_of_a_form_are_found(step):
    form = Form(b"xyz")
    for at in range(0, len(WHOLE), step):
        form.feed(WHOLE[at : at + step])
    assert (form.is_over, form.is_broken) == (True, False)
    assert [(one.name, one.is_file, form.value(one)) for one in form.parts] == [
        ("file", True, FILE.decode()),
        ("empty", False, ""),
        ("model", False, "whisper-1"),
    ]


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Disposition: form-data; name=model",  # as .NET has it
        b'content-disposition:form-data;name="model"',
        b"Content-Disposition: form-data; name=model; filename=a; filename*=utf-8''a",
        b'Content-Transfer-Encoding: 8bit\r\nContent-Disposition: form-data; name="model"',
    ],
)
def test_what_clients_send_is_read(head):
    form = Form(b"xyz")
    form.feed(part(head) + b"--xyz--")
    assert ([one.name for one in form.parts], form.is_over) == (["model"], True)


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n" + WHOLE,
        b"preamble" + WHOLE,
        WHOLE.replace(b"\r\n", b"\n"),
        b"--xyzz\r\n" + WHOLE[7:],
        part(b'Content-Disposition: form-data; name="a"; name="model"'),
        part(b"Content-Disposition: form-data; name*=utf-8''model"),
        part(b'Content-Disposition: form-data; name="m\\odel"'),
        part(b'Content-Disposition: form-data; name="a" name="model"'),
        part(b'Content-Disposition: attachment; name="model"'),
        part(
            b'Content-Disposition: form-data; name="a"\r\nContent-Disposition: form-data; name="b"'
        ),
        part(b'X: 1\r\n Content-Disposition: form-data; name="a"'),
        part(b'Content-Disposition : form-data; name="a"'),
        part(b"Content-Type: text/plain"),
        part(b'Content-Disposition: form-data; name="a"\r\nContent-Transfer-Encoding: base64'),
        part(b"X: " + b"a" * 9_000),
        field(b"a", b"") * 1_001,
    ],
)
def test_what_readers_take_differently_is_broken(data):
    form = Form(b"xyz")
    form.feed(data + b"--xyz--\r\n")
    assert form.is_broken or not form.is_over


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        ("multipart/form-data; boundary=abc", b"abc"),
        ('Multipart/Form-Data; charset=utf-8; Boundary="a b"', b"a b"),
        ("multipart/form-data; boundary=a; boundary=b", None),
        ("multipart/form-data; boundary=a; boundary*=utf-8''b", None),
        ("multipart/form-data", None),
        ("multipart/mixed; boundary=a", None),
        ("multipart/form-data; boundary=" + "a" * 71, None),
    ],
)
def test_the_boundary_of_a_form(content_type, boundary):
    assert boundary_of(content_type) == boundary
