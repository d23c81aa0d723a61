"""Every setting of the gateway is in the operator's page, with its default, and none besides."""

import re
from pathlib import Path

from gateway.settings import Settings

PAGE = Path(__file__).parents[2] / "docs" / "operations" / "deploy.md"


def rows() -> dict[str, str]:
    section = PAGE.read_text().partition("## Settings of the gateway")[2].partition("\n## ")[0]
    found = {}
    for names, default, _ in re.findall(
        r"^\| (`[^|]+) \| ([^|]+) \| ([^|]+) \|$", section, re.MULTILINE
    ):
        for name, value in zip(names.split(", "), default.split(", "), strict=True):
            found[name.strip("`")] = value
    return found


def test_every_setting_is_listed_and_no_other():
    assert set(rows()) == set(Settings.model_fields)


def test_the_defaults_are_the_real_ones():
    for name, told in rows().items():
        default = Settings.model_fields[name].default
        if default in ((), None):
            assert not re.fullmatch(r"`?\d+.*", told), name
        elif isinstance(default, float):
            assert float(told.removesuffix(" s")) == default, name
        else:
            assert told.strip("`") == str(default), name
