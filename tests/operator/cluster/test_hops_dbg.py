import os, json, pathlib
from typing import Any
import pytest
from scripts.controlplane import ControlPlane
from ingero_testing.processes import wait_until
import importlib.util
spec = importlib.util.spec_from_file_location("tfc", pathlib.Path(__file__).with_name("test_fleet_clusters.py"))
tfc = importlib.util.module_from_spec(spec); spec.loader.exec_module(tfc)
pool = tfc.pool
pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("cluster")]
def test_hops(plane, start, namespace, fleet_double):
    root = str(pathlib.Path(__file__).parents[3]); out = os.environ["HOPS_DIR"]
    env = dict()

    with start(**env) as operator:
        for name in ("warm", "prod"):
            fleet_double.of(namespace, name).nodes = {"pool-0", "pool-1", "pool-2"}
            plane.apply(tfc.cluster(namespace, name, pool="here"))
            wait_until(lambda: tfc.summary(plane, namespace, name) == "Healthy", "healthy")
            wait_until(lambda: tfc.condition(plane, namespace, "QuorumMet", name)[0] == "True", "quorum")
            (__import__("time").sleep(5), print({k: v for k, v in operator.page().items() if "queue" in k or "resync" in k or "reconciles" in k or "failing" in k}), operator.settle(4))
        fleet_double.of(namespace, "bare").nodes = set()
        plane.apply(tfc.cluster(namespace, "bare", pool="nobody"))
        operator.settle(10)
        before = operator.writes()
        operator.settle(6)
        print("writes at rest", operator.writes() - before)
