"""Simulated signals, constant or from a scenario file, to try Fleet and the operator without a workload."""

from pathlib import Path

from pydantic import Field, TypeAdapter, ValidationError

from ingero_agent.health.signals import SignalReading
from ingero_agent.sources import ReadFailed
from ingero_kit.settings import Duration, Settings, SettingsError, read_yaml


class Stage(Settings):
    """One stage of a scenario."""

    seconds: Duration = Field(gt=0)
    """How long it lasts; the last stage goes on for ever."""
    launches_per_second: float = Field(default=100.0, ge=0)
    """Work rate."""
    compute: float = Field(default=0.9, ge=0, le=1)
    """Compute efficiency."""
    memory: float = Field(default=0.9, ge=0, le=1)
    """Memory headroom."""
    cpu: float = Field(default=0.9, ge=0, le=1)
    """CPU availability."""
    fail: bool = False
    """Every poll fails."""


class ScriptedSource:
    """Plays stages one after the other, from the first poll on."""

    def __init__(self, stages: list[Stage]) -> None:
        self._stages = stages
        self._started: float | None = None

    @classmethod
    def constant(cls) -> "ScriptedSource":
        """The published stub: 100 launches a second, everything else 0.9."""
        return cls([Stage(seconds=1.0)])

    @classmethod
    def from_file(cls, file: Path) -> "ScriptedSource":
        """Read `stages:`, a list of stages. Raises `SettingsError` naming what does not fit."""
        tree = read_yaml(file)
        try:
            stages = TypeAdapter(list[Stage]).validate_python(tree.get("stages"))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            path = ".".join(str(part) for part in ("stages", *first["loc"]))
            raise SettingsError(f"{file}: {path}: {first['msg']}") from None
        if not stages:
            raise SettingsError(f"{file}: stages: at least one is needed")
        return cls(stages)

    def pids(self) -> tuple[int, ...]:
        """None: the signals are made up."""
        return ()

    def read(self, now: float) -> SignalReading:
        """The stage that `now` falls into."""
        if self._started is None:
            self._started = now
        left = now - self._started
        for stage in self._stages:
            if left < stage.seconds:
                break
            left -= stage.seconds
        else:
            stage = self._stages[-1]
        if stage.fail:
            raise ReadFailed("the scenario says that this poll fails")
        return SignalReading(
            rate=stage.launches_per_second,
            compute=stage.compute,
            memory=stage.memory,
            cpu=stage.cpu,
            launches=round(stage.launches_per_second),
        )


class FollowedScript:
    """Plays a scenario file from its first stage whenever it changes, and the published stub while there is none."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seen: tuple[int, int, int] | None = None
        self._source = ScriptedSource.constant()
        self._problem = ""

    def pids(self) -> tuple[int, ...]:
        """None: the signals are made up."""
        return ()

    def read(self, now: float) -> SignalReading:
        """The stage that `now` falls into. Raises `ReadFailed` while the file makes no sense."""
        try:
            found = self._file.stat()
            seen = (found.st_ino, found.st_mtime_ns, found.st_size)
        except OSError:
            seen = None
        if seen != self._seen:
            self._seen, self._problem = seen, ""
            try:
                self._source = ScriptedSource.from_file(self._file) if seen else ScriptedSource.constant()
            except SettingsError as error:
                self._problem = str(error)
        if self._problem:
            raise ReadFailed(self._problem)
        return self._source.read(now)
