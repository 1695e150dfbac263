"""The cache: newest wins, owners are known, little is kept."""

from typing import Any

from ingero_operator.cache import Cache

OWNER = ("FleetCluster", "ml", "prod")


def child(version: int, uid: str = "u", owner: str | None = "o", **more: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "x", "namespace": "ml", "uid": uid, "resourceVersion": str(version)}
    if owner:
        metadata["ownerReferences"] = [
            {"apiVersion": "ingero.io/v1alpha1", "kind": "FleetCluster", "name": "prod", "uid": owner,
             "controller": True}
        ]  # fmt: skip
    return {"metadata": metadata | {"managedFields": [{"manager": "x"}]}, **more}


def test_an_older_version_never_replaces_a_newer_one() -> None:
    cache = Cache()
    assert cache.put("Service", child(5, spec={"a": 1})) is True
    assert cache.put("Service", child(4, spec={"a": 2})) is False
    assert cache.put("Service", child(5, spec={"a": 3})) is False

    assert (cache.get(("Service", "ml", "x")) or {})["spec"] == {"a": 1}


def test_the_deletion_of_an_earlier_object_does_not_drop_the_new_one() -> None:
    cache = Cache()
    cache.put("Service", child(9, uid="new"))

    assert cache.drop("Service", child(8, uid="old")) is False
    assert cache.get(("Service", "ml", "x")) is not None


def test_children_of_an_earlier_owner_of_that_name_are_not_ours() -> None:
    cache = Cache()
    cache.put("Service", child(1, owner="old"))

    assert cache.children(OWNER, "old") != {} and cache.children(OWNER, "new") == {}


def test_little_is_kept() -> None:
    cache = Cache()
    cache.put("Service", child(1, status={"loadBalancer": {}}))
    cache.put("Deployment", child(1, status={"replicas": 1}))

    service, deployment = cache.get(("Service", "ml", "x")), cache.get(("Deployment", "ml", "x"))
    assert service and deployment
    assert "status" not in service and deployment["status"] == {"replicas": 1}
    assert "managedFields" not in service["metadata"]


def test_the_fingerprint_moves_with_every_child() -> None:
    cache = Cache()
    before = cache.fingerprint(OWNER)
    cache.put("Service", child(1))
    middle = cache.fingerprint(OWNER)
    cache.drop_key(("Service", "ml", "x"))

    assert before != middle and cache.fingerprint(OWNER) == before
