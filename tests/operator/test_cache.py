"""The cache: newest wins, owners are known, little is kept."""

import json
import tracemalloc
from typing import Any

from ingero_operator.cache import Cache
from ingero_operator.informer import Informer

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
    assert [item["kind"] for item in cache.leftovers(OWNER, "new")] == ["Service"]
    assert cache.leftovers(OWNER, "old") == []


def test_a_proof_that_was_orphaned_still_belongs_to_its_store() -> None:
    cache, labels = Cache(), {"app.kubernetes.io/managed-by": "ingero-operator", "ingero.io/owner": "prod"}
    proof, other = child(1, owner=None), child(1, owner=None)
    proof["metadata"]["labels"] = {**labels, "ingero.io/volume-proof": "true"}
    other["metadata"] |= {"labels": labels, "name": "y"}
    cache.put("ConfigMap", proof)
    cache.put("ConfigMap", other)

    assert list(cache.children(("EchoStore", "ml", "prod"), "new")) == [("ConfigMap", "x")]


def test_a_belated_event_of_an_earlier_object_replaces_nothing() -> None:
    cache = Cache()
    cache.put("Service", child(9, uid="new"))

    assert cache.put("Service", child(8, uid="old")) is False
    assert cache.versions("Service") == {("Service", "ml", "x"): ("new", 9)}


def test_a_belated_answer_does_not_bring_a_deleted_object_back() -> None:
    cache = Cache()
    cache.put("Service", child(1))
    cache.drop("Service", child(3))

    assert cache.put("Service", child(2)) is False and cache.get(("Service", "ml", "x")) is None
    assert cache.put("Service", child(4, uid="next")) is True


def test_what_lost_the_label_that_is_watched_is_taken_in_again() -> None:
    cache = Cache()
    cache.put("Service", child(1))
    cache.drop("Service", child(2))  # reported as deleted, with the version at which it lives on

    assert cache.put("Service", child(2)) is True and cache.put("Service", child(3)) is True


def test_what_was_asked_for_and_is_not_there_never_comes_back() -> None:
    cache = Cache()
    cache.put("Service", child(1))
    cache.drop_key(("Service", "ml", "x"))

    assert cache.put("Service", child(5)) is False


def test_whose_a_child_was_is_dirty_as_well_as_whose_it_is() -> None:
    dirty: list[tuple[str, str, str]] = []
    informer = Informer(dirty.append)
    informer.on_event("Service", "ADDED", child(1))
    dirty.clear()
    informer.on_event("Service", "MODIFIED", child(2, owner=None))

    assert dirty == [OWNER]


def test_the_deleted_are_remembered_within_bounds() -> None:
    cache = Cache()
    for number in range(5000):
        cache.drop("Service", child(2, uid=f"u{number}"))

    assert cache.put("Service", child(1, uid="u4999")) is False and cache.put("Service", child(1, uid="u0")) is True


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


def test_an_object_takes_the_memory_of_its_text_and_little_more() -> None:
    cache, count, spec = Cache(), 500, {f"key-{number}": "value" for number in range(60)}
    tracemalloc.start()
    for number in range(count):
        body = child(1, spec=spec)
        body["metadata"] |= {"name": f"x{number}", "uid": f"u{number}"}
        cache.put("Service", body)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert taken / count < len(json.dumps(spec)) + 1500
