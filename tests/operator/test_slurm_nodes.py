"""What `scontrol` prints, as facts for the policy checks; and the reason by which a drain of ours is recognised."""

import pytest

from ingero_operator.slurm.nodes import (
    SlurmNode,
    UnreadableNodes,
    drain_reason,
    parse_slurm_nodes,
    read_drain,
    slurm_node_view,
)
from ingero_operator.taints.nodes import NodeView, StragglerTaint, moment

RECORDED = (
    "NodeName=n1 Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=2 CPUTot=2 CPULoad=5.77 AvailableFeatures=a,b "
    "ActiveFeatures=a,b Gres=gpu:h100:8(S:0-1),nvme:1 NodeAddr=127.0.0.1 NodeHostName=vm Port=16821 Version=22.05.8 "
    "OS=Linux 6.18.44 #1 SMP State=PREEMPT_DYNAMIC @0  RealMemory=1 AllocMem=0 FreeMem=13153 Sockets=2 Boards=1 "
    "State=MIXED+DRAIN ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=p,gpu  "
    "BootTime=2026-11-22T18:27:08 SlurmdStartTime=2026-11-23T04:47:33 LastBusyTime=2026-11-23T04:47:34 "
    "ExtSensorsTemp=n/s Reason=ingero[prod] 0a1b2c3d until 2026-11-24T04:00:00Z: slow, 41% lost, 6 windows "
    "[root@2026-11-23T04:48:13]"
).replace("State=PREEMPT_DYNAMIC", "PREEMPT_DYNAMIC")
UNKNOWN = (
    "NodeName=n3 CoresPerSocket=1  CPUAlloc=0 ActiveFeatures=(null) Gres=(null) State=UNKNOWN Partitions=p  "
    "BootTime=None SlurmdStartTime=None"
)


def parsed(line: str) -> SlurmNode:
    (node,) = parse_slurm_nodes(line + "\n")
    return node


def view(state: str = "IDLE", reason: str = "", **fields: str) -> NodeView:
    more = "".join(f" {name}={value}" for name, value in fields.items())
    why = f" Reason={reason} [root@2026-11-23T04:00:00]" if reason else ""
    return slurm_node_view(parsed(f"NodeName=n1 State={state}{more}{why}"), needs_gpu=True, excluded=frozenset())


def test_a_recorded_node() -> None:
    node = parsed(RECORDED)

    assert (node.name, node.state, node.flags) == ("n1", "MIXED", frozenset({"DRAIN"}))
    assert (node.partitions, node.features) == (frozenset({"p", "gpu"}), frozenset({"a", "b"}))
    assert (node.booted, node.reason_at) == (moment("2026-11-22T18:27:08Z"), moment("2026-11-23T04:48:13Z"))
    assert (node.reason_user, node.gres) == ("root", "gpu:h100:8(S:0-1),nvme:1")


def test_our_drain_is_read_back_from_the_reason() -> None:
    assert read_drain(parsed(RECORDED)) == StragglerTaint(
        owner="prod", verdict="0a1b2c3d", effect="PreferNoSchedule", since=moment("2026-11-23T04:48:13Z"),
        expires=moment("2026-11-24T04:00:00Z"), node_uid="n1",
    )  # fmt: skip


def test_what_is_written_is_what_is_read_and_nothing_in_it_ends_the_reason_early() -> None:
    taint = StragglerTaint(
        owner="prod", verdict="0a1b2c3d", effect="PreferNoSchedule", since=0.0, expires=1_800_000_000.0, node_uid="n1"
    )
    reason = drain_reason("prod", taint, 'slow [x@y]"\n' + "z" * 500)
    found = read_drain(parsed(f"NodeName=n1 State=IDLE+DRAIN Reason={reason} [root@2026-11-23T04:00:00]"))

    assert found is not None and (found.verdict, found.expires) == ("0a1b2c3d", 1_800_000_000.0)
    assert len(reason) < 250


@pytest.mark.parametrize(
    "reason",
    [
        "broken fan", "ingero", "ingero[prod] 0a1b2c3d", "ingero[prod] 0A1B2C3D until 2026-11-24T04:00:00Z: x",
        "not ingero[prod] 0a1b2c3d until 2026-11-24T04:00:00Z: x", "ingero[] 0a1b2c3d until 2026: x",
    ],
)  # fmt: skip
def test_a_drain_of_somebody_else_is_not_ours(reason: str) -> None:
    node = view("IDLE+DRAIN", reason, Gres="gpu:8")

    assert node.taint is None and node.cordoned


def test_our_reason_without_a_drain_is_no_drain() -> None:
    assert view("DOWN", "ingero[prod] 0a1b2c3d until 2026-11-24T04:00:00Z: x").taint is None


@pytest.mark.parametrize("state", ["IDLE", "ALLOCATED", "MIXED", "COMPLETING", "IDLE+PLANNED", "ALLOCATED+RESERVED"])
def test_states_in_which_a_node_is_ready(state: str) -> None:
    assert view(state).ready


@pytest.mark.parametrize(
    "state",
    ["DOWN", "DOWN*", "IDLE*", "UNKNOWN", "IDLE+NOT_RESPONDING", "FUTURE", "ERROR", "IDLE+FAIL", "DOWN+DRAIN"],
)
def test_states_in_which_it_is_not(state: str) -> None:
    assert not view(state).ready


@pytest.mark.parametrize("flag", ["REBOOT_REQUESTED", "POWERING_DOWN", "MAINTENANCE"])
def test_a_node_that_is_about_to_leave(flag: str) -> None:
    assert view(f"IDLE+{flag}").disrupted == flag


def test_gpus_and_exclusions() -> None:
    excluded = slurm_node_view(parsed(RECORDED), needs_gpu=True, excluded=frozenset({"n1"}))

    assert excluded.excluded and excluded.gpu
    assert view(ActiveFeatures="a,ingero-exclude").excluded
    assert not view(Gres="(null)").gpu
    assert not view(Gres="nvme:1").gpu
    assert slurm_node_view(parsed(UNKNOWN), needs_gpu=False, excluded=frozenset()).gpu
    assert slurm_node_view(parsed(UNKNOWN), needs_gpu=False, excluded=frozenset()).created == 0


@pytest.mark.parametrize("text", ["rubbish", "NodeName=n1", "State=IDLE", "NodeName=n[1-3] State=IDLE"])
def test_what_cannot_be_read_is_an_error_with_its_beginning(text: str) -> None:
    with pytest.raises(UnreadableNodes, match=text[:8].replace("[", ".")):
        parse_slurm_nodes(text)
