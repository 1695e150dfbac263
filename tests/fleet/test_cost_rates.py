"""The table of rates: what is wrong is named, what is missing says so, replacing is all or nothing."""

import http.server
import json
import re
import ssl
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from ingero_contract.identifiers import node_key
from ingero_fleet.cli import main
from ingero_fleet.cost.command import obtain
from ingero_fleet.cost.files import read_prices
from ingero_fleet.cost.providers import ProviderMap, ProvidersError, parse_nodes, parse_providers
from ingero_fleet.processor_settings import CostConfig
from ingero_kit.gpu_rates import MAX_BYTES, RatesError, builtin, doubts, parse
from ingero_kit.settings import SettingsError

GOOD = "currency_name: EUR\nfallback_rate: 0\nproviders: {home: {NVIDIA L4: 0.5}}\n"


def test_fleet_s_own_table_raises_no_doubt() -> None:
    assert doubts(builtin()) == []


@pytest.mark.parametrize(
    ("provider", "model", "rate"),
    [
        ("ec2", "NVIDIA H100 80GB HBM3", 12.29),
        ("aws", "NVIDIA H100 80GB HBM3", 12.29),
        ("GCP", "NVIDIA  L4", 0.85),
        ("lambda", "NVIDIA GH200 480GB", 2.29),
        ("onprem", "NVIDIA H200", 1.45),
        ("ec2", "NVIDIA L4 24GB", None),
        ("", "NVIDIA L4", None),
        ("nowhere", "NVIDIA L4", None),
    ],
)
def test_a_rate_is_found_or_missing_never_zero(provider: str, model: str, rate: float | None) -> None:
    assert builtin().find(provider, model) == rate


def test_a_fallback_above_zero_stands_for_what_is_not_listed() -> None:
    table = parse("fallback_rate: 2\nproviders: {}")

    assert table.find("anywhere", "anything") == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a mapping"),
        ("{", "not YAML"),
        ("fallback_rate: 0\nproviders: {aws: {M: 1, M: 2}}", "line 2: the key 'M'"),
        ("providers: {}", "fallback_rate: is required"),
        ("fallback_rate: 0", "providers: is required"),
        ("fallback_rate: -1\nproviders: {}", "fallback_rate: Input should be greater than or equal to 0 (got -1)"),
        ("fallback_rate: .nan\nproviders: {}", "finite number (got nan)"),
        ("fallback_rate: 0\nproviders: {a: {M: cheap}}", "providers.a.M: Input should be a valid number"),
        (
            "fallback_rate: 0\nproviders: {a: {M: 20000}}",
            "providers.a.M: Input should be less than or equal to 10000 (got 20000)",
        ),
        ("fallback_rate: 0\nproviders: {a: [1]}", "providers.a: Input should be a valid dictionary"),
        ("fallback_rate: 0\nprovider: {}\nproviders: {}", "provider: no such setting"),
        ("fallback_rate: 0\nproviders: {}\ncurrency_name: 5", "currency_name: Input should be a valid string"),
        ("x" * (MAX_BYTES + 1), "larger than"),
    ],
)
def test_what_is_wrong_with_a_table_is_named(text: str, words: str) -> None:
    with pytest.raises(RatesError, match=re.escape(words)):
        parse(text)


@settings(deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_a_table_or_an_error_in_words(text: str) -> None:
    try:
        parse(text)
    except RatesError as error:
        assert str(error)


def test_a_name_that_nvidia_smi_never_prints_is_doubted() -> None:
    found = doubts(parse("fallback_rate: 0\nproviders: {ec2: {NVIDIA L4 24GB: 0.85, NVIDIA L40S: 0}}"))

    assert "did you mean NVIDIA L4?" in found[0]
    assert "costs 0" in found[1]


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[str, httpx.Client]]:
    """A TLS server on a free port: a table, a redirect to it, one to plain HTTP, a loop, something too large."""
    authority = trustme.CA()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            targets = {"/moved": "/rates", "/plain": f"http://127.0.0.1:{port}/rates", "/loop": "/loop"}
            bodies = {"/rates": GOOD.encode(), "/large": b"#" * (MAX_BYTES + 2), "/broken": b"providers: 5"}
            target, body = targets.get(self.path), bodies.get(self.path, b"")
            self.send_response(302 if target else 200 if body else 404)
            if target:
                self.send_header("location", target)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    port = server.server_address[1]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    with httpx.Client(verify=trust, trust_env=False) as client:
        yield f"https://127.0.0.1:{port}", client
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_table_comes_over_https_and_its_redirects(web: tuple[str, httpx.Client]) -> None:
    base, client = web

    assert obtain(f"{base}/rates", client) == GOOD
    assert obtain(f"{base}/moved", client) == GOOD


