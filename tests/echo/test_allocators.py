"""Settings of allocators: they are there before the libraries that read them, and a user's own ones stay."""

import json
import os
import subprocess
import sys

PROGRAM = """
import json, os, sys
from ingero_echo import allocators
allocators.configure()
assert not {"duckdb", "pyarrow"} & sys.modules.keys()
print(json.dumps({name: os.environ[name] for name in allocators.ENVIRONMENT}))
import duckdb, pyarrow
assert pyarrow.default_memory_pool().backend_name == "system"
"""


def test_settings_are_there_before_the_libraries_and_the_users_own_stay() -> None:
    own = {"MALLOC_ARENA_MAX": "4", "DUCKDB_JE_MALLOC_CONF": "dirty_decay_ms:7"}
    environment = {**os.environ, **own}

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {**own, "ARROW_DEFAULT_MEMORY_POOL": "system"}
