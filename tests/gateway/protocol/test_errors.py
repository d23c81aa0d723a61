from gateway.protocol.errors import ClientError, RequestError, UpstreamError, error_body
from gateway.protocol.reasons import Reason


def test_an_error_has_all_four_keys():
    assert error_body("m", "k") == {
        "error": {"message": "m", "type": "k", "param": None, "code": None}
    }


def test_a_client_error_is_an_invalid_request():
    error = ClientError(400, "m", param="p", code="c")
    assert isinstance(error, RequestError)
    assert str(error) == "m"
    assert error.body() == error_body("m", "invalid_request_error", "p", "c")


def test_an_upstream_error_carries_the_word_of_header_and_metric():
    error = UpstreamError(502, "m", Reason.UPSTREAM_UNREACHABLE)
    assert error.status == 502
    assert error.reason is Reason.UPSTREAM_UNREACHABLE
    assert error.body() == error_body("m", "upstream_error", None, "upstream-unreachable")
