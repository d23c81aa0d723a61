"""The YAML of a policy, version 1: what each key beside the settings holds, means and looks like.

One definition serves reading (pydantic) and editors (``json_schema``). Every mapping refuses keys
that it does not know. What rules set stands in the tables of ``policies.format.keys``.
"""

from functools import partial
from typing import Annotated, Any

from pydantic import Field
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from policies.format.keys.rule import SETTINGS
from policies.format.shorthand import FilledSpec, Listed, MappingSpec
from policies.format.values import (
    CONTACT,
    DIGEST,
    ENDPOINT,
    GENERATION,
    HEADER_NAME,
    NAME,
    REGEX,
    REGION,
    RULE_NAME,
    TENANT_NAME,
    TEXT,
    VERSION,
)

DEFAULT_REGIONS = ("US", "GB")

Texts = Annotated[list[str], Listed(TEXT)]
Digests = Annotated[list[str], Listed(DIGEST)]


class ContentSpec(FilledSpec):
    """Conditions on what is asked. All must hold."""

    keywords: Texts | None = Field(
        default=None,
        description=(
            "Whole words, or phrases, in the last user message; any one, in any case of letters."
        ),
        examples=[["price", "how much", "in stock"]],
    )
    regex: Annotated[list[str], Listed(REGEX)] | None = Field(
        default=None,
        description="RE2 patterns, any one found in the last user message. (?i) ignores case.",
        examples=[r"(?i)\border\s+#?\d+"],
    )
    system_prompt_sha256: Digests | None = Field(
        default=None,
        description=(
            "SHA-256 of the system and developer messages (several joined by line feeds), any one."
        ),
        examples=["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"],
    )


class MatchSpec(MappingSpec):
    """Conditions on a request. All must hold; of a list, any one. None: every request."""

    endpoint: Annotated[list[str], Listed(ENDPOINT)] | None = Field(
        default=None, description="Path of the request.", examples=["/v1/chat/completions"]
    )
    model: Texts | None = Field(
        default=None,
        description="The request's model; * stands for any characters, ? for one.",
        examples=["gpt-4*", ["refrain-demo", "qwen*"]],
    )
    tenant: Annotated[list[str], Listed(NAME)] | None = Field(
        default=None,
        description="A name from tenants, or anonymous: no API key, organization or project.",
        examples=["acme", "anonymous"],
    )
    header: Annotated[dict[Annotated[str, HEADER_NAME], Texts], Field(min_length=1)] | None = Field(
        default=None,
        description="Request headers by name, in any case, with a glob of the value.",
        examples=[{"x-app": "storefront-*"}],
    )
    content: ContentSpec | None = Field(
        default=None,
        description="What is asked.",
        examples=[{"keywords": ["price", "discount"]}],
    )

    def wanted(self) -> dict[str, list[str]]:
        """Return the values of each condition by its place, the cheap conditions first."""
        found = {"endpoint": self.endpoint, "model": self.model, "tenant": self.tenant}
        found |= {f"header.{name}": globs for name, globs in (self.header or {}).items()}
        for name in ("system_prompt_sha256", "keywords", "regex"):
            found[f"content.{name}"] = getattr(self.content, name, None)
        return {key: values for key, values in found.items() if values is not None}


@SETTINGS.extend
class RuleSpec(MappingSpec):
    """A rule: the settings of the requests that it matches."""

    name: Annotated[str, RULE_NAME] = Field(
        description="Unique; shown in metrics, logs and traces.", examples=["prices"]
    )
    match: MatchSpec = Field(
        description="Which requests. The first rule that matches decides.",
        examples=[{"model": "gpt-4*", "content": {"keywords": ["price"]}}],
    )


@partial(SETTINGS.extend, required=True)
class DefaultSpec(MappingSpec):
    """Settings of requests that no rule matches, and of what a rule leaves out."""


class TenantSpec(FilledSpec):
    """Who a tenant is. All keys must hold; of a list, any one."""

    api_key_sha256: Digests | None = Field(
        default=None,
        description="SHA-256 of the API key: printf %s KEY | sha256sum",
        examples=["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"],
    )
    organization: Texts | None = Field(
        default=None, description="The OpenAI-Organization header.", examples=["org-acme"]
    )
    project: Texts | None = Field(
        default=None, description="The OpenAI-Project header.", examples=["proj-support"]
    )


class PiiSpec(MappingSpec):
    """The scan for personal data."""

    regions: list[Annotated[str, REGION]] = Field(
        default=list(DEFAULT_REGIONS),
        description=(
            "Regions (ISO 3166) whose phone numbers are known when written without country code. "
            "Each costs time."
        ),
        examples=[["US", "GB"]],
    )
    allow: Annotated[list[str], Listed(CONTACT)] = Field(
        default=[],
        description=(
            "Your own public contacts, which are no personal data: email addresses (* stands for "
            "some of one), phone numbers in international form, any other text."
        ),
        examples=[["*@acme.example", "+1 800 555 0100"]],
    )


class PolicySpec(MappingSpec):
    """What Refrain may cache, for whom and for how long."""

    version: Annotated[int, VERSION] = Field(description="Version of this format.", examples=[1])
    generation: Annotated[int, GENERATION] = Field(
        default=0,
        description="Raise it to drop everything that is stored.",
        examples=[2],
    )
    pii: PiiSpec = Field(
        default=PiiSpec(),
        description="What the scan for personal data knows.",
        examples=[{"regions": ["US", "GB"], "allow": "*@acme.example"}],
    )
    tenants: dict[Annotated[str, TENANT_NAME], TenantSpec] = Field(
        default={},
        description="Names of tenants, for rules to match.",
        examples=[{"acme": {"organization": "org-acme"}}],
    )
    rules: list[RuleSpec] = Field(
        default=[],
        description="In order; the first that matches decides.",
        examples=[[{"name": "no-beta", "match": {"model": "*-beta"}, "exact": "off"}]],
    )
    default: DefaultSpec = Field(
        description="Settings of all other requests, and of what a rule leaves out.",
        examples=[
            {
                "exact": "on",
                "semantic": "on",
                "freshness": "1h",
                "scope": "tenant",
                "pii": "bypass",
            }
        ],
    )


class _EditorSchema(GenerateJsonSchema):
    """An absent key is absent: no null in its place, and no default of null to suggest."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        if schema.get("default") is None:
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        # Without this a key that breaks its pattern would be let through.
        return {**super().dict_schema(schema), "additionalProperties": False}


def json_schema() -> dict[str, Any]:
    """Return the format as JSON schema, draft 2020-12, for editors and linters."""
    schema = PolicySpec.model_json_schema(schema_generator=_EditorSchema)
    return {"$schema": GenerateJsonSchema.schema_dialect, **schema, "title": "Refrain policy"}
