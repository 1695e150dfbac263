"""Every command of the agent and the sink reads its settings in one order: flag, variable, file, default."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from ingero_agent.cli import main
from ingero_agent.settings import read_settings as read_push_settings
from ingero_agent.trace.settings import TraceSettings, parse_byte_size, read_settings
from ingero_kit.settings import SettingsError
from ingero_sink.settings import read_settings as read_sink_settings

FILE = """
fleet_endpoint: fleet:4318
fleet_cluster_id: lab
stub: true
trace:
  db: /data/trace.db
  budget: 0.01
  keep: 2d
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "agent.yaml"
    path.write_text(FILE)
    return path


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGERO_AGENT_TRACE_BUDGET", "0.02")
    monkeypatch.setenv("INGERO_AGENT_TRACE_KEEP", "3d")

    found = read_settings({"keep": "4d", "period": None}, file)

    assert (found.keep, found.budget, found.db, found.period) == (4 * 86400, 0.02, Path("/data/trace.db"), 1.0)


def test_one_file_serves_both_commands(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGERO_AGENT_TRACE_DB", "/elsewhere.db")

    assert read_push_settings({}, file).fleet_cluster_id == "lab"
    assert read_settings({}, file).db == Path("/elsewhere.db")


def test_the_commands_over_the_trace_find_its_database(file: Path) -> None:
    done = CliRunner().invoke(main, ["query"], env={"INGERO_AGENT_CONFIG": str(file)})

    assert done.exit_code == 1
    assert "/data/trace.db" in done.stderr


def test_a_wrong_section_and_an_unknown_setting_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("trace: much")
    with pytest.raises(SettingsError, match="trace: a mapping was expected"):
        read_settings({}, path)

    monkeypatch.setenv("INGERO_AGENT_TRACE_BUGDET", "1")
    with pytest.raises(SettingsError, match="INGERO_AGENT_TRACE_BUGDET: bugdet: no such setting"):
        read_settings({})


def test_a_rank_needs_the_number_of_nodes() -> None:
    flags = {"stub": True, "fleet_endpoint": "fleet:4318", "fleet_cluster_id": "lab", "fleet_node_rank": 2}

    with pytest.raises(SettingsError, match="fleet_node_rank needs fleet_world_size"):
        read_push_settings(flags)

    assert read_push_settings({**flags, "fleet_world_size": 3}).fleet_node_rank == 2


@pytest.mark.parametrize(
    ("text", "size"),
    [("100", 100), ("1k", 1024), ("500m", 500 * 2**20), ("10g", 10 * 2**30), ("1.5GiB", 3 * 2**29), ("2TB", 2**41)],
)
def test_a_size_is_written_as_people_write_it(text: str, size: int) -> None:
    assert parse_byte_size(text) == size
    assert TraceSettings(max_db=text).max_db == size  # type: ignore[arg-type]


def test_a_size_that_is_none_is_named() -> None:
    done = CliRunner().invoke(main, ["trace", "--max-db", "much"])

    assert done.exit_code == 2
    assert "--max-db: max_db: a size such as 500m or 10g was expected" in done.stderr


def test_the_sink_reads_flags_variables_and_a_file_in_the_same_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sink.yaml"
    path.write_text("listen: :1\nreadiness_window: 5s\nmax_tracked_nodes: 7")
    monkeypatch.setenv("INGERO_SINK_SOCKET_PATHS", "/a.sock:/b.sock")
    monkeypatch.setenv("INGERO_SINK_LISTEN", ":2")

    found = read_sink_settings({"readiness_window": "6s"}, path)

    assert (found.listen, found.readiness_window, found.max_tracked_nodes) == (":2", 6.0, 7)
    assert found.socket_paths == (Path("/a.sock"), Path("/b.sock"))
    assert read_sink_settings({"socket_paths": ("/c.sock",)}).socket_paths == (Path("/c.sock"),)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--watch-command", "["], "watch_command: [: unterminated"),
        (["--watch-pid", "-5"], "greater than 0 (got '-5')"),
    ],
)
def test_a_workload_that_cannot_be_watched_is_refused(flags: list[str], words: str) -> None:
    needed = ["--fleet-endpoint", "localhost:1", "--fleet-cluster-id", "c"]

    done = CliRunner().invoke(main, ["fleet-push", *needed, *flags])

    assert done.exit_code == 2
    assert words in done.stderr


def pushing(**flags: str) -> str:
    return read_push_settings({"fleet_cluster_id": "c", "stub": True, **flags}).fleet_endpoint


def test_the_published_agents_file_gives_the_endpoint_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ingero.yaml").write_text("fleet: {endpoint: 'here:4318', nodes: [a]}\nhealth: {x: 1}\n")
    own = tmp_path / "agent.yaml"
    own.write_text("fleet_endpoint: own:4318\nfleet_cluster_id: c\nstub: true\n")

    assert pushing() == "here:4318"
    (tmp_path / "named.yaml").write_text("fleet: {endpoint: 'named:4318'}\n")
    monkeypatch.setenv("INGERO_CONFIG", str(tmp_path / "named.yaml"))
    assert pushing() == "named:4318"
    assert read_push_settings({}, own).fleet_endpoint == "own:4318"
    monkeypatch.setenv("INGERO_AGENT_FLEET_ENDPOINT", "variable:4318")
    assert read_push_settings({}, own).fleet_endpoint == "variable:4318"
    assert pushing(fleet_endpoint="flag:4318") == "flag:4318"


@pytest.mark.parametrize("text", ["", "otlp: {endpoint: 'x:1'}\n", "fleet: {nodes: [a]}\n", "fleet:\n"])
def test_without_an_endpoint_in_it_one_is_required(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ingero.yaml").write_text(text)

    with pytest.raises(SettingsError, match=r"fleet_endpoint: is required( \(--fleet-endpoint\))?$"):
        pushing()


@pytest.mark.parametrize("text", ["fleet: {endpoint: 4318}\n", "fleet: here\n", "- fleet\n"])
def test_a_wrong_endpoint_in_it_is_named_with_its_file(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ingero.yaml").write_text(text)

    with pytest.raises(SettingsError, match=r"ingero\.yaml: "):
        pushing()


@pytest.mark.parametrize("given", ["fleet_tls_cert", "fleet_tls_key"])
def test_half_a_client_certificate_is_refused(file: Path, given: str) -> None:
    with pytest.raises(SettingsError, match="fleet_tls_cert and fleet_tls_key go together"):
        read_push_settings({given: "x.pem"}, file)
