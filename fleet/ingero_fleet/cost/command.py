"""`ingero-fleet rates`: shows, replaces and checks the table of GPU rates."""

import contextlib
import json
import sys
from pathlib import Path
from typing import Final, NoReturn
from urllib.parse import unquote, urlsplit

import click
import httpx

from ingero_kit.files import not_utf8, replace_file
from ingero_kit.flags import CommandGroup, RenamedOption
from ingero_kit.gpu_rates import MAX_BYTES, RatesError, RateTable, builtin_text, canonical_provider, doubts, parse

FETCH_SECONDS: Final = 30.0


@click.group(cls=CommandGroup)
def rates() -> None:
    """What one GPU costs an hour, by provider and model."""


_file = click.option(
    "--file", "source", type=click.Path(path_type=Path), help="A table of yours; Fleet's own without it."
)


@rates.command()
@_file
@click.option("--provider", help="Only this provider.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--yaml", "as_yaml", is_flag=True, help="Print the file as it is, to edit and keep.")
def show(source: Path | None, provider: str | None, as_json: bool, as_yaml: bool) -> None:
    """Print the rates in force.

    \b
    ingero-fleet rates show --provider aws
    ingero-fleet rates show --yaml > gpu_rates.yaml
    """
    text, table = _read(str(source) if source else None)
    if as_yaml:
        click.echo(text.rstrip())
        return
    rows = [
        (name, model, rate)
        for name, models in table.providers.items()
        if provider is None or canonical_provider(provider) == name
        for model, rate in models.items()
    ]
    if provider and not rows:
        _fail(f"no provider {provider!r}; there are {', '.join(table.providers)}")
    if as_json:
        click.echo(
            json.dumps(
                {
                    "currency": table.currency,
                    "fallback_rate": table.fallback,
                    "rates": [{"provider": name, "gpu_model": model, "rate": rate} for name, model, rate in rows],
                }
            )
        )
        return
    width = max((len(model) for _, model, _ in rows), default=0)
    for name, model, rate in rows:
        click.echo(f"{name:<12} {model:<{width}} {table.symbol}{rate:>8.2f}/h")
    fallback = "none: what is not listed is reported as missing" if table.fallback is None else f"{table.fallback:g}"
    click.echo(f"fallback     {fallback}")


@rates.command()
@click.argument("source", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--strict", is_flag=True, help="Doubts count as errors.")
def check(source: Path, strict: bool) -> None:
    """Check a table; exit status 2 when it cannot be used. Names that nvidia-smi never prints are doubted."""
    _, table = _read(str(source))
    found = doubts(table)
    for doubt in found:
        click.echo(f"doubt: {doubt}", err=True)
    if found and strict:
        sys.exit(2)
    count = sum(len(models) for models in table.providers.values())
    click.echo(f"{source}: {count} rates of {len(table.providers)} providers, in {table.currency}")


@rates.command()
@click.option("--from", "origin", help="https:// address or file to take; Fleet's own table without it.")
@click.option(
    "--to", "output", type=click.Path(path_type=Path), default=Path("gpu_rates.yaml"), show_default=True,
    cls=RenamedOption, old="--output",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Check and compare, write nothing.")
def update(origin: str | None, output: Path, dry_run: bool) -> None:
    """Replace a table by a checked one, at once or not at all.

    \b
    ingero-fleet rates update --from https://prices.example.org/gpu_rates.yaml --to /etc/ingero/gpu_rates.yaml
    """
    text, table = _read(origin, f"; {output} is as it was")
    try:
        before = output.read_text() if output.exists() else None
        if not dry_run:
            replace_file(output, text.encode())
    except (OSError, UnicodeDecodeError) as error:
        _fail(f"{output}: {error.strerror if isinstance(error, OSError) else not_utf8(error)}; it is as it was")
    for doubt in doubts(table):
        click.echo(f"doubt: {doubt}", err=True)
    for line in changes(before, table):
        click.echo(line)
    click.echo(f"{'would write' if dry_run else 'wrote'} {output}" if before != text else f"{output}: no change")


def changes(before: str | None, after: RateTable) -> list[str]:
    """The changes that a new table makes, one line for each rate."""
    try:
        old = parse(before) if before is not None else RateTable()
    except RatesError:
        old = RateTable()
    lines = []
    for name in sorted({*old.providers, *after.providers}):
        was, now = old.providers.get(name, {}), after.providers.get(name, {})
        for model in sorted({*was, *now}):
            if was.get(model) != now.get(model):
                lines.append(f"{name}: {model}: {was.get(model, 'none')} -> {now.get(model, 'none')}")
    return lines


def obtain(origin: str | None, client: httpx.Client | None = None) -> str:
    """The text of a table. Addresses must be https through all redirects; raises `RatesError` or `OSError`."""
    if origin is None:
        return builtin_text()
    try:
        scheme = urlsplit(origin).scheme.lower()
    except ValueError as error:
        raise RatesError(f"{origin}: {error}") from None
    if scheme in ("", "file"):
        path = Path(unquote(urlsplit(origin).path)) if scheme else Path(origin)
        with path.open("rb") as stream:
            return _decoded(stream.read(MAX_BYTES + 1))
    with contextlib.ExitStack() as stack:
        session = client or stack.enter_context(httpx.Client(timeout=FETCH_SECONDS))
        return _decoded(_fetch(session, origin))


def _fetch(client: httpx.Client, address: str) -> bytes:
    """The body behind an address, following https redirects."""
    client.event_hooks = {"request": [_require_https]}
    try:
        with client.stream("GET", address, follow_redirects=True) as answer:
            if answer.status_code != 200:
                raise RatesError(f"{address}: HTTP {answer.status_code}")
            body = b""
            for part in answer.iter_bytes():
                body += part
                if len(body) > MAX_BYTES:
                    raise RatesError(f"{address}: larger than {MAX_BYTES} bytes")
            return body
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise RatesError(f"{address}: {error or type(error).__name__}") from None
    except UnicodeError:
        raise RatesError(f"{address}: no host can have this name") from None


def _require_https(request: httpx.Request) -> None:
    if request.url.scheme != "https":
        raise RatesError(f"{request.url}: only https:// addresses and files are taken")


def _decoded(body: bytes) -> str:
    if len(body) > MAX_BYTES:
        raise RatesError(f"larger than {MAX_BYTES} bytes")
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise RatesError(not_utf8(error)) from None


def _read(source: str | None, consequence: str = "") -> tuple[str, RateTable]:
    """A table and its text. Ends the program, with the place, if it cannot be used."""
    try:
        text = obtain(source)
        return text, parse(text)
    except (RatesError, OSError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        place = f"{source}: " if source and not reason.startswith(source) else ""
        _fail(f"{place}{reason}{consequence}")


def _fail(reason: str) -> NoReturn:
    click.echo(f"ingero-fleet: {reason}", err=True)
    sys.exit(2)
