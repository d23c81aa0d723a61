"""What a reply to the method QUERY tells the caches on its way (RFC 10008, RFC 9111).

QUERY is POST's safe twin: HTTP lets a cache answer it, and never a POST. Law: only what this
gateway stored or found is offered to others, and to a shared cache only what is public here.
"""

from gateway.protocol.headers import Fields, without

METHOD = "QUERY"
ACCEPTED = ("Accept-Query", "application/json")
ALLOWED = ("Allow", "OPTIONS, POST, QUERY")

_WHO = "Authorization, api-key, x-api-key, OpenAI-Organization, OpenAI-Project"
"""Request headers that say whose answer it is."""


def query_reply_fields(fields: Fields, lifetime: float | None, *, public: bool) -> Fields:
    """Return a reply's headers with what caches need; ``lifetime`` is None where none may keep it.

    An ``Age`` among the headers counts against the lifetime.
    """
    kept = without(fields, "cache-control", "expires", "pragma", ACCEPTED[0].lower())
    if lifetime is None:
        return (*kept, ("Cache-Control", "no-store"), ACCEPTED)
    control = f"{'public' if public else 'private'}, max-age={max(0, int(lifetime))}"
    vary = () if public else (("Vary", _WHO),)
    return (*kept, ("Cache-Control", control), *vary, ACCEPTED)


def query_refusal(content_type: str) -> tuple[int, str] | None:
    """Return status and message where the content is not of a type that is understood."""
    if not content_type:
        return 400, "A QUERY request needs a Content-Type: application/json."
    if content_type.partition(";")[0].strip().lower() != "application/json":
        return 415, "A QUERY request must be of the Content-Type application/json."
    return None


def allowing_query(fields: Fields) -> Fields:
    """Return the headers of an upstream's 405 with the method that is offered beside its own."""
    allowed = [value for name, value in fields if name.lower() == "allow" and value.strip()]
    rest = without(fields, "allow", ACCEPTED[0].lower())
    return (*rest, ("Allow", ", ".join([*allowed, METHOD])), ACCEPTED)
