"""Which rules no request can reach, because an earlier one takes all of theirs."""

from collections.abc import Iterator, Sequence

from policies.schema import ContentSpec, MatchSpec


def unreachable(matches: Sequence[MatchSpec]) -> Iterator[tuple[int, int]]:
    """Yield (rule, earlier rule that takes its requests) as indexes.

    What is reported is certain; not every overlap is found (globs and patterns are compared as
    text).
    """
    for later, match in enumerate(matches):
        for earlier in range(later):
            if _covers(matches[earlier], match):
                yield later, earlier
                break


def _covers(general: MatchSpec, special: MatchSpec) -> bool:
    """Tell whether every request that ``special`` matches is matched by ``general``."""
    headers, special_headers = general.header or {}, special.header or {}
    content, special_content = general.content or ContentSpec.model_construct(), special.content
    return (
        _admits(general.endpoint, special.endpoint)
        and ("*" in (general.model or ()) or _admits(general.model, special.model))
        and _admits(general.tenant, special.tenant)
        and all(
            name in special_headers and ("*" in globs or _admits(globs, special_headers[name]))
            for name, globs in headers.items()
        )
        and all(
            _admits(getattr(content, name), getattr(special_content, name, None))
            for name in ContentSpec.model_fields
        )
    )


def _admits(general: Sequence[str] | None, special: Sequence[str] | None) -> bool:
    """Tell whether any value that ``special`` lets through passes ``general``; None is all."""
    if general is None:
        return True
    return special is not None and set(special) <= set(general)
