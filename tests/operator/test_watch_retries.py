"""kopf tries a request again until the API server answers it."""

import asyncio
import logging
from typing import Any

import aiohttp
import kopf
import pytest
from aiohttp import web
from kopf._cogs.clients import api, auth
from kopf._cogs.structs.credentials import ConnectionInfo

from ingero_operator.handlers import Pauses


class NoPauses(Pauses):
    """The same without waiting."""

    def __iter__(self) -> Any:
        """As many pauses."""
        return (0 for _ in super().__iter__())


def test_an_api_server_that_starts_slowly_ends_no_watch() -> None:
    answers = iter([503] * 20 + [200])

    async def ask() -> int:
        application = web.Application()

        async def answer(_: web.Request) -> web.Response:
            return web.json_response({}, status=next(answers))

        application.router.add_get("/apis", answer)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            host, port = runner.addresses[0]
            settings = kopf.OperatorSettings()
            settings.networking.error_backoffs = NoPauses()
            context = auth.APIContext(ConnectionInfo(server=f"http://{host}:{port}"))
            request = api.request.__wrapped__  # type: ignore[attr-defined]  # without kopf's vault of credentials
            log = logging.getLogger("test")
            async with context.session:
                got: aiohttp.ClientResponse = await request(
                    "get", "/apis", settings=settings, context=context, logger=log
                )
                return got.status
        finally:
            await runner.cleanup()

    assert asyncio.run(ask()) == 200


def test_pauses_grow_to_four_seconds_and_begin_anew_with_each_request() -> None:
    pauses = Pauses()
    assert [pause for pause, _ in zip(pauses, range(6), strict=False)] == [1, 2, 4, 4, 4, 4]
    assert next(iter(pauses)) == 1
    with pytest.raises(TypeError):
        len(pauses)  # type: ignore[arg-type]  # kopf would count the tries
