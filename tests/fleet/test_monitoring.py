"""Dashboard, recording rules and alerts ask only for what is served, and Prometheus itself accepts them."""

import json
import re
import subprocess
from pathlib import Path

import yaml

from ingero_testing.needs import needs_promtool

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "manifests/monitoring"
SOURCES = ("collectors.py", "cost/tracker.py", "collectives/collector.py", "hangs.py")
METRIC = re.compile(r"\bingero[_:][a-z0-9_:]+")


def served() -> set[str]:
    """Names of all series on Fleet's two pages, the operator's and Echo's, counters with their suffix."""
    text = "".join((ROOT / "fleet/ingero_fleet" / name).read_text() for name in SOURCES)
    text += "".join((ROOT / "echo/ingero_echo" / name).read_text() for name in ("collector.py", "source_stats.py"))
    names = set(re.findall(r'"(ingero_[a-z_]+)"', text))
    page = (ROOT / "operator/ingero_operator/metrics.py").read_text()
    own = re.findall(r'^\s+\(\s*"([a-z_]+)",\s+"', page, re.M) + re.findall(r'"ingero_operator_([a-z_]+)"', page)
    names |= {f"ingero_operator_{name}" for name in own}
    return names | {f"{name}_total" for name in names}


def rules() -> list[dict[str, str]]:
    tree = yaml.safe_load((FOLDER / "ingero.rules.yaml").read_text())
    return [rule for group in tree["groups"] for rule in group["rules"]]


def panels() -> list[dict]:  # type: ignore[type-arg]
    found: list[dict] = json.loads((FOLDER / "grafana-dashboard.json").read_text())["panels"]  # type: ignore[type-arg]
    return found


def test_every_expression_asks_for_something_that_is_served() -> None:
    known = served() | {rule["record"] for rule in rules() if "record" in rule}
    expressions = [rule["expr"] for rule in rules()]
    expressions += [target["expr"] for panel in panels() for target in panel["targets"]]

    asked = {name for expression in expressions for name in METRIC.findall(expression)}

    assert asked - known == set()
    assert len(asked) > 15


def test_every_alert_says_what_to_do() -> None:
    text = (ROOT / "docs/alerts.md").read_text()
    alerts = [rule for rule in rules() if "alert" in rule]

    assert len(alerts) == len({rule["alert"] for rule in alerts})
    for rule in alerts:
        assert f"## {rule['alert']}\n" in text
        assert rule["for"]
        assert rule["labels"]["severity"] in ("info", "warning", "critical")  # type: ignore[index]
        assert len(rule["annotations"]["description"]) > 40  # type: ignore[index]


def test_the_prometheus_operator_gets_the_same_rules_and_finds_our_operator() -> None:
    folder = FOLDER / "prometheus-operator"
    rule = yaml.safe_load((folder / "rules.yaml").read_text())
    monitor = yaml.safe_load((folder / "servicemonitor.yaml").read_text())
    installed = list(yaml.safe_load_all((ROOT / "manifests/base/operator.yaml").read_text()))
    (service,) = (item for item in installed if item["kind"] == "Service")

    assert rule["spec"] == yaml.safe_load((FOLDER / "ingero.rules.yaml").read_text())
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["metadata"]["namespace"] == service["metadata"]["namespace"]
    assert {item["port"] for item in monitor["spec"]["endpoints"]} <= {
        item["name"] for item in service["spec"]["ports"]
    }


def test_panels_cover_the_grid_without_overlap() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & own
        cells |= own
    assert len({panel["id"] for panel in panels()}) == len(panels())


@needs_promtool
def test_prometheus_accepts_the_rules() -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", str(FOLDER / "ingero.rules.yaml")], capture_output=True, text=True
    )

    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_the_rules_compute_what_they_say(tmp_path: Path) -> None:
    """Series in, alerts and records out, by Prometheus' own engine."""
    series = {
        'ingero_fleet_active_nodes{cluster_id="c", cohort="a"}': "6+0x30",
        'ingero_fleet_active_nodes{cluster_id="c", cohort="b"}': "2+0x30",
        'ingero_fleet_idle_nodes{cluster_id="c"}': "1+0x30",
        'ingero_fleet_calibrating_nodes{cluster_id="c"}': "1+0x30",
        'ingero_fleet_expected_nodes{cluster_id="c"}': "20+0x30",
        'ingero_fleet_straggler{cluster_id="c", node_id="n"}': "1+0x30",
        'ingero_fleet_job_cost_per_hour{cluster_id="c", job="j", currency="USD"}': "100+0x30",
        'ingero_fleet_waiting_cost_per_hour{cluster_id="c", job="j", currency="USD"}': "10+0x30",
    }
    cluster = '{cluster_id="c"}'
    expected = {
        "ingero:active_nodes:sum": (cluster, 8), "ingero:coverage:ratio": (cluster, 0.5),
        "ingero:waiting:ratio": (cluster, 0.1),
        "ingero:accused_nodes:count": (cluster, 1),
        "ingero:waiting_cost_per_hour:sum": ('{cluster_id="c", currency="USD"}', 10),
    }  # fmt: skip
    labels = {"cluster_id": "c", "node_id": "n", "severity": "warning"}
    description = next(rule for rule in rules() if rule.get("alert") == "IngeroStraggler")["annotations"]
    test = {
        "rule_files": [str(FOLDER / "ingero.rules.yaml")],
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [
                    {"expr": name, "eval_time": "10m", "exp_samples": [{"labels": f"{name}{own}", "value": value}]}
                    for name, (own, value) in expected.items()
                ],
                "alert_rule_test": [
                    {
                        "eval_time": "5m",
                        "alertname": "IngeroStraggler",
                        "exp_alerts": [
                            {
                                "exp_labels": labels,
                                "exp_annotations": {
                                    "summary": "n of c slows down its job.",
                                    "description": description["description"],  # type: ignore[index]
                                },
                            }
                        ],
                    }
                ],
            }
        ],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump(test))
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr
