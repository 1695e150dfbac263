"""Adds to a verdict the hosts of its ranks, and says where they are all ranks of a host. Pure."""

from collections.abc import Mapping
from typing import Any


def with_hosts(answer: dict[str, Any], hosts: Mapping[str, str]) -> dict[str, Any]:
    """The verdict with the host of each named rank (`nodes`), from the host of every rank by its name.

    `hosts` in the evidence are those all of whose ranks, two or more, and nobody else are the named ones, or else the
    possible ones or those of an uneven stage: what they share may be slow.
    """
    evidence = answer["evidence"]
    named = {str(rank): hosts[str(rank)] for rank in answer["ranks"] if str(rank) in hosts}
    listed = answer["ranks"] or evidence.get("possible") or evidence.get("stage_ranks") or ()
    suspects = set(map(str, listed))
    slow = sorted({hosts[rank] for rank in suspects & hosts.keys()})
    members = {rank for rank, host in hosts.items() if host in slow}
    shared = suspects == members < hosts.keys() and len(members) > len(slow)
    found = {"nodes": named, "hosts": slow if shared else []}
    return {**answer, "evidence": {**evidence, **{name: value for name, value in found.items() if value}}}
