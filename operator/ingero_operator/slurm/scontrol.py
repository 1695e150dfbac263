"""Runs `scontrol`: a bounded time for each call, no shell, and times in UTC."""

import asyncio
import os
from dataclasses import dataclass

from ingero_operator.slurm.nodes import NODE_NAME, SlurmNode, parse_slurm_nodes


class ScontrolFailed(Exception):
    """`scontrol` did not do what was asked; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Scontrol:
    """The program, and how long one call may take, seconds."""

    program: str = "scontrol"
    timeout: float = 20.0

    async def nodes(self) -> dict[str, SlurmNode]:
        """All nodes by name. Raises `ScontrolFailed`, `UnreadableNodes`."""
        return {node.name: node for node in parse_slurm_nodes(await self._run("--oneliner", "show", "node"))}

    async def node(self, name: str) -> SlurmNode | None:
        """One node as it is now. Raises `ScontrolFailed`, `UnreadableNodes`."""
        found = parse_slurm_nodes(await self._run("--oneliner", "show", "node", _checked(name)))
        return next((node for node in found if node.name == name), None)

    async def drain(self, name: str, reason: str) -> None:
        """Drain a node: its jobs run on, and no new one starts. Raises `ScontrolFailed`."""
        await self._run("update", f"nodename={_checked(name)}", "state=drain", f"reason={reason}")

    async def renew(self, name: str, reason: str) -> None:
        """Replace the reason of a drained node. Raises `ScontrolFailed`."""
        await self._run("update", f"nodename={_checked(name)}", f"reason={reason}")

    async def undrain(self, name: str) -> None:
        """End a drain; a node that is down stays down. Raises `ScontrolFailed`."""
        await self._run("update", f"nodename={_checked(name)}", "state=undrain")

    async def _run(self, *arguments: str) -> str:
        try:
            process = await asyncio.create_subprocess_exec(
                self.program, *arguments, env={**os.environ, "TZ": "UTC"}, stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
        except OSError as error:
            raise ScontrolFailed(f"{self.program}: {error.strerror}") from None
        try:
            out, problem = await asyncio.wait_for(process.communicate(), self.timeout)
        except TimeoutError:
            raise ScontrolFailed(f"{self.program} did not end within {self.timeout:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        text = out.decode(errors="replace")
        if process.returncode:
            said = " ".join((problem.decode(errors="replace") + text).split())
            raise ScontrolFailed(f"{self.program} {arguments[0]}: {said[:300]} (status {process.returncode})")
        return text


def _checked(name: str) -> str:
    """A name that stands for one node: Slurm would take `n[1-9]` or `ALL` for many."""
    if not NODE_NAME.fullmatch(name) or name.upper() == "ALL":
        raise ScontrolFailed(f"{name!r} is no name of one node")
    return name
