"""Started again and again: what was written is there, whether the process before ended in order or was killed."""

import multiprocessing
import random
import shutil
from multiprocessing.connection import Connection
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from ingero_echo.cli import main
from ingero_echo.database_file import LOGS, StoreError, last_block
from ingero_echo.settings import StoreConfig
from ingero_echo.store import Store
from ingero_echo.wal import uncommitted_tail
from ingero_testing.store_lives import Held, held, live_in_order, live_until_killed

ORDERLY, KILLED, LIVES = 104, 100, 20
"""Lives of both kinds, and those of one store that is killed. A store whose file a checkpoint has cut shorter comes
up about once in ten."""


def test_stopped_and_started_a_hundred_times_it_holds_what_was_written(tmp_path: Path) -> None:
    shorter = 0
    for number in range(8):
        dice, path, there = random.Random(number), tmp_path / f"{number}.duckdb", Held()
        for _ in range(ORDERLY // 8):
            there = live_in_order(path, there, dice)
            with duckdb.connect(str(path)) as engine:
                block, total = engine.execute(
                    "SELECT block_size, total_blocks FROM pragma_database_size()"
                ).fetchall()[0]
                shorter += path.stat().st_size < block * total
        path.unlink()
    assert shorter > 0  # the state that has to be channel from a damaged file did come up


def killed_once(path: Path, seed: int) -> tuple[Held, Held, Held]:
    """What a life found, what was acknowledged as written, and what it may have written besides."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ingero_echo.export", "ingero_echo.retention", "ingero_echo.writer"])
    ours, theirs = context.Pipe(duplex=False)
    life = context.Process(target=live_until_killed, args=(path, seed, theirs), daemon=True)
    life.start()
    theirs.close()
    try:
        return _listen(ours, life, random.Random(-seed).randrange(1, 6))
    finally:
        life.kill()
        life.join()


def _listen(channel: Connection, life: multiprocessing.process.BaseProcess, max_wait: int) -> tuple[Held, Held, Held]:
    def hear() -> object:
        assert channel.poll(90), "the store says nothing"
        return channel.recv()

    found, written, begun = hear(), Held(), Held()
    assert isinstance(found, dict)
    for _ in range(max_wait):
        match hear():
            case (str(name), int(size)):
                begun[name] = size
            case str(name):
                written[name] = begun.pop(name)
    life.kill()
    life.join()
    while channel.poll():
        try:
            more = channel.recv()
        except EOFError:
            break
        if isinstance(more, tuple):
            begun[more[0]] = more[1]
        else:
            written[more] = begun.pop(more)
    return found, written, begun


@pytest.mark.parametrize("store", range(KILLED // LIVES))
def test_killed_and_started_again_and_again_it_holds_what_was_acknowledged_and_no_half_batch(
    tmp_path: Path, store: int
) -> None:
    path, sure, perhaps = tmp_path / "store.duckdb", Held(), Held()
    for life in range(LIVES):
        found, written, begun = killed_once(path, 1000 * store + life)
        assert sure.items() <= found.items()
        assert found.items() <= (sure | perhaps).items()
        sure, perhaps = found | written, begun
    last = Store.open(StoreConfig(path=path))
    assert sure.items() <= held(last).items()
    last.close()


def contents(path: Path) -> dict[str, bytes]:
    return {
        suffix: file.read_bytes() for suffix in ("", *LOGS) if (file := path.with_name(path.name + suffix)).exists()
    }


def used(path: Path) -> Path:
    """A store that was killed: its file holds freed blocks and live ones, its log a few batches."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for number in range(3):
        there = held_by(path) if path.exists() else Held()
        live_in_order(path, there, random.Random(number))
    killed_once(path, 7)
    return path


def held_by(path: Path) -> Held:
    store = Store.open(StoreConfig(path=path))
    try:
        return held(store)
    finally:
        store.close()


def test_every_block_in_use_is_known(tmp_path: Path) -> None:
    path = tmp_path / "e.duckdb"
    there = Held()
    for number in range(5):
        there = live_in_order(path, there, random.Random(number))
        with duckdb.connect(str(path)) as engine:
            total, free = engine.execute("SELECT total_blocks, free_blocks FROM pragma_database_size()").fetchall()[0]
            assert total - free - 1 <= last_block(engine) < total


def test_a_file_that_was_cut_is_refused_wherever_it_was_cut_and_the_advice_destroys_nothing(tmp_path: Path) -> None:
    path = used(tmp_path / "e.duckdb")
    store = Store.open(StoreConfig(path=path))
    store.copy(tmp_path / "backup.duckdb")
    there = held(store)
    store.close()
    with duckdb.connect(str(path)) as engine:
        needed = 3 * 4096 + (last_block(engine) + 1) * 262_144
    killed_once(path, 8)
    logged_too = held_by_copy(path, tmp_path / "copied/e.duckdb")
    whole = contents(path)
    for size in (5_000, 12_288, needed // 3, needed // 2, needed - 262_144, needed - 1):
        path.write_bytes(whole[""][:size])
        before = contents(path)

        with pytest.raises(StoreError, match=r"it ends in the middle|cannot be read") as refused:
            Store.open(StoreConfig(path=path))

        assert contents(path) == before
        assert "Nothing was changed" in str(refused.value)
    assert "restore BACKUP --database" in str(refused.value)
    assert "--force" in str(refused.value)
    for number in ("", ".2"):  # the advice, followed twice
        before = contents(path)
        arguments = ["restore", str(tmp_path / "backup.duckdb"), "--database", str(path), "--force"]
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, done.output
        assert contents(path.with_name(f"{path.name}.before-restore{number}")) == before
        assert held_by(path) == there
    assert logged_too.items() >= there.items()


def test_a_file_that_is_no_backup_is_named_and_changes_nothing(tmp_path: Path) -> None:
    backup, path = tmp_path / "backup.duckdb", tmp_path / "e.duckdb"
    backup.write_bytes(b"no database" * 1000)
    path.write_bytes(b"present")

    done = CliRunner().invoke(main, ["restore", str(backup), "--database", str(path), "--force"])

    assert done.exit_code == 1
    assert f"{backup}: no database, or damaged" in done.output
    assert ".part" not in done.output
    assert path.read_bytes() == b"present"


def held_by_copy(path: Path, copy: Path) -> Held:
    copy.parent.mkdir(parents=True, exist_ok=True)
    for suffix, content in contents(path).items():
        copy.with_name(copy.name + suffix).write_bytes(content)
    return held_by(copy)


@pytest.mark.parametrize("tail", [b"", bytes(5_000), b"rubbish!" * 99, None], ids=["none", "zeros", "rubbish", "cut"])
def test_what_a_damaged_end_of_the_log_loses_is_reported(tmp_path: Path, tail: bytes | None) -> None:
    path = tmp_path / "e.duckdb"
    whole, log = logged(path), path.with_name("e.duckdb.wal")
    log.write_bytes(whole[:-7] if tail is None else whole + tail)

    left = uncommitted_tail(log.read_bytes())
    with capture_logs() as said:
        held_by(path)

    assert left == len(tail) if tail is not None else left
    assert ("log_tail_left_out" in {line["event"] for line in said}) == bool(left)


def logged(path: Path) -> bytes:
    """The log of a store after twenty transactions of two inserts, none of them folded in."""
    Store.open(StoreConfig(path=path)).close()
    with duckdb.connect(str(path)) as engine:
        engine.execute("PRAGMA disable_checkpoint_on_shutdown")
        engine.execute("CREATE TABLE rows_of_log (number INTEGER)")
        for number in range(20):
            engine.execute("BEGIN")
            engine.execute("INSERT INTO rows_of_log VALUES (?)", [number])
            engine.execute("INSERT INTO rows_of_log VALUES (?)", [number])
            engine.execute("COMMIT")
    return path.with_name("e.duckdb.wal").read_bytes()


def test_the_end_of_the_log_is_read_as_the_engine_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "e.duckdb"
    log = logged(path)
    copied = tmp_path / "copied.duckdb"
    for size in range(len(log) // 2, len(log), 131):
        shutil.copyfile(path, copied)
        copied.with_name("copied.duckdb.wal").write_bytes(log[:size])
        left = uncommitted_tail(log[:size])
        assert left is not None
        with duckdb.connect(str(copied)) as engine:
            engine.execute("PRAGMA disable_checkpoint_on_shutdown")
            rows = engine.execute("SELECT count(*) FROM rows_of_log").fetchall()
        copied.with_name("copied.duckdb.wal").write_bytes(log[: size - left])
        with duckdb.connect(str(copied)) as engine:
            assert engine.execute("SELECT count(*) FROM rows_of_log").fetchall() == rows
        assert uncommitted_tail(log[: size - left]) == 0


def test_a_log_that_is_damaged_in_the_middle_is_refused_and_the_advice_gives_back_what_was_folded_in(
    tmp_path: Path,
) -> None:
    path = tmp_path / "e.duckdb"
    there = live_in_order(path, Held(), random.Random(1))
    content = bytearray(logged(path))
    content[content.index(b"rows_of_log")] ^= 0xFF
    log = path.with_name("e.duckdb.wal")
    log.write_bytes(content)
    before = contents(path)

    with pytest.raises(StoreError, match="the log of the database is damaged") as refused:
        Store.open(StoreConfig(path=path))

    assert contents(path) == before
    assert f"Move {log}* to another place and keep it" in str(refused.value)
    log.rename(tmp_path / "kept.wal")
    assert held_by(path) == there
