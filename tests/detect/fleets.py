"""Small fleets for tests of the detector: rates over ticks in, edges out."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ingero_contract.identifiers import node_key
from ingero_detect.nodes.detector import Detector
from ingero_detect.nodes.observation import ABSENT, ACTIVE, IDLE, Edge, JobSlow, Observation
from ingero_detect.nodes.parameters import Parameters

TICK = 5.0

Matrix = npt.NDArray[np.float64]


def healthy(ticks: int, nodes: int, seed: int = 1, noise: float = 0.03) -> npt.NDArray[np.float64]:
    """Rates around 100, (ticks, nodes)."""
    return np.asarray(100 * np.exp(noise * np.random.default_rng(seed).normal(size=(ticks, nodes))))


@dataclass
class Played:
    """What happened, tick by tick."""

    detector: Detector
    edges: list[tuple[int, Edge]] = field(default_factory=list)
    jobs: list[tuple[int, JobSlow]] = field(default_factory=list)
    digest: str = ""

    def accused(self) -> list[tuple[int, str]]:
        """(tick, node) of every accusation."""
        return [(tick, edge.verdict.node) for tick, edge in self.edges if edge.what == "accused"]

    def whats(self, node: str) -> list[str]:
        """The edges of one node."""
        return [edge.what for _, edge in self.edges if edge.verdict.node == node]


def play(
    rates: npt.NDArray[np.float64],
    *,
    idle: npt.NDArray[np.bool_] | None = None,
    cohorts: Sequence[tuple[str, ...]] | None = None,
    cohort: npt.NDArray[np.int64] | None = None,
    detector: Detector | None = None,
    first: int = 0,
    echo: dict[int, float] | None = None,
    seconds: float = TICK,
    **parameters: float,
) -> Played:
    """Run a detector over rates, a tick every so many `seconds`; NaN is a node that says nothing."""
    nodes = rates.shape[1]
    names = [node_key("c", f"n{number}") for number in range(nodes)]
    played = Played(detector or Detector(Parameters(tick_seconds=seconds, **parameters)))  # type: ignore[arg-type]
    for tick in range(first, first + len(rates)):
        value = rates[tick - first]
        state = np.where(np.isnan(value), ABSENT, ACTIVE).astype(np.uint8)
        if idle is not None:
            state[idle[tick - first]] = IDLE
        seen = Observation(
            names,
            np.zeros(nodes, np.int64) if cohort is None else cohort,
            list(cohorts or [("c", "")]),
            value,
            state,
            (echo or {}) if tick == first else {},
        )
        outcome = played.detector.tick(1000 + tick * seconds, seen)
        played.edges += [(tick, edge) for edge in outcome.edges]
        played.jobs += [(tick, job) for job in outcome.jobs]
        played.digest = outcome.digest
    return played


def play_side_by_side(
    histories: Sequence[npt.NDArray[np.float64]],
    *,
    idle: Sequence[npt.NDArray[np.bool_]] | None = None,
    seconds: float = TICK,
    **parameters: float,
) -> list[Played]:
    """What happened in each of some histories of equal length, as `play` finds it; they share the detector.

    Each is a cohort of its own: others change nothing for it, and a tick of all costs little more than that of one.
    In the detector, the nodes of the first come first, and its group is the first one.
    """
    sizes = [rates.shape[1] for rates in histories]
    cohort, first = np.repeat(np.arange(len(sizes)), sizes), np.cumsum([0, *sizes])
    whole = play(
        np.concatenate(histories, axis=1),
        idle=None if idle is None else np.concatenate(idle, axis=1),
        cohorts=[("c", f"job-{one}") for one in range(len(sizes))],
        cohort=cohort,
        detector=Detector(Parameters(tick_seconds=seconds, **parameters)),  # type: ignore[arg-type]
        seconds=seconds,
    )
    found = [Played(whole.detector) for _ in sizes]
    for tick, edge in whole.edges:
        number = int(edge.verdict.node[1:])
        one = int(cohort[number])
        edge = replace(edge, verdict=replace(edge.verdict, node=f"n{number - first[one]}"))
        found[one].edges.append((tick, edge))
    return found


def play_each(histories: Sequence[npt.NDArray[np.float64]], **parameters: float) -> list[list[tuple[int, str]]]:
    """(tick, node) of every accusation in each of some histories of equal length, as `play` finds them."""
    return [one.accused() for one in play_side_by_side(histories, **parameters)]  # type: ignore[arg-type]
