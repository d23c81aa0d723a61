"""compose.yaml: valid by the specification's schema, and true to the programs it starts."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from parsed_command import parsed, parsed_backend

from gateway.settings import ENVIRONMENT_PREFIX, SECRETS, Settings, load_settings

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
DEPLOY = (ROOT / "docs" / "operations" / "deploy.md").read_text()
ENGINES = ("backend", "backend-gpu")
OURS = ("gateway", *ENGINES)
STORES = ("redis", "qdrant")
ALWAYS = {"gateway", *STORES}
MONITORING = ("prometheus", "grafana", "otel-collector")


def interpolate(text: str, **environment: str) -> str:
    """Fill in ``${NAME:-default}`` as Compose does."""
    return re.sub(
        r"\$\{(\w+)(?::-([^}]*))?\}", lambda m: environment.get(m[1]) or (m[2] or ""), text
    )


def command(service: str, **environment: str) -> list[str]:
    return [interpolate(argument, **environment) for argument in SERVICES[service]["command"]]


def active(profile: str) -> set[str]:
    return {
        name for name, service in SERVICES.items() if profile in service.get("profiles", [profile])
    }


def default_profile() -> str:
    lines = (ROOT / ".env").read_text().splitlines()
    (chosen,) = [line for line in lines if line.startswith("COMPOSE_PROFILES=")]
    return chosen.partition("=")[2]


def validate(file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", file],
        capture_output=True,
        text=True,
        check=False,
    )


def test_compose_yaml_is_valid_by_the_compose_specification():
    done = validate(ROOT / "compose.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_schema_check_refuses_what_is_not_compose(tmp_path):
    broken = tmp_path / "compose.yaml"
    broken.write_text("services: {gateway: {imag: refrain}}\n")
    done = validate(broken)
    assert done.returncode == 1
    assert "imag" in done.stdout


def test_cpu_is_the_default_profile():
    assert default_profile() == "cpu"
    assert active("cpu") == {*ALWAYS, "backend"}


def test_gpu_starts_the_gpu_engine_and_not_the_other():
    assert active("gpu") == {*ALWAYS, "backend-gpu"}


def test_monitoring_is_a_profile_of_its_own():
    assert active("monitoring") == {*ALWAYS, *MONITORING}


def test_only_the_gpu_engine_reserves_a_gpu():
    reserving = {name for name, service in SERVICES.items() if "deploy" in service}
    assert reserving == {"backend-gpu"}
    (device,) = SERVICES["backend-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}


def test_the_gateway_waits_for_the_stores_and_the_engine_of_the_chosen_profile():
    waits = SERVICES["gateway"]["depends_on"]
    assert set(waits) == {*ENGINES, *STORES}
    for engine in ENGINES:
        assert waits[engine] == {"condition": "service_healthy", "required": False}
    for store in STORES:
        assert waits[store] == {"condition": "service_healthy"}


def test_both_engines_are_found_under_the_name_that_the_gateway_asks():
    (upstream,) = [flag for flag in command("gateway") if flag.startswith("--upstream")]
    assert upstream == "--upstream=http://backend:8000/v1"
    assert "backend" in SERVICES["backend-gpu"]["networks"]["default"]["aliases"]


@pytest.mark.parametrize("service", OURS)
def test_every_service_has_a_health_check_of_its_own_port(service):
    port = 8080 if service == "gateway" else 8000
    check = SERVICES[service]["healthcheck"]
    assert check["test"][-1] == f"http://127.0.0.1:{port}/healthz"
    assert check["start_period"]


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_is_confined(service):
    settings = SERVICES[service]
    assert settings["read_only"] is True
    assert settings["cap_drop"] == ["ALL"]
    assert settings["security_opt"] == ["no-new-privileges:true"]
    assert settings["tmpfs"][0].startswith("/tmp")
    assert settings["init"] is True
    assert settings["restart"] == "unless-stopped"


def test_the_reload_of_the_docs_leaves_the_restart_policy_in_force():
    start = "    docker compose exec gateway sh"
    [line] = [line for line in DEPLOY.splitlines() if line.startswith(start)]
    assert shlex.split(line)[-3:] == ["sh", "-c", "kill -HUP 1"]
    # Docker starts no container again that got a signal by its own command.
    assert "    docker compose kill" not in DEPLOY


@pytest.mark.parametrize("service", sorted({*SERVICES} - {*OURS}))
def test_images_of_others_are_pinned_and_checked(service):
    settings = SERVICES[service]
    assert re.search(r":v?\d+\.\d+[\w.-]*$", settings["image"])
    assert settings["image"].endswith("-unprivileged") or int(settings["user"].split(":")[0]) > 0
    # The collector's image has nothing that could ask.
    assert ("healthcheck" in settings) == (service != "otel-collector")


def test_redis_keeps_what_it_holds_over_a_restart():
    assert SERVICES["redis"]["healthcheck"]["test"] == ["CMD", "redis-cli", "ping"]
    arguments = command("redis")
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert options == {
        "--save": "",
        "--appendonly": "yes",
        "--maxmemory": "2gb",
        "--maxmemory-policy": "allkeys-lru",
    }
    assert SERVICES["redis"]["volumes"] == ["redis:/data"]


def test_policies_are_mounted_as_a_folder_and_read_only():
    (mount,) = [v for v in SERVICES["gateway"]["volumes"] if isinstance(v, dict)]
    assert mount["type"] == "bind"
    assert mount["read_only"] is True
    assert (ROOT / mount["source"]).is_dir()
    (policy,) = [flag for flag in command("gateway") if flag.startswith("--policy")]
    folder, _, name = policy.removeprefix("--policy=").rpartition("/")
    assert folder == mount["target"]
    assert (ROOT / mount["source"] / name).is_file()


def test_data_and_models_are_in_named_volumes():
    kept = {"data", "models", "vectors", "metrics", "grafana", "redis"}
    assert set(COMPOSE["volumes"]) == kept
    assert SERVICES["qdrant"]["volumes"] == ["vectors:/qdrant/storage"]
    assert "data:/data" in SERVICES["gateway"]["volumes"]
    for engine in ENGINES:
        assert SERVICES[engine]["volumes"] == ["models:/data"]


def test_what_is_published_is_on_loopback_by_default():
    published = {
        name: [interpolate(port) for port in service["ports"]]
        for name, service in SERVICES.items()
        if "ports" in service
    }
    assert published == {
        "gateway": ["127.0.0.1:8080:8080"],
        "prometheus": ["127.0.0.1:9090:9090"],
        "grafana": ["127.0.0.1:3000:3000"],
    }
    (port,) = SERVICES["gateway"]["ports"]
    assert interpolate(port, REFRAIN_PUBLISH="0.0.0.0:80") == "0.0.0.0:80:8080"


def test_nobody_has_a_password_that_stands_in_the_file():
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            assert not re.search("PASSWORD|SECRET$|KEY|TOKEN", name) or value is None
    grafana = SERVICES["grafana"]["environment"]
    assert grafana["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert grafana["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert grafana["GF_AUTH_BASIC_ENABLED"] == "false"


@pytest.mark.parametrize("service", MONITORING)
def test_files_of_monitoring_are_mounted_where_they_are_read(service):
    settings = SERVICES[service]
    mounts = [mount for mount in settings["volumes"] if isinstance(mount, dict)]
    for mount in mounts:
        assert mount["read_only"] is True
        assert (ROOT / mount["source"]).is_dir()
    named = [value.partition("=")[2] for value in settings.get("command", ())]
    named += list(settings.get("environment", {}).values())
    for path in [path for path in named if path.startswith("/etc/")]:
        (mount,) = [mount for mount in mounts if path.startswith(mount["target"] + "/")]
        assert (ROOT / mount["source"] / path.removeprefix(mount["target"] + "/")).is_file()


def test_prometheus_asks_gateway_and_engine_and_grafana_asks_prometheus():
    folder = ROOT / "deploy" / "monitoring"
    jobs = yaml.safe_load((folder / "prometheus.yaml").read_text())["scrape_configs"]
    gateway, engine = jobs
    assert gateway["static_configs"] == [{"targets": ["gateway:8080"]}]
    assert engine["dns_sd_configs"] == [{"names": ["backend"], "type": "A", "port": 8000}]
    sources = yaml.safe_load(
        (folder / "grafana/provisioning/datasources/prometheus.yaml").read_text()
    )
    assert sources["datasources"][0]["url"] == "http://prometheus:9090"
    provider = yaml.safe_load((folder / "grafana/provisioning/dashboards/refrain.yaml").read_text())
    targets = [each["target"] for each in SERVICES["grafana"]["volumes"] if isinstance(each, dict)]
    assert provider["providers"][0]["options"]["path"] in targets


def test_the_collector_joins_only_what_it_declares():
    collector = yaml.safe_load((ROOT / "deploy/monitoring/otel-collector.yaml").read_text())
    for pipeline in collector["service"]["pipelines"].values():
        for kind, names in pipeline.items():
            assert set(names) <= set(collector[kind])
    endpoint = collector["receivers"]["otlp"]["protocols"]["http"]["endpoint"]
    assert endpoint == "0.0.0.0:4318"
    assert "`OTEL_EXPORTER_OTLP_ENDPOINT=http://otel-collector:4318`" in DEPLOY


def test_the_gateway_accepts_its_command_line():
    options = parsed(["serve", *command("gateway")])
    settings = load_settings({"upstream": options.upstream, "policy": options.policy}, {}, None)
    assert settings.upstream == ("http://backend:8000/v1",)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_engine_accepts_its_command_line(engine):
    settings = parsed_backend(command(engine))
    assert settings.model == "/models/refrain-demo"
    assert settings.device == ("cuda" if engine == "backend-gpu" else "cpu")
    assert parsed_backend(command(engine, REFRAIN_MODEL="a/b")).model == "a/b"


def test_every_setting_in_the_environment_exists():
    names = {n for n in SERVICES["gateway"]["environment"] if n.startswith(ENVIRONMENT_PREFIX)}
    assert names
    known = (*Settings.model_fields, *SECRETS)
    assert names <= {ENVIRONMENT_PREFIX + name.upper() for name in known}


def test_every_variable_is_documented():
    variables = set(re.findall(r"\$\{(\w+)", (ROOT / "compose.yaml").read_text()))
    for service in SERVICES.values():
        # Those without a value come from the shell.
        given = service.get("environment", {}).items()
        variables |= {name for name, value in given if value is None}
    assert variables <= set(re.findall(r"`([A-Z_]+)`", DEPLOY))


def test_entries_and_vectors_are_in_the_services_unless_the_shell_says_otherwise():
    environment = {
        name: interpolate(SERVICES["gateway"]["environment"][name])
        for name in ("REFRAIN_STORE", "REFRAIN_VECTORS")
    }
    settings = load_settings({}, environment, None)
    assert settings.store == "redis://redis"
    assert settings.vectors == "http://qdrant:6333"
    assert SERVICES["qdrant"]["healthcheck"]["test"][-1].endswith("/127.0.0.1/6333")
