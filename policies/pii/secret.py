"""API keys, tokens, private keys and passwords: by prefix, by label, or by looking random."""

import base64
import re
from collections.abc import Iterator
from heapq import merge
from itertools import pairwise, permutations

import re2

from policies.pii.detector import Detector
from policies.pii.identifiers import flat

_KNOWN = re2.compile(
    r"\b(?:"
    r"sk-[A-Za-z0-9_-]{16,}"  # OpenAI, Anthropic and their kind
    r"|(?:gsk|r8|hf)_[A-Za-z0-9]{20,}|(?:xai|pplx)-[A-Za-z0-9]{20,}"  # Groq, Replicate, xAI ...
    r"|[prs]k_(?:live|test)_[A-Za-z0-9]{10,}|whsec_[A-Za-z0-9+/]{16,}|sq0(?:atp|csp)-[\w-]{20,}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"
    r"|gl(?:pat|dt|rt|ptt|oas|cbt|ft|soat|imt|agent)-[\w-]{16,}"  # GitLab
    r"|(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b"  # AWS
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,}"  # Slack
    r"|hooks\.slack\.com/services/T\w+/B\w+/\w+|discord(?:app)?\.com/api/webhooks/[0-9]+/[\w-]+"
    r"|AIza[\w-]{30,}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{20,}|1//0[\w-]{30,}"  # Google
    r"|[A-Za-z0-9_~.-]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,}"  # Azure
    r"|(?:SK|key-)[a-f0-9]{32}\b|[a-f0-9]{32}-us[0-9]{1,2}\b"  # Twilio, Mailgun, Mailchimp
    r"|SG\.[\w-]{16,}\.[\w-]{16,}|[0-9]{8,10}:AA[\w-]{32,}"  # SendGrid, Telegram
    r"|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{30,}|dckr_(?:pat|oat)_[\w-]{20,}"
    r"|dop_v1_[a-f0-9]{32,}|shp(?:at|ss|ca|pa)_[a-fA-F0-9]{20,}|dapi[a-f0-9]{32}"
    r"|(?:lin_api|ntn|secret|figd|glsa|glc|pscale_(?:tkn|pw)|sbp|sntrys|PMAK|NRAK|HRKU)[_-][\w-]{26,}"
    r"|hv[sb]\.[\w-]{20,}|dp\.(?:pt|st|ct|sa|scim|audit)\.[\w.-]{30,}"  # Vault, Doppler
    r"|pat[A-Za-z0-9]{14}\.[a-f0-9]{64}|[\w]{14}\.atlasv1\.[\w-]{40,}"  # Airtable, Terraform
    r"|AGE-SECRET-KEY-1[A-Z0-9]{50,}"
    r"|eyJ[\w-]{8,}\.eyJ[\w-]{8,}(?:\.[\w-]*)?"  # JWT
    r")"
    r"|-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----"
    r"|\b[a-z][a-z0-9+.-]*://[^\s/:@]*:[^\s/@]+@[^\s/]"  # credentials in a URL
    r"|[?&]sig=[\w%+/-]{20,}"  # a signed address gives access to anyone
)
_LABELLED = re2.compile(
    r"(?i)(?:\b|_)(?:bearer|basic|(?:(?:shared ?)?access|api|secret|private|auth|account|client)?"
    r"[ _-]?(?:key|token|secret)|password|passwd|passphrase|pwd)"
    r"(?:[\"']?\s*(?:[:=]|=>)\s*[\"']?(?:bearer\s+|basic\s+)?|\s+)([^\s\"'`,;<>(){}]{8,})"
)
_SPOKEN = re2.compile(
    r"(?i)\b(?:password|passwd|passphrase|passcode|pwd)\s+(?:is|was):?\s+[\"'`]?"
    r"([^\s\"'`,;<>(){}]{6,})"
)
_CURL = re2.compile(r"\s(?:-u|--user)[ =]?[\"']?[^\s:\"'$<]+:([^\s\"'$<:]{4,})")
_BASIC = re2.compile(r"(?i)\bbasic\s+([a-z0-9+/_-]{8,}={0,2})")
_WRITTEN = "[A-Za-z0-9_+/=-]"
_SHORTEST = 20
# A whole token that has letters of both cases and a digit, as every random one: most have not.
_ORDERS = permutations(("[a-z]", "[A-Z]", "[0-9]"))
_MIXED = re2.compile(
    f"{_WRITTEN}*(?:{'|'.join(f'{_WRITTEN}*'.join(each) for each in _ORDERS)}){_WRITTEN}*"
)
_PIECE = re.compile(r"[A-Za-z0-9_-]{20,}")
# Ids that APIs hand out in public: replies, tool calls, files.
_PUBLIC_ID = re.compile(
    r"(?:call|chatcmpl|cmpl|toolu|tooluse|fc|msg|resp|rs|run|thread|asst|file|req|step|vs|batch"
    r"|conv|event|item|ftjob|org|proj|user|id)[_-]"
)
# The standard library's engine is quicker to call on short texts.
_DIGEST = re.compile(r"sha[0-9]{1,3}-|AAAA[A-Z][0-9A-Za-z]{2}zaC1")
"""Beginnings of digests in base64 and of public SSH keys."""
_PLACEHOLDER = re2.compile(
    r"(?i)[$%/~]|\.{1,2}/|your|my[_-]|xxx|(?:process|os|sys|env|self|config|settings|args|request)\."
    r"|env\b|getenv"
)
"""Beginnings of placeholders for a secret, or for its place."""
_IDENTIFIER = re2.compile(r"[A-Za-z]+(?:[_.-][A-Za-z]+)*[_.-]?[0-9]{1,4}")
_PASSWORD = re2.compile(r"(?i)pass|pwd")
_AWS_SECRET = 40
"""Length of a credential that may hold slashes, which else end a token: paths have them."""
_BLOB = 256
"""Characters from which a token is data (an image, a file) and no credential."""

