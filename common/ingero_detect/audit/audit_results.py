"""What an audit is given and what it says: populations of measurements, findings, and what is told besides. Pure."""

from dataclasses import dataclass

from ingero_detect.audit.audit_tiers import AuditLevel
from ingero_detect.audit.chip_effects import UnitEffects
from ingero_detect.audit.level_changes import LevelChange
from ingero_detect.audit.wrong_values import DoubtfulUnit
from ingero_detect.grouped import Floats, Ints


@dataclass(frozen=True)
class Population:
    """Measurements of units that can be compared. `slowness` (logarithmic), `unit`, `run` (-1: none) by measurement.

    `node` by unit and `group` by node, -1 where it is not known. `rounding`: half of the step that values have,
    relative to them; where their noise is larger it is part of the noise. `of_nodes`: the units are whole nodes, and
    `node` has their groups. `place` in the node by unit, -1 where it is not known.
    """

    name: str
    slowness: Floats
    unit: Ints
    run: Ints
    node: Ints
    group: Ints
    rounding: float = 0.0
    of_nodes: bool = False
    place: Ints | None = None


@dataclass(frozen=True)
class SlowUnit:
    """A finding. `loss` is a share of the usual speed, with a 95 % interval; `members` are the units it concerns.

    Of a node or group: `slow` are those of its `judged` chips or nodes that lose half as much or more. `since`: the
    run from which it is slow, if it was not before.
    """

    population: int
    level: AuditLevel
    number: int
    loss: float
    loss_low: float
    loss_high: float
    chance: float
    adjusted: float
    members: tuple[int, ...]
    slow: tuple[int, ...]
    judged: int
    measurements: int
    chronic: float | None
    since: int | None = None


@dataclass(frozen=True)
class PopulationResult:
    """What was learnt about one population. `refused` is the reason why its chips (or a level) were not judged."""

    name: str
    units: int
    nodes: int
    groups: int
    spread: float
    fit: UnitEffects
    centre: float
    refused: str = ""
    notes: tuple[str, ...] = ()
    apart: tuple[tuple[AuditLevel, int, float], ...] = ()
    """Chips, nodes and groups that are not named, but slower than the rest: level, number and loss."""
    implausible: tuple[tuple[int, float], ...] = ()
    """Chips that are left out because they are too fast: number and by what share."""
    unsteady: tuple[tuple[int, float, float], ...] = ()
    """Chips whose values scatter far more than those of others: number, by what share, and loss."""
    alone: tuple[tuple[int, float], ...] = ()
    """Chips that are slow in their only value, which proves too little: number and loss."""
    later: tuple[tuple[AuditLevel, int, LevelChange], ...] = ()
    """Those that are not named, but have become slower: level, number and since when."""
    recovered: tuple[tuple[int, LevelChange], ...] = ()
    """Chips that were slow before, and are not named."""
    other_level: tuple[int, ...] = ()
    """Chips at a level of their own, if there are two: the fewer ones."""
    places: tuple[tuple[int, float], ...] = ()
    """Places in the nodes whose chips differ from most: number and loss. Chips are compared with those at theirs."""
    doubtful: tuple[DoubtfulUnit, ...] = ()
    """Chips and nodes whose only value is so slow that it may be wrong: not judged, and to be measured again."""


@dataclass(frozen=True)
class AuditResult:
    """Findings, the largest loss first, and the populations in the order in which they were given."""

    findings: tuple[SlowUnit, ...]
    populations: tuple[PopulationResult, ...]
    hypotheses: int