@pytest.mark.parametrize("address", ["https://a..b/rates", "https://xn--/rates", "https://["])
def test_an_address_that_cannot_be_one_is_refused_with_it(address: str) -> None:
    with pytest.raises(RatesError, match=re.escape(address)):
        obtain(address)


@pytest.mark.parametrize(
    ("path", "words"),
    [("/plain", "only https"), ("/loop", "redirects"), ("/large", "larger"), ("/none", "HTTP 404")],
)
def test_what_may_not_be_fetched_is_refused(web: tuple[str, httpx.Client], path: str, words: str) -> None:
    base, client = web

    with pytest.raises(RatesError, match=words):
        obtain(base + path, client)


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["rates", *words])
    return result.exit_code, result.output


def test_update_replaces_the_file_and_says_what_changes(tmp_path: Path) -> None:
    source, output = tmp_path / "new.yaml", tmp_path / "rates.yaml"
    source.write_text(GOOD)
    output.write_text(GOOD.replace("0.5", "0.4"))

    status, words = run("update", "--from", source.as_uri(), "--to", str(output))

    assert (status, output.read_text()) == (0, GOOD)
    assert "home: NVIDIA L4: 0.4 -> 0.5" in words
    assert sorted(tmp_path.iterdir()) == [source, output]


@pytest.mark.parametrize("content", [b"providers: 5", b"fallback_rate: 0\nproviders: {a: {M: -1}}", b"\x93NUMPY"])
def test_a_table_that_is_wrong_leaves_the_old_one(tmp_path: Path, content: bytes) -> None:
    source, output = tmp_path / "new.yaml", tmp_path / "rates.yaml"
    source.write_bytes(content)
    output.write_text(GOOD)

    status, words = run("update", "--from", str(source), "--output", str(output))

    assert (status, output.read_text()) == (2, GOOD)
    assert words.startswith(f"ingero-fleet: {source}: ")
    assert "is as it was" in words and "codec" not in words
    assert run("check", str(source))[1].startswith(f"ingero-fleet: {source}: ")
    assert run("update", "--from", "http://127.0.0.1/rates", "--to", str(output))[0] == 2
    assert run("update", "--to", str(tmp_path / "none" / "rates.yaml"))[1].startswith(
        f"ingero-fleet: {tmp_path}/none/rates.yaml: No such file or directory; it is as it was"
    )


def test_show_and_check_agree_about_fleet_s_own_table(tmp_path: Path) -> None:
    status, text = run("show", "--yaml")
    file = tmp_path / "rates.yaml"
    file.write_text(text)

    assert status == 0
    assert run("check", "--strict", str(file))[0] == 0
    assert "12.29" in run("show", "--provider", "aws")[1]
    assert run("show", "--provider", "nowhere")[0] == 2
    assert run("check", str(tmp_path / "none.yaml"))[0] == 2


RULES = """
- {provider: coreweave, clusters: [prod-*], nodes: [gpu-*]}
- {provider: ec2, networks: [10.0.0.0/8, 'fd00::/8']}
"""


