"""The live page: its data, and what a real browser shows."""

import functools
import json
import re
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from ingero_contract import attributes, metrics, routes
from ingero_contract.identifiers import node_key
from ingero_contract.values import NodeState
from ingero_fleet import threshold_rule
from ingero_fleet.live_detector import LiveDetector
from ingero_fleet.page import health_history as page_history
from ingero_fleet.page.health_history import (
    CALIBRATING_LEVEL,
    HEALTHY_LEVEL,
    IDLE_LEVEL,
    STOPPED_LEVEL,
    TICKS,
    HealthHistory,
)
from ingero_fleet.page.node_history import POINT, NodeHistory
from ingero_fleet.processor_settings import DetectorConfig, IngeroConfig, QuorumConfig
from ingero_fleet.score_snapshot import ScoreSnapshot
from ingero_fleet.score_table import ScoreLimits, ScoreTable
from ingero_fleet.tick_snapshot import TickSnapshot, cohort_name
from ingero_kit.clock import rfc3339
from ingero_kit.health_report import HealthReport
from ingero_kit.otlp_encode import encode_report
from ingero_testing.browser import Browser, Page, browser
from ingero_testing.collectives import Job
from ingero_testing.needs import needs_browser
from ingero_testing.processes import Running, fleet, wait_until
from ingero_testing.web import web

PROTOBUF = {"content-type": "application/x-protobuf"}
CONFIG = IngeroConfig(
    push_interval=1.0, quorum=QuorumConfig(statistical_min=3), detector=DetectorConfig(warmup_ticks=5)
)


class World:
    """A score map and its history, a tick at a time."""

    def __init__(self, ttl_seconds: float = 5.0) -> None:
        self.table = ScoreTable(ScoreLimits(100_000, 100, ttl_seconds), CONFIG.cohort.by)
        self.history = HealthHistory()
        self.now = 0.0
        self.memory = threshold_rule.RuleState()
        self.detector = LiveDetector(CONFIG)

    def tick(self, *reports: HealthReport) -> HealthHistory:
        self.now += 1.0
        for report in reports:
            self.table.observe(report, self.now)
        self.table.expire(self.now)
        scores = ScoreSnapshot.take(self.table, self.now)
        tick = threshold_rule.compute(scores, self.memory, CONFIG)
        findings = self.detector.judge(scores, {})
        self.memory = tick.memory
        threshold_rule.apply(tick, scores, self.table)
        self.history.add(TickSnapshot(scores, tick, findings), [cohort_name(key) for key in scores.cohorts])
        return self.history


def report(node: str, score: float = 1.0, **fields: Any) -> HealthReport:
    return HealthReport(node_id=node, cluster_id="c", score=score, **fields)


def test_a_byte_says_state_and_score() -> None:
    world = World()
    healthy = [report(f"h{number}") for number in range(4)]
    for _ in range(12):
        world.tick(*healthy, report("stops"), report("slow"))

    for _ in range(6):
        history = world.tick(
            *healthy, report("stops", state=NodeState.IDLE), report("slow", 0.3),
            report("new", state=NodeState.CALIBRATING),
            HealthReport(node_id="rests", cluster_id="d", score=0.0, state=NodeState.IDLE),
        )  # fmt: skip

    found: dict[str, int] = dict(zip([name for _, name in history.nodes], history.latest(), strict=True))
    assert found["h0"] == 255
    assert 16 < found["slow"] < HEALTHY_LEVEL
    assert (found["stops"], found["new"], found["rests"]) == (STOPPED_LEVEL, CALIBRATING_LEVEL, IDLE_LEVEL)


def test_nodes_stand_by_cluster_cohort_and_name_and_the_order_lasts() -> None:
    world = World()
    reports = [report("b", job_id="j2"), report("a", job_id="j2"), report("c", job_id="j1")]
    first = world.tick(*reports).layout

    assert [name for _, name in world.history.nodes] == ["c", "a", "b"]
    assert world.tick(*reports).layout == first
    assert world.tick(*reports, report("d")).layout == first + 1


