"""Ready means that what the policy in force needs is there."""

import pytest

POLICY = """
version: 1
generation: {}
default: {{exact: on, semantic: {}, compress: {}, freshness: 1h, scope: tenant, pii: bypass}}
"""


@pytest.mark.parametrize("need", [("on", "off"), ("off", "on")])
async def test_an_encoder_that_no_rule_needs_is_not_waited_for(start_gateway, tmp_path, need):
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY.format(0, "off", "off"))
    gateway = await start_gateway(policy=policy, semantic_socket=tmp_path / "nobody.sock")
    assert (await gateway.get("/readyz")).status == 200

    policy.write_text(POLICY.format(1, *need))
    while (reply := await gateway.get("/readyz")).json["policy"]["generation"] == 0:
        pass
    assert reply.status == 503
    assert reply.json["reasons"] == ["encoder: unavailable"]
