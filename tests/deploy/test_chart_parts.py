"""What the chart makes if it is asked to: certificates, other stores, routes, and what scales and watches."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema
import pytest
from starlette.routing import Route

from deploy.charts import (
    CHART,
    CUSTOM,
    Object,
    files_of,
    helm,
    of_kind,
    pod_of,
    rendered,
    settings_of,
    the,
    validate,
    values_of,
)
from headwayd.domain.calls import Method
from headwayd.domain.scaling import Metric
from headwayd.http.doors import Behind, application
from headwayd.rpc.bridge import Bridge
from headwayd.rpc.server import ADMIN_SERVICE, QUEUE_SERVICE
from headwayd.store.address import parse_address

EVERYTHING = "everything"


# -- what is not Kubernetes' own --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CUSTOM)
def test_a_field_that_a_custom_object_does_not_have_is_noticed(kind: str) -> None:
    made = copy.deepcopy(of_kind(rendered(EVERYTHING), kind)[0])
    validate(made, "1.37")
    made["spec"]["made_up"] = 1
    with pytest.raises(jsonschema.ValidationError, match="made_up"):
        validate(made, "1.37")


def test_nothing_of_others_is_made_unless_asked_for() -> None:
    made = {each["kind"] for each in rendered("url")}
    assert not made & {*CUSTOM, "Ingress", "HorizontalPodAutoscaler"}
    assert len(of_kind(rendered("url"), "ConfigMap")) == 1


# -- stores -----------------------------------------------------------------------------------------------------------


def test_the_name_of_the_store_leaves_room_for_the_revision_in_a_label_of_its_pods() -> None:
    made = rendered("valkey", f"fullnameOverride={'n' * 44}-{'n' * 5}")
    name = f"{'n' * 44}-valkey"
    assert len(name) + len("-0123456789") <= 63
    assert the(made, "StatefulSet")["metadata"]["name"] == the(made, "StatefulSet")["spec"]["serviceName"] == name
    assert name in {each["metadata"]["name"] for each in of_kind(made, "Service")}
    assert settings_of(made)["HEADWAY_REDIS_URL"] == f"redis://{name}:6379/0"


def test_sentinels_and_clusters_are_named_in_a_url_and_the_password_is_a_file() -> None:
    sentinel, cluster = rendered("sentinel"), rendered("secure")
    addresses = "sentinel-0.redis:26379,sentinel-1.redis:26379,[fd00::3]:26379"
    assert settings_of(sentinel)["HEADWAY_REDIS_URL"] == f"redis+sentinel://{addresses}/queues/2"
    assert settings_of(cluster)["HEADWAY_REDIS_URL"] == "rediss+cluster://node-0.redis:6379,node-1.redis:6379"
    for objects, key in ((sentinel, "password"), (cluster, "redis")):
        path = settings_of(objects)["HEADWAY_REDIS_PASSWORD_FILE"]
        assert files_of(objects)[path] == ("redis-password", key)
        assert of_kind(objects, "Secret") == []
    path = settings_of(sentinel)["HEADWAY_REDIS_SENTINEL_PASSWORD_FILE"]
    assert files_of(sentinel)[path] == ("sentinel-password", "sentinel")
    assert "HEADWAY_REDIS_SENTINEL_PASSWORD_FILE" not in settings_of(cluster)


def test_sentinels_and_clusters_can_be_asked_by_a_user_of_their_own() -> None:
    for case, begin in (("sentinel", "redis+sentinel://"), ("secure", "rediss+cluster://")):
        plain, named = (settings_of(rendered(case, *user)) for user in ([], ["store.user=team/headway"]))
        assert named["HEADWAY_REDIS_URL"] == plain["HEADWAY_REDIS_URL"].replace(begin, f"{begin}team%2Fheadway@")
        assert parse_address(named["HEADWAY_REDIS_URL"]).options["username"] == "team/headway"
        assert named["HEADWAY_REDIS_PASSWORD_FILE"] == plain["HEADWAY_REDIS_PASSWORD_FILE"]


@pytest.mark.parametrize("url", ["redis+sentinel://a:1,b:2/main/0", "rediss+cluster://a:1"])
def test_a_url_of_any_kind_of_store_stands_in_the_secret(url: str) -> None:
    made = rendered("url", f"store.url={url.replace(',', chr(92) + ',')}")
    assert the(made, "Secret")["stringData"] == {"url": url}
    assert "HEADWAY_REDIS_URL" not in settings_of(made)


# -- certificates and identities --------------------------------------------------------------------------------------


def test_certificates_and_identities_are_files_of_their_secrets_that_only_the_service_reads() -> None:
    made = rendered(EVERYTHING)
    files, said = files_of(made), settings_of(made)
    assert files[said["HEADWAY_TLS_CERT"]] == ("queues-tls", "tls.crt")
    assert files[said["HEADWAY_TLS_KEY"]] == ("queues-tls", "tls.key")
    assert files[said["HEADWAY_TLS_CLIENT_CA"]] == ("queues-tls", "ca.crt")
    assert files[said["HEADWAY_AUTH_FILE"]] == ("queues-identities", "who.toml")
    spec = pod_of(made)
    assert {each["secret"]["defaultMode"] for each in spec["volumes"] if "secret" in each} == {0o440}
    # A whole folder, not a file of it: only then does the kubelet bring what changes.
    assert not any("subPath" in mount for mount in spec["containers"][0]["volumeMounts"])
    assert "HEADWAY_TLS_CLIENT_CA" not in settings_of(rendered("secure"))


def test_probes_go_where_the_kubelet_can_ask() -> None:
    def probes(case: str, *settings: str) -> list[Any]:
        (container,) = pod_of(rendered(case, *settings))["containers"]
        asked = (container[f"{name}Probe"] for name in ("startup", "liveness", "readiness"))
        return [
            {key: probe[key] for key in probe if key in ("grpc", "httpGet", "exec", "tcpSocket")} for probe in asked
        ]

    def over_http(path: str, scheme: str) -> Object:
        return {"httpGet": {"port": "http", "path": path, "scheme": scheme}}

    def by_grpc(service: str) -> Object:
        return {"grpc": {"port": 7420, "service": service}}

    program = {"exec": {"command": ["headwayd", "check", "--ready", "localhost:7420"]}}
    paths = ("/healthz", "/healthz", "/readyz")
    assert probes("url") == [over_http(path, "HTTP") for path in paths]
    assert probes("url", "httpPort=0") == [by_grpc(name) for name in ("liveness", "liveness", "readiness")]
    assert probes("secure") == [over_http(path, "HTTPS") for path in paths]
    # It has no certificate of its own, and speaks no TLS with gRPC.
    assert probes("secure", "tls.clients=true") == [{"tcpSocket": {"port": "grpc"}}] * 2 + [program]
    without = probes("secure", "httpPort=0", "serviceMonitor.enabled=false")
    assert without == [{"tcpSocket": {"port": "grpc"}}] * 2 + [program]


def test_services_say_which_protocol_is_spoken() -> None:
    def protocols(case: str) -> set[tuple[str, str]]:
        services = of_kind(rendered(case), "Service", "service")
        assert len(services) == 2
        return {(port["name"], port["appProtocol"]) for each in services for port in each["spec"]["ports"]}

    assert protocols("url") == {("grpc", "kubernetes.io/h2c"), ("http", "http")}
    assert protocols("secure") == {("grpc", "https"), ("http", "https")}
    assert protocols("sentinel") == {("grpc", "kubernetes.io/h2c")}


def test_the_test_pod_brings_what_the_service_asks_for() -> None:
    containers = the(rendered("secure"), "Pod")["spec"]["initContainers"]
    env = {each["name"]: each for each in containers[0]["env"]}
    assert env["HEADWAY_CA"]["value"] == "/etc/headway/tls/ca.crt"
    assert env["HEADWAY_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "headway-test", "key": "token"}
    assert not {"HEADWAY_CERT", "HEADWAY_KEY"} & env.keys()
    assert of_kind(rendered("sentinel"), "Pod") == []


def test_the_test_pod_shows_a_certificate_where_callers_must() -> None:
    pod = the(rendered("secure", "tls.clients=true"), "Pod")["spec"]
    (volume,) = pod["volumes"]
    files = {f"/etc/headway/tls/{item['path']}" for item in volume["secret"]["items"]}
    for container in (*pod["initContainers"], *pod["containers"]):
        env = {each["name"]: each.get("value") for each in container["env"]}
        assert {env["HEADWAY_CA"], env["HEADWAY_CERT"], env["HEADWAY_KEY"]} == files


# -- routes -----------------------------------------------------------------------------------------------------------


def test_routes_and_the_ingress_lead_to_ports_of_the_service() -> None:
    made = rendered(EVERYTHING)
    (service,) = (each for each in of_kind(made, "Service") if each["metadata"]["name"] == "queues")
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    (rule,) = the(made, "GRPCRoute")["spec"]["rules"]
    assert rule == {"backendRefs": [{"name": "queues", "port": ports["grpc"]}]}
    (rule,) = the(made, "HTTPRoute")["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": "queues", "port": ports["http"]}]
    assert [match["path"]["value"] for match in rule["matches"]] == ["/readyz", "/", "/dashboard"]
    (to_dashboard,) = (match["path"] for match in rule["matches"] if match["path"]["value"] == "/")
    assert to_dashboard["type"] == "Exact"  # by its beginning it would be everything
    (rule,) = the(made, "Ingress")["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert path["backend"]["service"] == {"name": "queues", "port": {"name": "grpc"}}


def test_neither_metrics_nor_operators_calls_are_let_out_unasked() -> None:
    said = ("httpRoute.enabled=true", "httpRoute.parentRefs[0].name=outside")
    (rule,) = the(rendered("url", *said), "HTTPRoute")["spec"]["rules"]
    paths = [match["path"]["value"] for match in rule["matches"]]
    assert paths == [f"/{QUEUE_SERVICE.full_name}", "/queues", "/place.js", "/healthz", "/readyz"]


def test_every_door_is_let_out_by_the_route_or_kept_in_on_purpose() -> None:
    said = ("httpRoute.enabled=true", "httpRoute.dashboard=true", "httpRoute.parentRefs[0].name=outside")
    (rule,) = the(rendered("url", *said), "HTTPRoute")["spec"]["rules"]
    let_out = {match["path"]["value"] for match in rule["matches"]}
    example = {"/example", "/example.js", "/example.css", "/pages.css"}
    kept_in = {"/metrics", f"/{ADMIN_SERVICE.full_name}"} | example
    assert doors() == let_out | kept_in
    assert not let_out & kept_in


def doors() -> set[str]:
    """The first parts of the paths that the port of HTTP answers."""

    async def scrape(accept: str) -> tuple[bytes, str]:
        return accept.encode(), "text/plain"

    class EveryCall(Bridge):
        """Of the schema; nobody makes them."""

        @property
        def methods(self) -> list[Method]:
            services = (QUEUE_SERVICE, ADMIN_SERVICE)
            return [
                Method(f"/{service.full_name}/{method.name}", service.full_name, method.name, is_stream=False)
                for service in services
                for method in service.methods
            ]

    calls = EveryCall({}, ())
    behind = Behind(scrape=scrape, is_ready=lambda: True, calls=calls, most_connections=1, read_s=1, has_dashboard=True)
    return {f"/{route.path.split('/')[1]}" for route in application(behind).app.routes if isinstance(route, Route)}


# -- scaling ----------------------------------------------------------------------------------------------------------


def test_every_deployment_of_workers_is_scaled_by_its_queue() -> None:
    made = {each["metadata"]["name"]: each["spec"] for each in of_kind(rendered(EVERYTHING), "ScaledObject")}
    assert {name: spec["scaleTargetRef"]["name"] for name, spec in made.items()} == {
        "mailer": "mailer",
        "painter": "gpu.painter",
        "auditor": "auditor",
    }
    triggers = {name: spec["triggers"][0] for name, spec in made.items()}
    assert {trigger["metadata"]["metric"] for trigger in triggers.values()} == {metric.value for metric in Metric}
    assert triggers["painter"]["metadata"] == {
        "scalerAddress": "queues.work.svc:7000",
        "enableTLS": "true",
        "queue": "pictures",
        "metric": "predicted_wait",
        "target": "2.5",
    }
    # A depth is shared out among workers; an age is none the smaller for there being more of them.
    assert {name: trigger["metricType"] for name, trigger in triggers.items()} == {
        "mailer": "AverageValue",
        "painter": "Value",
        "auditor": "Value",
    }
    mailer = made["mailer"]
    assert (mailer["minReplicaCount"], mailer["maxReplicaCount"], mailer["cooldownPeriod"]) == (1, 50, 0)
    painter = made["painter"]
    assert (painter["minReplicaCount"], painter["maxReplicaCount"], painter["cooldownPeriod"]) == (0, 10, 300)


def test_the_service_must_answer_keda_to_be_asked() -> None:
    assert settings_of(rendered(EVERYTHING))["HEADWAY_KEDA"] == "true"


# -- watching ---------------------------------------------------------------------------------------------------------


def test_every_pod_is_scraped_once() -> None:
    made = rendered("secure")
    selector = the(made, "ServiceMonitor")["spec"]["selector"]
    (absent,) = (rule["key"] for rule in selector["matchExpressions"] if rule["operator"] == "DoesNotExist")
    labels = [each["metadata"]["labels"] for each in of_kind(made, "Service")]
    found = [each for each in labels if selector["matchLabels"].items() <= each.items() and absent not in each]
    assert len(found) == 1
    (endpoint,) = the(made, "ServiceMonitor")["spec"]["endpoints"]
    assert (endpoint["port"], endpoint["path"], endpoint["scheme"]) == ("http", "/metrics", "https")
    assert endpoint["tlsConfig"]["ca"]["secret"] == {"name": "headway-tls", "key": "ca.crt"}
    assert endpoint["authorization"] == {"credentials": {"name": "headway-prometheus", "key": "token"}}
    (endpoint,) = the(rendered(EVERYTHING), "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["tlsConfig"] == {"insecureSkipVerify": True}


def test_who_scrapes_shows_a_certificate_where_callers_must() -> None:
    def tls(*settings: str) -> Object:
        (endpoint,) = the(rendered("secure", *settings), "ServiceMonitor")["spec"]["endpoints"]
        said: Object = endpoint["tlsConfig"]
        return said

    assert not {"cert", "keySecret"} & tls().keys()
    shown = tls("tls.clients=true")
    assert shown["cert"] == {"secret": {"name": "headway-tls", "key": "tls.crt"}}
    assert shown["keySecret"] == {"name": "headway-tls", "key": "tls.key"}
    for one in rendered("secure", "tls.clients=true"):
        validate(one, "1.37")
    assert tls("tls.clients=true", "serviceMonitor.tlsConfig.insecureSkipVerify=true") == {"insecureSkipVerify": True}


def test_whoever_installs_it_is_told_what_guards_it() -> None:
    def notes(case: str, *settings: str) -> str:
        said = [word for setting in settings for word in ("--set", setting)]
        done = helm("install", "hw", CHART, "--dry-run=client", *values_of(case), *said)
        assert done.returncode == 0, done.stderr
        return done.stdout.partition("\nNOTES:\n")[2]

    open_to_all = notes("url")
    for sentence in ("There is no TLS", "Whoever reaches these addresses may do everything.", "No network policy"):
        assert sentence in open_to_all
    assert "http://hw-headway:7421/metrics" in open_to_all
    guarded = notes("secure")
    assert not any(word in guarded for word in ("no TLS", "everything", "No network policy"))
    assert "https://hw-headway:7421/metrics" in guarded
    assert "with a certificate may do everything" in notes("secure", "tls.clients=true", "auth.existingSecret.name=")
    assert "/metrics" not in notes("sentinel")
    kept_out, way = "keeps out what comes from outside", "service.type=LoadBalancer"
    assert kept_out not in notes("valkey")
    assert kept_out in notes("valkey", way)
    assert kept_out in notes("valkey", "ingress.enabled=true", "ingress.hosts={queues.example}")
    assert kept_out not in notes("valkey", way, "networkPolicy.from[0].podSelector.matchLabels.app=gateway")
    assert kept_out not in notes("url", way)  # which has no policy


# -- where pods run ---------------------------------------------------------------------------------------------------


def test_pods_are_spread_over_nodes_and_zones_unless_told_otherwise() -> None:
    constraints = pod_of(rendered("valkey"))["topologySpreadConstraints"]
    assert [each["topologyKey"] for each in constraints] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    assert {each["whenUnsatisfiable"] for each in constraints} == {"ScheduleAnyway"}
    assert "topologySpreadConstraints" not in pod_of(rendered("url"))