def test_of_more_nodes_fewer_ticks_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_history, "MOST_BYTES", 40 * 1024)
    world = World()
    for tick in range(50):
        world.tick(report("a", tick / 100))
    assert (len(world.history.times), world.history.times[-1]) == (40, 50.0)

    before = world.history.all()
    history = world.tick(*(report(f"n{number}") for number in range(2000)))

    column = np.frombuffer(history.all(), np.uint8).reshape(len(history.times), -1)[:, 0]
    assert len(history.times) == 40 * 1024 // (2001 + 2001 // 8)
    assert column[:-1].tolist() == list(before[1 - len(history.times) :])


def test_who_takes_over_a_row_has_no_past() -> None:
    world = World(ttl_seconds=2.0)
    world.tick(report("old"))
    for _ in range(3):
        world.tick()
    history = world.tick(report("new"))

    assert [name for _, name in history.nodes] == ["new"]
    assert list(history.all()) == [0, 0, 0, 0, 255]


def test_only_the_latest_ticks_are_kept() -> None:
    world = World()
    for _ in range(TICKS + 10):
        history = world.tick(report("a"))

    assert len(history.times) == TICKS
    assert history.all() == bytes([255] * TICKS)


def test_beyond_the_limit_stragglers_are_shown_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingero_fleet.page.health_history.MAX_NODES", 3)
    world = World()
    for _ in range(12):
        world.tick(*(report(f"n{number}") for number in range(10)))
    for _ in range(4):
        history = world.tick(*(report(f"n{number}", 0.2 if number in (7, 8) else 1.0) for number in range(10)))

    assert {"n7", "n8"} < {name for _, name in history.nodes}
    assert (len(history.nodes), history.hidden) == (3, 7)


def history_of(world: World, ticks: int, *reports: HealthReport) -> NodeHistory:
    history = NodeHistory()
    world.history.add = lambda snapshot, _: history.add(snapshot)  # type: ignore[method-assign,assignment]
    for _ in range(ticks):
        world.tick(*reports)
    return history


def test_a_nodes_history_has_its_expectation_its_evidence_and_its_peers() -> None:
    world = World()
    reports = [report(f"n{number}", 0.9 + number / 100) for number in range(5)]
    history_of(world, 12, *reports)
    history = history_of(world, 6, *reports[:4], report("n4", 0.3))

    found = history.answer(node_key("c", "n4"))
    assert found["times"] == [13.0, 14.0, 15.0, 16.0, 17.0, 18.0]
    assert found["value"] == [pytest.approx(0.3, abs=1e-3)] * 6
    assert found["expected"][-1] == pytest.approx(0.94, abs=0.01)
    assert max(found["evidence"]) > found["level"][-1] > 0
    assert found["peers"]["median"][-1] == pytest.approx(0.92, abs=1e-3)
    assert found["peers"]["low"][-1] < found["peers"]["high"][-1]
    assert history.answer(node_key("c", "nobody"))["times"] == []


