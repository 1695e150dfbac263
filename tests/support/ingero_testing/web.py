"""Plain HTTP for tests: one client, a new connection each time (`httpx.get` reads all authorities every time)."""

import httpx

web = httpx.Client(verify=False, limits=httpx.Limits(max_keepalive_connections=0))
