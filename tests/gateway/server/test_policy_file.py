"""The policy file: what a request would have to wait for is made when it is read."""

from gateway.prompts.rewrite.volatile import finder
from gateway.server.open.policy_file import PolicyFile
from policies.decision import VolatileKind

POLICY = """\
version: 1
rules:
  - name: builds
    match: {model: "builder"}
    prefix: {volatile: {detect: [uuids], patterns: ['build of a test [0-9]+']}}
default: {exact: on, semantic: off, freshness: 1h, scope: tenant, pii: bypass}
"""


def test_what_finds_volatile_text_is_compiled_when_a_policy_is_read(tmp_path):
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    PolicyFile(file)
    compiled = finder.cache_info().misses
    finder((VolatileKind.UUIDS,), ("build of a test [0-9]+",))
    assert finder.cache_info().misses == compiled
