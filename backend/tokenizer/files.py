"""What stands beside ``tokenizer.json``: special tokens, added tokens and chat templates.

The rules, and the order in which tokens get their ids, are those of transformers' AutoTokenizer.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from backend.models.config import ModelLoadError, read_json
from backend.tokenizer.chat_template import ChatTemplate

_NAMES = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_PROCESSOR = "chat_template.json"
_CONFIG, _MAP, _ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"


def add_tokens(
    backend: tokenizers.Tokenizer, directory: Path, config: Mapping[str, Any]
) -> dict[str, str]:
    """Add to ``backend`` the tokens that the other files name; return those that have names.

    ``config`` is tokenizer_config.json. Names are ``bos_token``, ``image_token`` and so on. Raises
    ModelLoadError naming the file.
    """
    given = {key: value for key, value in config.items() if value not in (None, "")}
    own = {key: value for key, value in given.items() if _is_own(key) and isinstance(value, str)}
    given = {key: value for key, value in given.items() if key not in own}
    listed: dict[int, AddedToken] = {}
    path = directory / _CONFIG
    if "added_tokens_decoder" in given:  # then the older files say nothing
        if not isinstance(decoder := given["added_tokens_decoder"], dict):
            raise ModelLoadError(f"{path}: added_tokens_decoder: expected an object")
        for number, token in decoder.items():
            listed[_number(number, path)] = _token(token, path, special=False)
    else:
        given |= _older_map(directory, given.get("extra_special_tokens"))
    extra = given.get("extra_special_tokens") or given.get("additional_special_tokens") or ()
    if isinstance(extra, dict):
        own, extra = own | extra, ()
    elif not isinstance(extra, list | tuple):
        raise ModelLoadError(f"{path}: extra_special_tokens: expected a list")
    named = {key: given[key] for key in _NAMES if given.get(key)}
    also = {key: given[key] for key in given if _is_own(key) and isinstance(given[key], str | dict)}
    tokens = {key: _token(value, path) for key, value in (named | also | own).items()}
    extras = [_token(value, path) for value in extra]
    if "added_tokens_decoder" not in given:
        special = {token.content for token in (*(tokens[key] for key in named), *extras)}
        for text, number in read_json(directory / _ADDED, optional=True).items():
            is_special = text in special
            token = AddedToken(text, normalized=not is_special, special=is_special)
            listed[_number(number, directory / _ADDED)] = token
        listed |= backend.get_added_tokens_decoder()
    _add(backend, [listed[number] for number in sorted(listed)], tokens.values(), extras)
    return {key: token.content for key, token in tokens.items()}


def _add(
    backend: tokenizers.Tokenizer,
    listed: list[AddedToken],
    named: Iterable[AddedToken],
    extra: Iterable[AddedToken],
) -> None:
    names = {token.content for token in named}
    known = {token.content for token in (*backend.get_added_tokens_decoder().values(), *listed)}
    for token in (*named, *extra):
        if token.content not in known:
            known.add(token.content)
            listed.append(token)
    for token in listed:
        token.special = token.special or token.content in names
    backend.add_tokens(listed)


def _older_map(directory: Path, extra: Any) -> dict[str, Any]:
    """Return what special_tokens_map.json says; its extra tokens follow those of the config."""
    older = read_json(directory / _MAP, optional=True)
    more = older.get("extra_special_tokens")
    if isinstance(more, list) and isinstance(extra, list):
        older["extra_special_tokens"] = [*extra, *(each for each in more if each not in extra)]
    return older


def _is_own(key: str) -> bool:
    """Whether ``key`` names a token that only some models have, such as ``image_token``."""
    return key.endswith("_token") and key not in _NAMES


def _token(value: Any, path: Path, *, special: bool = True) -> AddedToken:
    """Read a token: its text, or an object that may say whether it is ``special``."""
    fields = {"content": value} if isinstance(value, str) else value
    if isinstance(fields, dict) and isinstance(text := fields.get("content"), str) and text:
        flags = {key: fields[key] for key in _FLAGS if isinstance(fields.get(key), bool)}
        return AddedToken(text, **{"special": special} | flags)
    raise ModelLoadError(f"{path}: expected a token, got {value!r:.60}")


def _number(value: Any, path: Path) -> int:
    if isinstance(value, int) or (isinstance(value, str) and value.isdecimal()):
        return int(value)
    raise ModelLoadError(f"{path}: expected the number of a token, got {value!r:.60}")


def load_template(
    directory: Path,
    config: Mapping[str, Any],
    special_tokens: Mapping[str, str],
    override: tuple[str, str] | None = None,
) -> ChatTemplate | None:
    """Compile the model's chat templates. None: there are none.

    ``override``, a path and what it holds, takes their place. Files go before ``config``. Raises
    ModelLoadError naming the file, and the line.
    """
    if override is not None:
        path, source = override
        return _compiled({"default": source}, special_tokens, path)
    try:
        sources = {
            file.name.removesuffix(".jinja"): file.read_text(encoding="utf-8")
            for file in sorted((directory / "additional_chat_templates").glob("*.jinja"))
        }
        file = directory / "chat_template.jinja"
        if file.is_file():
            sources["default"] = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{directory}: a chat template cannot be read: {error}") from error
    if "default" not in sources:
        given = config.get("chat_template")
        if given is None:  # models with a processor may have it there
            given = read_json(directory / _PROCESSOR, optional=True).get("chat_template")
        sources = _of_config(given, directory / _CONFIG) | sources
    return _compiled(sources, special_tokens, str(directory)) if sources else None


def _of_config(given: Any, path: Path) -> dict[str, str]:
    if given is None:
        return {}
    named = {"default": given} if isinstance(given, str) else given
    if isinstance(named, list):
        named = {each.get("name"): each.get("template") for each in named if isinstance(each, dict)}
    if not isinstance(named, dict) or not all(
        isinstance(text, str) for item in named.items() for text in item
    ):
        raise ModelLoadError(f"{path}: chat_template: expected a template, or a list with names")
    return named


def _compiled(
    sources: Mapping[str, str], special_tokens: Mapping[str, str], where: str
) -> ChatTemplate:
    try:
        return ChatTemplate(sources, special_tokens)
    except ValueError as error:
        raise ModelLoadError(f"{where}: {error}") from error
