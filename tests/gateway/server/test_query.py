import pytest

from gateway.server.http.query_method import allowing_query, query_refusal, query_reply_fields

ACCEPT = ("Accept-Query", "application/json")


@pytest.mark.parametrize(
    ("lifetime", "public", "control"),
    [
        (None, True, "no-store"),
        (None, False, "no-store"),
        (60.9, True, "public, max-age=60"),
        (60, False, "private, max-age=60"),
        (-5, False, "private, max-age=0"),
    ],
)
def test_what_is_offered_to_caches_on_the_way(lifetime, public, control):
    theirs = (("cache-control", "public, max-age=9"), ("Expires", "x"), ("X", "y"))
    fields = query_reply_fields(theirs, lifetime, public=public)
    assert fields[0] == ("X", "y")
    assert [value for name, value in fields if name.lower() == "cache-control"] == [control]
    assert ("Vary" in dict(fields)) is control.startswith("private")
    assert fields[-1] == ACCEPT


def test_a_refused_method_is_answered_with_query_beside_the_upstreams_own():
    assert allowing_query((("Allow", "POST"), ("X", "y"))) == (
        ("X", "y"),
        ("Allow", "POST, QUERY"),
        ACCEPT,
    )
    assert allowing_query(()) == (("Allow", "QUERY"), ACCEPT)


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("", 400),
        ("application/jsonx", 415),
        ("text/json", 415),
        ("application/json", None),
        ("Application/JSON ; charset=utf-8", None),
    ],
)
def test_only_json_is_understood(content_type, status):
    refusal = query_refusal(content_type)
    assert (refusal and refusal[0]) == status
