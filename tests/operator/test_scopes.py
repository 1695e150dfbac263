"""Which nodes other FleetClusters watch: as the newest object says, and of those that are there."""

from typing import Any

from ingero_operator.cache import Cache, OwnerKey
from ingero_operator.scopes import FleetScope, FleetScopes

OURS: OwnerKey = ("FleetCluster", "ml", "ours")
GPUS = {"nvidia.com/gpu.present": "true"}


def put(cache: Cache, name: str, version: int, spec: Any = None, **metadata: Any) -> None:
    about = {"name": name, "namespace": "ml", "uid": f"u-{name}", "resourceVersion": str(version), **metadata}
    cache.put("FleetCluster", {"metadata": about, "spec": spec})


def forwarding(cluster: str, **forward: str) -> dict[str, Any]:
    return {"clusterId": cluster, "fleet": {"forward": forward}}


def test_the_later_of_two_clusters_with_one_id_and_one_store_is_told_of_the_earlier() -> None:
    cache = Cache()
    scopes = FleetScopes(cache)
    store, endpoint = forwarding("prod", echoStore="echo"), forwarding("prod", endpoint="otlp:4317")
    for number, (name, spec) in enumerate(
        {
            "second": store, "first": store, "other-id": forwarding("test", echoStore="echo"), "outside": endpoint,
            "alone": {"clusterId": "prod"},
        }.items(), 1,
    ):  # fmt: skip
        put(cache, name, number, spec, creationTimestamp="2026-01-02" if name == "second" else "2026-01-01")
    put(cache, "going", 9, store, creationTimestamp="2025-01-01", deletionTimestamp="2026-01-01")

    found = {}
    for key in cache.keys("FleetCluster"):
        resource = cache.get(key)
        assert resource
        found[key[2]] = scopes.earlier_namesake(key, resource)

    assert found.pop("second") == (("FleetCluster", "ml", "first"), ("prod", "EchoStore ml/echo"))
    assert set(found.values()) == {None}


def others(scopes: FleetScopes) -> dict[str, FleetScope]:
    return {key[2]: scope for key, scope in scopes.others(OURS)}


def test_the_newest_scopes_of_all_others_are_known() -> None:
    cache = Cache()
    scopes = FleetScopes(cache)
    put(cache, "ours", 1)
    put(cache, "a", 2)
    put(cache, "b", 3, {"agents": {"nodeSelector": {"pool": "b"}}, "taints": {"condition": True}})
    assert others(scopes) == {"a": FleetScope(GPUS, False), "b": FleetScope({"pool": "b"}, True)}

    put(cache, "a", 4, {"agents": {"nodeSelector": {"pool": "a"}}})
    put(cache, "b", 5, {"taints": {"condition": True}}, deletionTimestamp="2026-01-01T00:00:00Z")
    assert others(scopes) == {"a": FleetScope({"pool": "a"}, False), "b": FleetScope(GPUS, False)}

    for number in range(200):
        put(cache, f"gone-{number}", 10 + number)
    assert len(others(scopes)) == 202
    for number in range(200):
        cache.drop_key(("FleetCluster", "ml", f"gone-{number}"))
    assert others(scopes).keys() == {"a", "b"}


def test_a_spec_that_makes_no_sense_watches_the_default_nodes() -> None:
    cache = Cache()
    put(cache, "a", 1, {"agents": None, "taints": "none"})

    assert others(FleetScopes(cache)) == {"a": FleetScope(GPUS, False)}