def test_a_nodes_history_is_bounded_and_starts_anew_with_another_node(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(ttl_seconds=2.0)
    history = history_of(world, 3, report("old"))
    for _ in range(3):
        world.tick()
    world.tick(report("new"))
    assert [value is None for value in history.answer(node_key("c", "new"))["value"]] == [True] * 6 + [False]

    monkeypatch.setattr("ingero_fleet.page.node_history.MOST_BYTES", 20 * 2300 * POINT.itemsize)
    for _ in range(30):
        world.tick(*(report(f"n{number}") for number in range(2000)))
    assert len(history.answer(node_key("c", "n7"))["times"]) == 20
    monkeypatch.setattr("ingero_fleet.page.node_history.MAX_NODES", 1000)
    world.tick()
    assert history.answer(node_key("c", "n7"))["times"] == []


def test_the_page_takes_nothing_from_elsewhere() -> None:
    for name in ("index.html", "page.css", "page.js", "node.js"):
        text = (files("ingero_fleet.page") / "static" / name).read_text()
        assert not re.search(r"https?://|//[a-z]+\.|@import|url\((?!data:)", text), name
    script = "".join((files("ingero_fleet.page") / "static" / name).read_text() for name in ("page.js", "node.js"))
    assert not re.search(r"(innerHTML|outerHTML) =[^=]|insertAdjacentHTML|document\.write|eval\(", script)


@functools.cache
def pushes(count: int, slow: frozenset[int], cluster: str) -> list[bytes]:
    """Reports of so many nodes, five hundred in a push."""
    reports = [
        HealthReport(node_id=f"node-{number:05d}", cluster_id=cluster, score=0.3 if number in slow else 0.95,
                     throughput=0.3 if number in slow else 0.95, world_size=count)
        for number in range(count)
    ]  # fmt: skip
    encoded = [encode_report(report).SerializeToString() for report in reports]
    return [b"".join(encoded[first : first + 500]) for first in range(0, count, 500)]


def fill(service: Running, count: int, *slow: int, cluster: str = "c") -> None:
    """One round of pushes."""
    for content in pushes(count, frozenset(slow), cluster):
        answer = web.post(
            service.url("otlp/http", routes.OTLP_METRICS), content=content, headers=PROTOBUF, timeout=60
        )
        assert answer.status_code == 200


def learn(service: Running, count: int) -> None:
    """Push until the detector knows everybody."""

    def known() -> bool:
        fill(service, count)
        answer = web.get(service.url("threshold", f"{routes.FLEET_VERDICTS}?limit=1&offset={count - 1}"), timeout=60)
        nodes = answer.json()["nodes"] if answer.status_code == 200 else []
        return bool(nodes) and nodes[0]["verdict"] is not None and nodes[0]["verdict"]["state"] == "healthy"

    wait_until(known, "everybody to be known", 120)


def test_layout_update_and_events_agree(tmp_path: Path) -> None:
    with fleet(tmp_path) as service:
        page = web.get(service.url("diagnostics", "/"))
        assert page.status_code == 200
        assert "default-src 'none'" in page.headers["content-security-policy"]
        learn(service, 6)
        update = service.url("diagnostics", routes.FLEET_PAGE_UPDATE)

        def accused() -> bool:
            fill(service, 6, 3)
            return bool((web.get(update).json() or {}).get("straggler_count"))

        wait_until(accused, "a straggler on the page")

        layout = web.get(service.url("diagnostics", routes.FLEET_PAGE_LAYOUT)).json()
        with httpx.stream("GET", service.url("diagnostics", routes.FLEET_PAGE_EVENTS)) as stream:
            event = next(json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: "))

            assert layout["nodes"] == [f"node-{number:05d}" for number in range(6)]
            assert event["layout"] == layout["layout"]
            assert [item["node_id"] for item in event["stragglers"]] == ["node-00003"]
            assert "of its rate" in event["stragglers"][0]["why"]
            service.process.terminate()
            assert service.process.wait(4) == 0


def test_no_more_pages_than_fleet_keeps_up_to_date(tmp_path: Path) -> None:
    with fleet(tmp_path) as service, httpx.Client(limits=httpx.Limits(max_connections=100)) as client:
        fill(service, 3)
        url = service.url("diagnostics", routes.FLEET_PAGE_EVENTS)
        streams: list[httpx.Response] = []
        readers = []
        try:
            for _ in range(33):
                streams.append(client.send(client.build_request("GET", url), stream=True))
                if len(streams) < 33:
                    readers.append(streams[-1].iter_lines())
                    assert next(readers[-1]).startswith("data: ")
            assert [stream.status_code for stream in streams] == [200] * 32 + [503]
            assert client.get(service.url("diagnostics", routes.FLEET_PAGE_UPDATE)).status_code == 200
        finally:
            for stream in streams:
                stream.close()


def taint(service: Running, node: str) -> None:
    """The operator's event for a tainted node."""
    now = time.time()
    pairs = {
        attributes.TAINT_ACTION: "add", attributes.TAINT_EFFECT: "NoSchedule", attributes.TAINT_REASON: "Confirmed",
        attributes.TAINT_EVIDENCE: json.dumps({"since": rfc3339(now), "expires": rfc3339(now + 3600)}),
    }  # fmt: skip
    record = {"eventName": metrics.TAINT_EVENT, "timeUnixNano": str(int(now * 1e9)), "attributes": listed(pairs)}
    resource = {"attributes": listed({attributes.NODE_ID: node, attributes.CLUSTER_ID: "c"})}
    request = {"resourceLogs": [{"resource": resource, "scopeLogs": [{"logRecords": [record]}]}]}
    assert web.post(service.url("otlp/http", routes.OTLP_LOGS), json=request).status_code == 200


def listed(pairs: dict[str, str]) -> list[dict[str, Any]]:
    return [{"key": key, "value": {"stringValue": value}} for key, value in pairs.items()]


@pytest.fixture(scope="module")
def started_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def page(started_browser: Browser) -> Iterator[Page]:
    """A tab of its own for each test."""
    with started_browser.page() as found:
        yield found


@pytest.fixture(scope="module")
def twelve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A Fleet that knows twelve nodes."""
    folder = tmp_path_factory.mktemp("fleet")
    nics = [
        {"node": f"node-{number:05d}", "nic": "n0", "gpus": ["GPU0"], "switch": f"leaf-{number % 2}"}
        for number in range(10)
    ]
    (folder / "topology.json").write_text(json.dumps({"nics": nics}))
    change = {
        "processors": {
            "ingero": {"ttl_multiplier": 3000},
            "nccl": {"topology_file": str(folder / "topology.json")},
        }
    }
    with fleet(folder, change) as service:
        learn(service, 12)
        yield service


@needs_browser
def test_people_see_the_straggler_its_reason_its_taint_and_the_late_rank(tmp_path: Path, page: Page) -> None:
    with fleet(tmp_path) as service:
        page.size(1360, 900)
        page.open(service.url("diagnostics", "/"))
        page.wait("document.body.dataset.updates > 0", "the first update")
        assert "ingero-agent fleet-push" in page.run("byId('empty').hidden ? '' : byId('empty').textContent")
        learn(service, 40)
        page.wait("state.rows && state.rows.length === 40 && byId('empty').hidden", "the nodes")
        assert "Nobody straggles" in page.run("byId('stragglers').textContent")
        for body in Job(8, late_ms={5: 5.0}).pushes(60, node="node-0000{}"):
            web.post(service.url("otlp/http", routes.OTLP_METRICS), content=body, headers=PROTOBUF)
        taint(service, "node-00017")
        slow = functools.partial(fill, service, 40, 17)
        page.wait("byId('stragglers').textContent.includes('node-00017')", "the straggler", feed=slow)
        page.wait("byId('collectives').textContent.includes('Rank 5 is late')", "the late rank")

        assert "of its rate" in page.run("byId('stragglers').textContent")
        assert "node-00017" in page.run("byId('announcement').textContent")
        assert "node-00017" in page.run("byId('cost').textContent")
        # No GPU model was reported: its cost is unknown, which is not 0.
        assert "no rate" in page.run("byId('cost').textContent")
        assert "$0.00" not in page.run("byId('cost').tBodies[0].textContent + byId('tiles').textContent")
        page.wait("byId('taints').textContent.includes('node-00017')", "the mark", feed=slow)
        assert "Marked by the operator (NoSchedule" in page.run("byId('stragglers').textContent")
        assert page.run("byId('map').width") > 300
        the_chart_and_the_link_show_the_node(page)
        healthy = functools.partial(fill, service, 40)
        page.wait("!byId('stragglers').textContent.includes('node-00017')", "its recovery", feed=healthy)
        assert page.complaints == []


def the_chart_and_the_link_show_the_node(page: Page) -> None:
    """Select the straggler by its link, group, and reload."""
    assert "node-00000" in page.run("byId('map-names').textContent")
    assert page.run("byId('map-times').children.length") >= 2
    page.run("byId('straggler-c-node-00017').click()")
    events = "[...byId('chart').querySelectorAll('.event')].map((item) => item.dataset.event)"
    page.wait(f"['onset', 'alarm', 'taint'].every((name) => {events}.includes(name))", "the events")
    drawn = "['own', 'expected', 'peers', 'evidence', 'level']"
    assert page.run(f"{drawn}.every((name) => byId('chart').querySelector('.' + name).getAttribute('d').length > 20)")
    assert "of its rate" in page.run("byId('why').textContent")
    assert page.run("byId('map-names').querySelector('.selected').textContent") == "node-00017"
    page.run("(byId('group').value = 'cohort', byId('group').dispatchEvent(new Event('change')))")
    assert page.run("[lines(), byId('map-names').textContent]") == [1, "all (40)"]

    page.run("document.body.dataset.old = '1'")
    page.call("Page.reload")
    again = "document.getElementById('chart-summary')?.textContent.includes('node-00017')"
    page.wait(f"{again} && !document.body.dataset.old", "the node again")
    assert page.run("[state.group, lines(), byId('group').value]") == ["cohort", 1, "cohort"]


@needs_browser
def test_the_page_works_by_keyboard_and_is_named_for_screen_readers(twelve: Running, page: Page) -> None:
    page.size(1360, 900)
    fill(twelve, 12)
    page.open(twelve.url("diagnostics", "/"))
    page.wait("state.rows && state.rows.length === 12", "the nodes")

    order = []
    for _ in range(8):
        page.press("Tab")
        order.append(page.run("document.activeElement.id || document.activeElement.className"))
    assert order[:5] == ["skip", "cluster", "group", "map", "ask-node"]
    page.run("byId('map').focus()")
    page.press("ArrowDown")
    assert "node-00001 (c)" in page.run("byId('readout').textContent")
    page.press("Enter")
    page.wait("byId('why').textContent.includes('its own history and its peers')", "the reason")

    tree = page.call("Accessibility.getFullAXTree")["nodes"]
    named = {
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in tree
        if not node.get("ignored") and "role" in node
    }
    for wanted in (("heading", "ingero Fleet"), ("heading", "Stragglers"), ("combobox", "Cluster"), ("main", "")):
        assert wanted in named, sorted(named)
    interactive = {"button", "textbox", "searchbox", "combobox", "link"}
    assert [pair for pair in named if pair[0] in interactive and not pair[1]] == []
    assert page.run("new Set([...document.querySelectorAll('[id]')].map(e => e.id)).size"
                    " === document.querySelectorAll('[id]').length")  # fmt: skip


@needs_browser
def test_lines_can_be_switches_and_the_address_keeps_it(twelve: Running, page: Page) -> None:
    page.open(twelve.url("diagnostics", "/") + "#by=switch")
    page.wait("document.body.dataset.updates > 0 && state.rows.length === 12", "the nodes")

    names = "[...byId('map-names').children].map((item) => item.textContent)"
    assert page.run(names) == ["leaf-0 (5)", "leaf-1 (5)", "no switch known (2)"]
    assert page.run("[byId('group').value, byId('switches').hidden]") == ["switch", False]
    assert page.run("state.rows.map((row) => Number(state.nodes[row].slice(-2)))") == [
        0,
        2,
        4,
        6,
        8,
        1,
        3,
        5,
        7,
        9,
        10,
        11,
    ]
    assert page.complaints == []


@needs_browser
def test_a_phone_needs_no_sideways_scrolling(twelve: Running, page: Page) -> None:
    page.size(360, 740, phone=True)
    page.open(twelve.url("diagnostics", "/"))
    slow = functools.partial(fill, twelve, 12, 3)
    page.wait("byId('stragglers').textContent.includes('node-00003')", "the straggler", feed=slow)

    assert page.run("document.documentElement.scrollWidth") == 360


@needs_browser
def test_ten_thousand_nodes_are_drawn_and_what_agents_send_is_never_markup(tmp_path: Path, page: Page) -> None:
    change = {"processors": {"ingero": {"push_interval": "1s"}}}
    with fleet(tmp_path, change) as service:
        page.size(1360, 900)
        hostile = "<img src=x onerror=document.title='owned'>"
        content = encode_report(HealthReport(node_id=hostile, cluster_id=hostile, score=0.9)).SerializeToString()
        web.post(service.url("otlp/http", routes.OTLP_METRICS), content=content, headers=PROTOBUF)
        fill(service, 10_000)
        page.open(service.url("diagnostics", "/"))
        page.wait("state.nodes.length === 10_001", "all nodes")
        assert page.run("small.height") == 480
        page.run(f"ask({json.dumps(hostile)}, {json.dumps(hostile)})")
        page.wait("byId('why').textContent.includes('onerror')", "the hostile name as text")
        assert page.run("document.title") == "ingero Fleet"
        # One straggler among the twenty or so nodes of a line is the one that is seen.
        seen = (
            "(() => { const column = state.columns.at(-1).slice(); column[1234] = 50;"
            " return Array.from({length: 480}, (_, line) => worst(column, line)).includes(1234); })()"
        )
        assert page.run(seen)
        assert page.complaints == []


def inked(pixels: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which squares of 20 pixels of a screenshot have edges of lines or letters in them."""
    grey = pixels.mean(axis=2)
    edges = (np.abs(np.diff(grey, axis=0))[:, :-1] > 0.08) | (np.abs(np.diff(grey, axis=1))[:-1] > 0.08)
    height, width = (size // 20 for size in edges.shape)
    squares = edges[: height * 20, : width * 20].reshape(height, 20, width, 20)
    return np.asarray(squares.mean(axis=(1, 3)) > 0.01)


@needs_browser
def test_screenshots_in_light_and_dark_have_the_same_structure(twelve: Running, page: Page, tmp_path: Path) -> None:
    page.size(1360, 900)
    page.open(twelve.url("diagnostics", "/"))
    slow = functools.partial(fill, twelve, 12, 3)
    page.wait("byId('stragglers').textContent.includes('node-00003')", "the straggler", feed=slow)
    page.run("document.activeElement.blur()")
    box = page.run(
        "(({left, top, right, bottom}) => [left, top, right, bottom])(byId('map').getBoundingClientRect())"
    )
    line = page.run("state.rows.findIndex((row) => state.nodes[row] === 'node-00003')")
    kept = []
    for dark in (False, True):
        page.size(1360, 900, dark=dark)
        page.wait(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))", "a frame"
        )
        pixels = page.pixels(tmp_path / f"{'dark' if dark else 'light'}.png")
        left, top, right, bottom = (int(value) for value in box)
        newest_tick = pixels[top:bottom, right - 4]
        colours = newest_tick[[int((number + 0.5) * (bottom - top) / 12) for number in range(12)]]
        warm = colours[:, 0] > colours[:, 2] + 0.2
        assert warm.tolist() == [number == line for number in range(12)], colours
        ground = pixels[-3:, :3].mean()
        assert ground < 0.2 if dark else ground > 0.8
        kept.append(inked(pixels))

    light, dark_one = kept
    assert light.mean() > 0.1
    assert (light == dark_one).mean() > 0.95
    # Each panel in the window has something in it, and none lies on another.
    panels = page.run(
        "[...document.querySelectorAll('main > section:not([hidden]), .columns > section')].map((item) => "
        "item.getBoundingClientRect()).map(({left, top, right, bottom}) => [left, top, right, bottom])"
    )
    for number, (left, top, right, bottom) in enumerate(panels):
        if bottom <= 900 and bottom > top:
            assert light[int(top) // 20 : int(bottom) // 20 + 1, int(left) // 20 : int(right) // 20 + 1].any()
        for others in panels[:number]:
            across = min(right, others[2]) - max(left, others[0])
            down = min(bottom, others[3]) - max(top, others[1])
            assert across <= 0 or down <= 0
    assert page.complaints == []
