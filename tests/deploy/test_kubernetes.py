"""deploy/helm and deploy/kubernetes: what the API server, gateway and engine would accept.

No cluster is started. Helm renders through helm-python-sdk, its own library; kubernetes-validate
has the API's schemas. Resources of KEDA and of the Prometheus operator have no schema here.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from parsed_command import parsed, parsed_backend

from gateway.cli.process.child_process import STOP_SECONDS
from gateway.settings import SECRETS, Settings, load_settings

ROOT = Path(__file__).parents[2]
HELM = ROOT / "deploy" / "helm"
CHART = HELM / "refrain"
PLAIN = ROOT / "deploy" / "kubernetes" / "refrain.yaml"
EVERYTHING: dict[str, Any] = {
    "gateway": {
        "autoscaling": {"enabled": True},
        "policy": "version: 1\ndefault: {semantic: off}\n",
        "keysSecretName": "refrain-keys",
        "settings": {"workers": 2},
    },
    "engine": {
        "autoscaling": {"enabled": True},
        "secretName": "hugging-face",
        "args": ["--kv-dtype=fp8"],
        "nodeSelector": {"gpu": "h100"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    },
    "serviceMonitor": {"enabled": True},
    "networkPolicy": {"metricsFrom": [{"namespaceSelector": {}}]},
}
ON_ONE_MACHINE: dict[str, Any] = {
    "redis": {"url": ""},
    "qdrant": {"url": ""},
    "gateway": {"replicas": 1, "settings": {"upstream": ["http://vllm:8000/v1"]}},
    "engine": {"enabled": False},
}
WITHOUT_SCHEMA = {"ScaledObject", "ServiceMonitor"}


def by_kind(text: str) -> dict[tuple[str, str], dict[str, Any]]:
    found = {}
    for each in yaml.safe_load_all(text):
        if each is not None:
            found[each["kind"], each["metadata"]["name"].removeprefix("refrain-")] = each
    return found


def rendered(values: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    helm = pytest.importorskip("helm_python", reason="helm-python-sdk is not installed")
    with helm.Chart.load(CHART) as chart:
        texts = chart.render(values, name="refrain", namespace="llm")
    texts.pop("refrain/templates/NOTES.txt", None)
    return by_kind("\n---\n".join(texts.values()))


@pytest.fixture(params=["plain", "everything", "on one machine"])
def manifests(request: pytest.FixtureRequest) -> dict[tuple[str, str], dict[str, Any]]:
    if request.param == "plain":
        return by_kind(PLAIN.read_text())
    return rendered(EVERYTHING if request.param == "everything" else ON_ONE_MACHINE)


def pods(manifests: dict[tuple[str, str], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    kinds = ("Deployment", "StatefulSet")
    return {
        name: each["spec"]["template"]["spec"]
        for (kind, name), each in manifests.items()
        if kind in kinds
    }


def settings_of(manifests: dict[tuple[str, str], dict[str, Any]], folder: Path) -> Settings:
    """Settings as the gateway of the pod reads them."""
    file = folder / "refrain.yaml"
    file.write_text(manifests["ConfigMap", "gateway"]["data"]["refrain.yaml"])
    (container,) = pods(manifests)["gateway"]["containers"]
    options = parsed(["serve", *container["args"]])
    assert options.config.name == file.name
    return load_settings({}, {}, file)


def test_the_gateway_accepts_its_settings(manifests, tmp_path):
    settings = settings_of(manifests, tmp_path)
    several = ("Deployment", "gateway") in manifests and settings.store != "disk"
    assert settings.store == ("redis://redis:6379/0" if several else "disk")
    assert settings.vectors == ("http://qdrant:6333" if several else "faiss")
    assert settings.all_upstreams
    replicas = manifests["Deployment", "gateway"]["spec"].get("replicas")
    assert several or replicas == 1


def test_the_engine_accepts_its_flags_and_the_gateway_finds_each_replica(manifests, tmp_path):
    settings = settings_of(manifests, tmp_path)
    if ("StatefulSet", "engine") not in manifests:
        assert settings.upstream == ("http://vllm:8000/v1",)
        return
    engine = manifests["StatefulSet", "engine"]
    (container,) = pods(manifests)["engine"]["containers"]
    flags = parsed_backend(container["args"])
    assert flags.device == "cuda"
    service = manifests["Service", "engine"]
    assert engine["spec"]["serviceName"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    scaled = manifests.get(("ScaledObject", "engine"))
    number = scaled["spec"]["maxReplicaCount"] if scaled else engine["spec"]["replicas"]
    name = engine["metadata"]["name"]
    assert [upstream.url for upstream in settings.upstreams] == [
        f"http://{name}-{ordinal}.{name}:8000/v1" for ordinal in range(number)
    ]
    # One more replica must not drop the cache, and holders of gateway keys share no KV.
    assert settings.upstream_identity == "engine"
    assert settings.upstream_cache_salt


def test_a_pod_is_killed_only_after_its_drain(manifests, tmp_path):
    settings = settings_of(manifests, tmp_path)
    grace = pods(manifests)["gateway"]["terminationGracePeriodSeconds"]
    assert grace > settings.drain_delay + settings.drain_timeout + 2 * STOP_SECONDS
    if "engine" in pods(manifests):
        engine = pods(manifests)["engine"]
        flags = parsed_backend(engine["containers"][0]["args"])
        assert engine["terminationGracePeriodSeconds"] > flags.drain_delay + flags.drain_timeout


def test_ready_pods_leave_the_service_before_their_port_closes(manifests, tmp_path):
    settings = settings_of(manifests, tmp_path)
    (container,) = pods(manifests)["gateway"]["containers"]
    probe = container["readinessProbe"]
    assert probe["httpGet"]["path"] == "/readyz"
    assert settings.drain_delay > probe["periodSeconds"] * probe["failureThreshold"]


def test_every_container_is_confined_and_checked(manifests):
    for pod in pods(manifests).values():
        assert pod["enableServiceLinks"] is False, "a Service would set REFRAIN_PORT"
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 10001
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
            assert {"/data", "/tmp"} <= {each["mountPath"] for each in container["volumeMounts"]}
            assert container["resources"]["requests"]["cpu"]


def test_gateways_on_one_redis_do_not_start_without_the_common_secret():
    (container,) = pods(by_kind(PLAIN.read_text()))["gateway"]["containers"]
    (source,) = container["envFrom"]
    assert source["secretRef"] == {"name": "refrain", "optional": False}
    (variable,) = container["env"]
    assert variable["name"] == "REFRAIN_SECRET"
    assert variable["valueFrom"]["secretKeyRef"] == {"name": "refrain", "key": "REFRAIN_SECRET"}
    assert "secret" in SECRETS


def test_no_secret_is_in_the_manifests(manifests):
    assert {kind for kind, _ in manifests} & {"Secret"} == set()


def test_only_the_gateway_reaches_the_engine():
    policy = by_kind(PLAIN.read_text())["NetworkPolicy", "engine"]["spec"]
    component = "app.kubernetes.io/component"
    assert policy["podSelector"]["matchLabels"][component] == "engine"
    ((peer,),) = [rule["from"] for rule in policy["ingress"]]
    assert peer["podSelector"]["matchLabels"][component] == "gateway"


def test_plain_manifests_are_those_of_the_chart(monkeypatch):
    pytest.importorskip("helm_python", reason="helm-python-sdk is not installed")
    specification = importlib.util.spec_from_file_location("manifests", HELM / "manifests.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, "manifests", module)
    specification.loader.exec_module(module)
    assert module.manifests() == PLAIN.read_text(), "run `make manifests`"


def test_the_api_server_would_accept_the_manifests(manifests):
    schemas = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed"
    )
    checked = set()
    for (kind, _), manifest in manifests.items():
        if kind in WITHOUT_SCHEMA:
            with pytest.raises(schemas.SchemaNotFoundError):
                schemas.validate(manifest, "1.34", strict=True)
        else:
            schemas.validate(manifest, "1.34", strict=True)
            checked.add(kind)
    assert {"Deployment", "Service", "ConfigMap", "PodDisruptionBudget"} <= checked


def test_helm_lint_finds_nothing():
    helm = pytest.importorskip("helm_python", reason="helm-python-sdk is not installed")
    for values in ({}, EVERYTHING, ON_ONE_MACHINE):
        found = helm.lint(CHART, values, strict=True)
        assert found["errors"] == []
        # Below a warning: a chart without an icon.
        assert [each for each in found["messages"] if each["severity"] > 1] == []


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"engine": {"enabled": False}}, "needs upstream or upstreams"),
        ({"redis": {"url": ""}}, "need redis.url"),
        ({"gateway": {"settings": {"upstream": ["http://a/v1"]}}}, "set engine.enabled to false"),
        ({"gateway": {"replica": 2}}, "replica"),
        ({"gateway": {"settings": {"drain_delay": 3}}}, "drain_delay"),
        ({"redis": {"url": "redis://:password@redis"}}, "redis"),
        ({"engine": {"autoscaling": {"kvUse": 80}}}, "kvUse"),
        ({"engine": {"autoscaling": {"enabled": True}}}, "networkPolicy.metricsFrom"),
    ],
)
def test_values_that_cannot_work_are_refused(values, said):
    helm = pytest.importorskip("helm_python", reason="helm-python-sdk is not installed")
    with helm.Chart.load(CHART) as chart, pytest.raises(helm.HelmError, match=said):
        chart.render(values, name="refrain", namespace="llm")


def test_autoscaling_asks_for_metrics_that_exist():
    keys = rendered(EVERYTHING)
    queries = [
        each["metadata"]["query"] for each in keys["ScaledObject", "engine"]["spec"]["triggers"]
    ]
    documented = (ROOT / "docs" / "operations" / "observability.md").read_text()
    for query in queries:
        metric = query.removeprefix("sum(").partition("{")[0]
        assert f"| `{metric}` | gauge |" in documented
        assert '{namespace="llm",pod=~"refrain-engine-[0-9]+"}' in query