LONG = f"{_WRITTEN}{{{_SHORTEST},}}"
_SIGN_APART = "|".join(
    # Where long repetitions end does not matter here, and to count them makes RE2 slow.
    re.sub(r"\{(?:[89]|[1-9][0-9]),?[0-9]*\}", "{8,}", f"(?:{each.pattern})")
    for each in (_KNOWN, _BASIC, _LABELLED, _SPOKEN, _CURL)
)
_ANY_LABEL_OR_PREFIX = re2.compile(_SIGN_APART)
_DIGIT = re.compile("[0-9]")


def find_secrets(text: str) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each credential."""
    searches = [_random(text)]
    if _ANY_LABEL_OR_PREFIX.search(text.encode()) is not None:
        searches += (_known(text), _basic(text))
        if _DIGIT.search(text) is not None:  # which all others hold
            searches += (_labelled(text), _find_spoken(text))
    return merge(*searches)


SECRETS = Detector(
    "secret", lambda _: find_secrets, (LONG,), lambda text, _: (text,), sign_apart=_SIGN_APART
)


def _known(text: str) -> Iterator[tuple[int, int]]:
    return (match.span() for match in _KNOWN.finditer(text))


def _basic(text: str) -> Iterator[tuple[int, int]]:
    """Find the credentials of HTTP's basic scheme: name and password in base64."""
    for match in _BASIC.finditer(text):
        try:
            pair = base64.b64decode(match.group(1), validate=True)
        except ValueError:
            continue
        if b":" in pair and pair.isascii():
            yield match.span(1)


def _find_spoken(text: str) -> Iterator[tuple[int, int]]:
    for pattern in _SPOKEN, _CURL:
        for match in pattern.finditer(text):
            value = match.group(1).rstrip(".?!:")
            if _is_credential(value):
                yield match.start(1), match.start(1) + len(value)


def _labelled(text: str) -> Iterator[tuple[int, int]]:
    """Find the value behind a label, if it is neither a word nor a plain number."""
    for match in _LABELLED.finditer(text):
        value = match.group(1).rstrip(".?!:]")
        start = match.start(1)
        label = text[match.start() : start].rstrip()
        if _PASSWORD.search(label) is None:
            value = value.split("&")[0]
            # Keys of databases (user:1234:profile) and of settings (primary_key_2).
            if ":" in value or _IDENTIFIER.fullmatch(value) is not None:
                continue
        least = 8 if label[-1:] in ":=\"'>" else 16
        if len(value) >= least and _is_credential(value):
            yield start, start + len(value)


def _is_credential(value: str) -> bool:
    """Tell whether a labelled value is neither a word, nor a number, nor a placeholder."""
    return (
        any(map(str.isdigit, value))
        and any(map(str.isalpha, value))
        and _PLACEHOLDER.match(value) is None
    )


def _random(text: str) -> Iterator[tuple[int, int]]:
    for found in _MIXED.finditer(flat(text)):
        start, end = found.span()
        if end - start < _SHORTEST:
            continue
        token = text[start:end]
        # h1: is how Go marks a digest.
        if _DIGEST.match(token) is not None or text[max(0, start - 3) : start] == "h1:":
            continue
        if end - start == _AWS_SECRET and looks_random(token):
            yield start, end
        elif end - start <= _BLOB:
            for piece in _PIECE.finditer(token):
                if looks_random(piece.group()):
                    yield start + piece.start(), start + piece.end()


def looks_random(token: str) -> bool:
    """Tell a random mix of cases and digits from identifiers, slugs, UUIDs and hex digests.

    Random letters and digits change class at six of ten steps; names in CamelCase at one in
    three, hex and UUIDs have one case only.
    """
    if token.islower() or token.isupper() or _PUBLIC_ID.match(token) is not None:
        return False
    classes = [
        "d" if character.isdigit() else "u" if character.isupper() else "l"
        for character in token
        if character.isalnum()
    ]
    if len(classes) < 18 or {"d", "u", "l"} != set(classes) or classes.count("d") < 2:
        return False
    changes = sum(one != other for one, other in pairwise(classes))
    return changes >= 0.38 * (len(classes) - 1)
