"""The unpickler of plain data: it reads what pickle writes of such data, and nothing that could do anything."""

import math
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ingero_analyze.diagnose.plain_pickle import MAX_DEPTH, UnsafePickleError, load_plain_pickle

SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text()
KEYS = st.text() | st.integers(-(2**40), 2**40) | st.none()


def nested(scalars: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner) | st.tuples(inner),
        max_leaves=30,
    )


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


@given(nested(SCALARS | st.binary(max_size=300)), st.integers(3, 5))
def test_plain_data_comes_back_as_pickle_wrote_it(value: Any, protocol: int) -> None:
    assert same(load_plain_pickle(pickle.dumps(value, protocol)), value)


@given(nested(SCALARS))
def test_plain_data_of_protocol_2_comes_back_too(value: Any) -> None:
    assert same(load_plain_pickle(pickle.dumps(value, 2)), value)


def test_bytes_of_protocol_2_are_refused_because_they_need_a_call() -> None:
    with pytest.raises(UnsafePickleError, match="GLOBAL"):
        load_plain_pickle(pickle.dumps(b"x", 2))


class Runs:
    """Runs a command when a careless reader opens it."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_pickle_that_would_run_a_command_is_refused_and_runs_nothing(tmp_path: Path, protocol: int) -> None:
    marker = tmp_path / "ran"
    data = pickle.dumps({"entries": [Runs(f"touch {marker}")], "version": "2.5"}, protocol)

    with pytest.raises(UnsafePickleError, match="byte"):
        load_plain_pickle(data)

    assert not marker.exists()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        pytest.param(b"cos\nsystem\n.", "GLOBAL is no operation", id="global"),
        pytest.param(b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "STACK_GLOBAL", id="stack global"),
        pytest.param(b"\x80\x02]]R.", "REDUCE", id="reduce"),
        pytest.param(b"\x80\x02]]\x81.", "NEWOBJ", id="newobj"),
        pytest.param(b"\x80\x02]}b.", "BUILD", id="build"),
        pytest.param(b"(ios\nsystem\n.", "INST", id="inst"),
        pytest.param(b"\x80\x02\x82\x01.", "EXT1", id="extension"),
        pytest.param(b"Pname\n.", "PERSID", id="persistent id"),
        pytest.param(b"\x80\x05\x97.", "NEXT_BUFFER", id="buffer"),
        pytest.param(b"\x80\x02\xff.", "0xff", id="no operation"),
        pytest.param(b"\x80\x02\x8b\xff\xff\xff\x7f.", "LONG4", id="long integer"),
        pytest.param(b"\x80\x02\x8a\xff" + b"\1" * 255 + b".", "an integer of more than 64 bits", id="wide integer"),
        pytest.param(b"\x80\x02X\xff\xff\xff\xff.", "ends too early", id="text claim"),
        pytest.param(b"\x80\x04\x8e" + b"\xff" * 8 + b".", "exceeds", id="bytes claim"),
        pytest.param(b"\x80\x04\x8d" + b"\xff" * 8 + b".", "exceeds", id="long text claim"),
        pytest.param(b"\x80\x09N.", "pickle protocol: 9", id="protocol"),
        pytest.param(b"\x80\x02]r\xff\xff\xff\xff", "ends too early", id="memo bomb"),
        pytest.param(b"\x80\x02h\x05.", "not found at index 5", id="unknown memo"),
        pytest.param(b"\x80\x02.", "pop from empty list", id="empty"),
        pytest.param(b"", "ends too early", id="nothing"),
        pytest.param(b"\x80\x02NN.", "left over", id="two values"),
        pytest.param(b"\x80\x02}(]Nu.", "a list is no key", id="list as key"),
        pytest.param(b"\x80\x02}(Nu.", "no valid pickle", id="odd dictionary"),
        pytest.param(b"\x80\x02Ne.", "no valid pickle", id="no mark"),
        pytest.param(b"\x80\x02N(Ne.", "no valid pickle", id="append to nothing"),
        pytest.param(b"\x80\x02((.", "no valid pickle|left over", id="marks"),
        pytest.param(b"\x80\x02X\x01\0\0\0\xff.", "utf-8", id="not text"),
        pytest.param(b"\x80\x02J\0\0.", "no valid pickle"),
    ],
)
def test_hostile_pickles_are_refused_by_name_and_place(data: bytes, words: str) -> None:
    with pytest.raises(UnsafePickleError, match=words) as refused:
        load_plain_pickle(data)

    assert str(refused.value).startswith("byte ")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".", id="lists"),
        pytest.param(b"\x80\x02N" + b"\x85" * 100_000 + b".", id="tuples"),
        pytest.param(b"\x80\x02}" + b"N}" * 100_000 + b"s" * 100_000 + b".", id="dictionaries"),
    ],
)
def test_deep_nesting_is_refused(data: bytes) -> None:
    with pytest.raises(UnsafePickleError, match=f"more than {MAX_DEPTH} containers"):
        load_plain_pickle(data)


def test_a_tower_of_references_costs_no_more_than_its_bytes() -> None:
    tower: Any = ["ha"]
    for _ in range(40):
        tower = [tower] * 10

    found = load_plain_pickle(pickle.dumps(tower, 2))

    assert len(found) == 10
    assert found[0] is found[9]


def test_a_list_that_holds_itself_is_read_and_ends() -> None:
    ring: list[Any] = []
    ring.append(ring)

    found = load_plain_pickle(pickle.dumps(ring, 2))

    assert found[0] is found


def test_the_number_of_operations_is_bounded() -> None:
    with pytest.raises(UnsafePickleError, match="more than 1000 operations"):
        load_plain_pickle(b"\x80\x02" + b"N0" * 1000 + b".", max_steps=1000)


@given(st.binary(max_size=200), st.integers(0, 10**6), st.binary(min_size=1, max_size=4))
@example(b"\x80\x02]q\0(K\1h\0e.", 3, b"(")
def test_whatever_the_bytes_either_a_value_or_a_refusal_comes_back(data: bytes, place: int, patch: bytes) -> None:
    good = pickle.dumps({"version": "2.5", "entries": [{"a": (1, 2.0, None), "b": ["x", True]}]}, 2)
    at = place % len(good)

    for case in (data, b"\x80\x02" + data, good[:at] + patch + good[at + len(patch) :], good[:at]):
        try:
            load_plain_pickle(case)
        except UnsafePickleError as error:
            assert str(error).startswith("byte ")