@pytest.mark.parametrize(
    ("node", "reported", "provider"),
    [
        (("prod-1", "gpu-7"), "aws", "coreweave"),
        (("prod-1", "cpu-7"), "aws", "aws"),
        (("test", "gpu-7"), "", "on-premise"),
        (("test", "10.1.2.3"), "", "ec2"),
        (("test", "ip-10-1-2-3.ec2.internal"), "", "ec2"),
        (("test", "fd00::7"), "", "ec2"),
        (("test", "11.1.2.3"), "gcp", "gcp"),
    ],
)
def test_rules_come_before_reports_and_the_default_last(node: tuple[str, str], reported: str, provider: str) -> None:
    assert parse_providers(RULES, "on-premise").find(node_key(*node), reported) == provider


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "a list of rules"),
        ("- {nodes: [a]}", "rule 1: provider"),
        ("- {provider: a}", "needs nodes"),
        ("- {provider: a, nodes: b}", "rule 1: nodes: "),
        ("- {provider: a, node: [b]}", "rule 1: node: no such setting"),
        ("- {provider: a, networks: [10.0.0.1/8]}", "host bits"),
        ("- {provider: a, labels: [b]}", "rule 1: labels: "),
        ("- {provider: a, labels: {b: 1}}", "rule 1: labels.b: "),
    ],
)
def test_what_is_wrong_with_rules_is_named(text: str, words: str) -> None:
    with pytest.raises(ProvidersError, match=words):
        parse_providers(text)


def node(name: str, labels: dict[str, str], address: str, provider_id: str = "") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"providerID": provider_id} if provider_id else {},
        "status": {"addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}]},
    }


NODES = {
    "items": [
        node("gpu-1", {"region": "us-east-1", "pool": "h100"}, "10.1.0.1", "aws:///us-east-1a/i-1"),
        node("gpu-2", {"region": "us-east-1", "pool": "l4"}, "192.168.0.7"),
        node("gpu-3", {}, "fd00::1", "gce://project/zone/gpu-3"),
    ]
}
BY_PLACE = """
- {provider: lambda, labels: {region: us-*, pool: h100}}
- {provider: home, networks: [192.168.0.0/16, "fd00::/8"]}
"""


@pytest.mark.parametrize(
    ("rules", "name", "reported", "provider"),
    [
        (BY_PLACE, "gpu-1", "aws", "lambda"),
        (BY_PLACE, "gpu-2", "aws", "home"),
        (BY_PLACE, "gpu-3", "", "home"),
        (BY_PLACE, "unknown", "aws", "aws"),
        ("", "gpu-1", "", "aws"),
        ("", "gpu-3", "", "gce"),
        ("", "gpu-3", "azure", "azure"),
        ("", "gpu-2", "", "on-premise"),
    ],
)
def test_labels_and_addresses_of_nodes_decide(rules: str, name: str, reported: str, provider: str) -> None:
    mapped = replace(parse_providers(rules, "on-premise"), places=parse_nodes(json.dumps(NODES).encode()))

    assert mapped.find(node_key("c", name), reported) == provider


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"{", "not JSON"),
        (b"[]", "a list of nodes"),
        (b'{"items": [{"metadata": {}}]}', r"items\[0\].metadata.name"),
        (b'{"items": [7]}', r"items\[0\].metadata.name"),
    ],
)
def test_what_is_wrong_with_the_list_of_nodes_is_named(data: bytes, words: str) -> None:
    with pytest.raises(ProvidersError, match=words):
        parse_nodes(data)


@given(st.recursive(st.none() | st.text(max_size=3) | st.integers(), lambda inner: st.lists(inner, max_size=3)
                    | st.dictionaries(st.sampled_from(["metadata", "spec", "status", "labels", "addresses", "address",
                                                       "name", "providerID"]), inner, max_size=4)))  # fmt: skip
def test_nodes_with_any_values_give_places_or_a_refusal(item: Any) -> None:
    try:
        places = parse_nodes(json.dumps({"items": [item, {"metadata": {"name": "n"}, "status": item}]}).encode())
    except ProvidersError:
        return

    assert isinstance(ProviderMap((), "d", places).find(node_key("c", "n"), ""), str)


def test_the_nodes_file_is_read_with_the_prices_and_named_when_it_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "nodes.json"
    file.write_text(json.dumps(NODES))

    assert read_prices(CostConfig(nodes_file=file)).providers.find(node_key("c", "gpu-1"), "") == "aws"
    file.write_text("?")
    with pytest.raises(SettingsError, match=r"nodes_file .*nodes\.json: not JSON"):
        read_prices(CostConfig(nodes_file=file))
