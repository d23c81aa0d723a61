"""The schema that editors use says what the parser says, where a schema can say it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from ruamel.yaml import YAML

import policies
from policies.format.load import PolicyError, json_schema, parse_policy

FOLDER = Path(policies.__file__).parent
SHIPPED = [FOLDER / "default.yaml", *sorted((FOLDER / "examples").glob("*.yaml"))]
DEFAULT = "default: {exact: on, semantic: on, freshness: 1h, scope: tenant, pii: bypass}\n"


def schema_accepts(text):
    # Editors and linters read YAML 1.2, where `on` is a word.
    document = YAML(typ="safe", pure=True).load(text)
    return jsonschema.Draft202012Validator(json_schema()).is_valid(document)


def parser_accepts(text):
    try:
        parse_policy(text, "p.yaml")
    except PolicyError:
        return False
    return True


def test_there_are_examples_to_check():
    assert [file.stem for file in SHIPPED] == ["default", "faq", "medical-legal", "prices"]


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_shipped_files_are_valid_for_parser_and_schema(file):
    text = file.read_text()
    assert parser_accepts(text)
    assert schema_accepts(text)


def test_what_the_default_policy_leaves_out_is_as_its_comments_say():
    text = SHIPPED[0].read_text()
    keys = "jitter|grace|coalescing|finish_reasons|max_|priority|tags|prefix|compress|hints"
    written = re.sub(rf"(?m)^  # ((?:{keys})\w*: .*)$", r"  \1", text)
    assert written.count("\n  # ") < text.count("\n  # ") - 8
    assert parse_policy(written, "p.yaml").default == parse_policy(text, "p.yaml").default


def test_check_jsonschema_accepts_the_schema_and_the_shipped_files(tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(json_schema()))
    command = [sys.executable, "-m", "check_jsonschema"]
    for arguments in (["--check-metaschema", schema], ["--schemafile", schema, *SHIPPED]):
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "version: 2\n" + DEFAULT,
        DEFAULT,
        "version: 1\n",
        "version: 1\nunknown: 1\n" + DEFAULT,
        "version: 1\ngeneration: -1\n" + DEFAULT,
        "version: 1\ngeneration: '1'\n" + DEFAULT,
        "version: 1\npii: {regions: [UK]}\n" + DEFAULT,
        "version: 1\npii: {regions: US}\n" + DEFAULT,
        "version: 1\ntenants: {acme: {}}\n" + DEFAULT,
        "version: 1\ntenants: {A: {project: p}}\n" + DEFAULT,
        "version: 1\ntenants: {acme: {api_key_sha256: sk-1}}\n" + DEFAULT,
        "version: 1\nrules: [{match: {}}]\n" + DEFAULT,
        "version: 1\nrules: [{name: a}]\n" + DEFAULT,
        "version: 1\nrules: [{name: default, match: {}}]\n" + DEFAULT,
        "version: 1\nrules: [{name: a, match: {endpoint: /v1/chat}}]\n" + DEFAULT,
        "version: 1\nrules: [{name: a, match: {model: 4}}]\n" + DEFAULT,
        "version: 1\nrules: [{name: a, match: {model: []}}]\n" + DEFAULT,
        "version: 1\nrules: [{name: a, match: {header: {}}}]\n" + DEFAULT,
        "version: 1\nrules: [{name: a, match: {header: {a b: c}}}]\n" + DEFAULT,
        "version: 1\nrules: [{name: a, match: {content: {}}}]\n" + DEFAULT,
        "version: 1\nrules: [{name: a, match: {content: {keywords: ['']}}}]\n" + DEFAULT,
        "version: 1\nrules: [{name: a, match: {content: {system_prompt_sha256: x}}}]\n" + DEFAULT,
        "version: 1\nrules: [{name: a, match: {}, freshness: 600}]\n" + DEFAULT,
        "version: 1\nrules: [{name: a, match: {}, freshness: '1:30'}]\n" + DEFAULT,
        "version: 1\nrules: [{name: a, match: {}, exact: maybe}]\n" + DEFAULT,
        "version: 1\nrules: [{name: a, match: {}, exact: null}]\n" + DEFAULT,
        "version: 1\nrules: [{name: a, match: {}, semantic: {}}]\n" + DEFAULT,
        "version: 1\nrules: [{name: a, match: {}, semantic: {min_similarity: 1.5}}]\n" + DEFAULT,
        "version: 1\nrules: [{name: a, match: {}, semantic: {max_wrong_hits: 1}}]\n" + DEFAULT,
        "version: 1\nrules: [{name: a, match: {}, scope: group}]\n" + DEFAULT,
        "version: 1\nrules: [{name: a, match: {}, pii: off}]\n" + DEFAULT,
        "version: 1\npii: {allow: []}\n" + DEFAULT,
        "version: 1\npii: {allow: [7]}\n" + DEFAULT,
        *(
            f"version: 1\nrules: [{{name: a, match: {{}}, {setting}}}]\n{DEFAULT}"
            for setting in (
                "jitter: 10",
                "jitter: 101%",
                "semantic: {max_wrong_hits: 0%}",
                "semantic: {max_wrong_hits: 20.1%}",
                "semantic: {max_wrong_hits: 0.001%}",
                "grace: on",
                "grace: {}",
                "grace: {if_error: 1}",
                "coalescing: {}",
                "coalescing: {followers: 0}",
                "coalescing: {wait: soon}",
                "finish_reasons: []",
                "finish_reasons: content_filter",
                "finish_reasons: [A]",
                "max_temperature: 3",
                "max_temperature: all",
                "variants: 3",
                "max_prompt_tokens: 0",
                "priority: urgent",
                "tags: [a b]",
                "prefix: {}",
                "prefix: on",
                "compress: {}",
                "compress: {keep: 0.5}",
                "compress: {protect: names}",
                "compress: {documents: {begin: 7, end: b}}",
                "prefix: {tools: by_name}",
                "prefix: {schema_keys: some}",
                "prefix: {volatile: [times]}",
                "prefix: {volatile: {}}",
                "prefix: {documents: []}",
                "prefix: {documents: {begin: 7, end: x}}",
                "prefix: {turns: all}",
                "hints: on",
                "hints: {}",
                "hints: {breakpoints: on}",
                "hints: {field: mark}",
                "hints: {lifetime: 2h}",
                "hints: {min_tokens: 0}",
                "hints: {keys: 65}",
                "hints: {retention: 1h}",
            )
        ),
        "version: 1\ndefault: {exact: on}\n",
    ],
)
def test_what_the_schema_can_express_both_refuse(text):
    assert not parser_accepts(text)
    assert not schema_accepts(text)


@pytest.mark.parametrize(
    "rule",
    [
        "{name: a, match: {}}",
        "{name: a, match: {model: gpt-4*}, exact: yes, semantic: off}",
        "{name: a, match: {model: [a, b]}, exact: true, semantic: {min_similarity: 1}}",
        "{name: a, match: {}, semantic: {max_wrong_hits: 0.01%}}",
        "{name: a, match: {}, semantic: {max_wrong_hits: 20%, min_similarity: 0.5}}",
        "{name: a, match: {header: {X-A: [b, c*]}}, semantic: {enabled: off}}",
        "{name: a, match: {}, jitter: 2.5%, grace: off, coalescing: off, finish_reasons: stop}",
        "{name: a, match: {}, grace: {if_error: off}, coalescing: {wait: 5s}, tags: []}",
        "{name: a, match: {}, grace: 1h, max_temperature: any, max_prompt_tokens: any, tags: a}",
        "{name: a, match: {}, max_temperature: 0.3, max_prompt_tokens: 1, pii: user}",
        "{name: a, match: {content: {keywords: on, regex: [a, b]}}, freshness: 2w, pii: allow}",
    ],
)
def test_what_the_parser_accepts_so_does_the_schema(rule):
    text = f"version: 1\nrules: [{rule}]\n{DEFAULT}"
    assert parser_accepts(text)
    assert schema_accepts(text)


def test_every_key_is_described_with_an_example_that_is_valid():
    schema = json_schema()
    definitions = schema["$defs"]
    keys = 0
    for definition in (schema, *definitions.values()):
        for name, key in definition["properties"].items():
            keys += 1
            assert key["description"], name
            for example in key["examples"]:
                jsonschema.Draft202012Validator({**key, "$defs": definitions}).validate(example)
    assert keys > 25


def test_the_example_of_the_reference_is_valid():
    page = (FOLDER.parent / "docs" / "guides" / "policy.md").read_text()
    example = page.split("```yaml\n")[1].split("```")[0]
    assert example.startswith("version: 1")
    assert parser_accepts(example)
    assert schema_accepts(example)
