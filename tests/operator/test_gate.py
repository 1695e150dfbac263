"""The gate over random API states: no proof without a class that was judged and recorded before the claim."""

import random
from typing import Any

import pytest

from ingero_operator.api.v1alpha1 import EchoStoreSpec, Policy
from ingero_operator.echo_shards import ObservedShard, without_rollouts
from ingero_operator.gate import LEVELS, GateInputs, decide, default_class
from ingero_operator.plan import Action, Verb
from ingero_operator.render.common import Owner

PROVISIONERS = ("csi.scaleway.com", "ebs.csi.aws.com", "rancher.io/local-path", "example.com/unheard-of")


def storage_class(name: str, uid: str, dice: random.Random) -> dict[str, Any]:
    annotations = {}
    if dice.random() < 0.2:
        annotations = {
            "ingero.io/encryption-at-rest": "declared",
            "ingero.io/encryption-evidence": "dm-crypt everywhere, audited",
        }
    if dice.random() < 0.3:
        annotations["storageclass.kubernetes.io/is-default-class"] = "true"
    return {
        "metadata": {"name": name, "uid": uid, "annotations": annotations, "creationTimestamp": f"t{uid:0>6}"},
        "provisioner": dice.choice(PROVISIONERS),
        "parameters": {"encrypted": dice.choice(["true", "true", "false"])},
    }


class World:
    """An API server's storage side, and an operator that writes down what the gate says."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.classes: dict[str, dict[str, Any]] = {}
        self.judged: set[str] = set()
        self.serial, self.made_by = 10, ""
        self.claim: dict[str, Any] | None = None
        self.volume: dict[str, Any] | None = None
        self.record: dict[str, Any] = {}
        self.policy, self.least, self.name = Policy.PROVEN, Policy.DECLARED, "a"

    def happen(self) -> None:
        dice = self.dice
        what = dice.randrange(9)
        self.serial += 1
        if what < 3:
            name = dice.choice("ab")
            self.classes[name] = storage_class(name, str(self.serial), dice)
        elif what == 3:
            self.classes.pop(dice.choice("ab"), None)
        elif what == 4:
            self.policy = dice.choice(list(Policy))
        elif what == 5 and self.claim is None:
            self.name = dice.choice("ab")
        elif what == 6 and self.claim is not None and self.volume is None:
            self.bind()
        elif what == 7 and dice.random() < 0.3:
            self.claim = self.volume = None
        elif what == 8 and dice.random() < 0.2:
            self.record = {}

    def bind(self) -> None:
        assert self.claim is not None
        name, dice = self.claim["spec"]["storageClassName"], self.dice
        found = self.classes.get(name)
        self.made_by = found["metadata"]["uid"] if found else ""
        driver = found["provisioner"] if found and dice.random() < 0.9 else dice.choice(PROVISIONERS)
        notes = {"pv.kubernetes.io/provisioned-by": driver} if dice.random() < 0.9 else {}
        self.volume = {
            "metadata": {"name": "pv", "uid": f"v{self.serial}", "annotations": notes,
                         "creationTimestamp": f"t{self.serial:06}"},
            "spec": {"claimRef": {"uid": self.claim["metadata"]["uid"]}, "storageClassName": name,
                     "csi": {"driver": driver, "volumeAttributes": {"encrypted": dice.choice(["true", "false"])}}},
        }  # fmt: skip
        self.claim["spec"]["volumeName"] = "pv"
        self.claim["status"] = {"phase": "Bound", "capacity": {"storage": "10Gi"}}

    def step(self) -> None:
        self.happen()
        spec = EchoStoreSpec.model_validate(
            {"tokenSecret": {"name": "t"}, "tlsSecret": "tls",
             "storage": {"className": self.name, "size": "10Gi", "encryption": {"policy": self.policy}}}
        )  # fmt: skip
        inputs = GateInputs(
            classes=list(self.classes.values()), claim=self.claim, volume=self.volume, recorded=self.record,
            least=self.least,
        )  # fmt: skip
        decision = decide(spec, inputs)
        if decision.proof is not None:
            assert not decision.lock and self.volume is not None and self.claim is not None
            assert decision.proof.volume_uid == self.volume["metadata"]["uid"]
            assert decision.proof.class_uid in self.judged | {self.made_by}
            assert LEVELS[Policy(decision.proof.level)] >= LEVELS[self.policy]
        self.record = decision.record
        if decision.claim_class and self.claim is None:
            found = self.classes[decision.claim_class]
            self.judged.add(found["metadata"]["uid"])
            assert self.record["classUID"] == found["metadata"]["uid"], "judged and recorded before it is made"
            self.claim = {
                "metadata": {"name": "s-echo", "uid": f"c{self.serial}"},
                "spec": {"storageClassName": decision.claim_class},
                "status": {"phase": "Pending"},
            }


@pytest.mark.parametrize("seed", range(30))
def test_no_history_leads_to_a_proof_without_a_judged_class(seed: int) -> None:
    world = World(seed)
    for _ in range(300):
        world.step()


def test_the_default_class_is_the_newest_then_by_name() -> None:
    def make(name: str, day: str, default: bool = True) -> dict[str, Any]:
        notes = {"storageclass.kubernetes.io/is-default-class": "true"} if default else {}
        return {"metadata": {"name": name, "creationTimestamp": f"2026-01-{day}", "annotations": notes}}

    classes = [make("c", "01"), make("b", "02"), make("a", "02"), make("z", "09", default=False)]

    assert (default_class(classes) or {})["metadata"]["name"] == "a"
    assert default_class([make("z", "09", default=False)]) is None


@pytest.mark.parametrize(
    ("asked", "held", "capacity", "expands", "size", "grow_to", "reason"),
    [
        ("10Gi", "10Gi", "10Gi", True, "10Gi", None, "AsRequested"),
        ("20Gi", "10Gi", "10Gi", True, "10Gi", "20Gi", "Resizing"),
        ("20Gi", "20Gi", "10Gi", True, "20Gi", None, "Resizing"),
        ("20Gi", "10Gi", "10Gi", False, "10Gi", None, "ClassCannotExpand"),
        ("20Gi", "10Gi", None, True, "10Gi", None, "ClaimPending"),
        ("10Gi", "10Gi", None, True, "10Gi", None, "AsRequested"),
        ("15Gi", "10Gi", "16Gi", False, "10Gi", None, "AsRequested"),
        ("5Gi", "10Gi", "10Gi", True, "10Gi", None, "AsRequested"),
        ("10240Mi", "10Gi", "10Gi", True, "10240Mi", None, "AsRequested"),
    ],
)
def test_a_claim_is_written_with_the_size_that_it_has_and_grows_in_a_write_of_its_own(
    asked: str, held: str, capacity: str | None, expands: bool, size: str, grow_to: str | None, reason: str
) -> None:
    spec = EchoStoreSpec.model_validate(
        {"tokenSecret": {"name": "t"}, "tlsSecret": "tls", "storage": {"className": "a", "size": asked}}
    )
    found = {**storage_class("a", "1", random.Random(0)), "allowVolumeExpansion": expands}
    claim: dict[str, Any] = {
        "metadata": {"name": "s-echo", "uid": "c"},
        "spec": {"storageClassName": "a", "volumeName": "pv", "resources": {"requests": {"storage": held}}},
        "status": {"phase": "Bound", "capacity": {"storage": capacity}} if capacity else {"phase": "Pending"},
    }
    volume = {"metadata": {"name": "pv", "uid": "v", "creationTimestamp": "t2"}, "spec": {}} if capacity else None

    decision = decide(spec, GateInputs(classes=[found], claim=claim, volume=volume, recorded={}))

    assert (decision.claim_size, decision.grow_to, decision.capacity) == (size, grow_to, capacity)
    assert next(item.reason for item in decision.conditions if item.type == "ResizePending") == reason


def test_a_claim_that_somebody_deleted_is_named_while_its_pod_holds_it() -> None:
    spec = EchoStoreSpec.model_validate({"tlsSecret": "t", "tokenSecret": {"name": "t"}})
    claim = {
        "metadata": {"name": "s-echo", "uid": "c", "deletionTimestamp": "t3"},
        "spec": {"storageClassName": "a", "resources": {"requests": {"storage": "50Gi"}}},
        "status": {"phase": "Bound", "capacity": {"storage": "50Gi"}},
    }
    volume = {"metadata": {"name": "pv", "uid": "v", "creationTimestamp": "t2"}, "spec": {}}

    decision = decide(spec, GateInputs(classes=[], claim=claim, volume=volume, recorded={}))

    (bound,) = [item for item in decision.conditions if item.type == "StorageBound"]
    assert (bound.status, bound.reason) == ("False", "ClaimDeleted")
    assert "ingero-echo backup" in bound.message
    owner = Owner(kind="EchoStore", name="s", namespace="ml", uid="u")
    shards = [
        ObservedShard(index=index, claim=held, decision=decision, recorded={})
        for index, held in enumerate((claim, {"metadata": {"name": "s-echo-1"}}, None))
    ]
    wanted: tuple[tuple[Verb, str], ...]
    wanted = (("apply", "StatefulSet"), ("apply", "Service"), ("create", "StatefulSet"))
    actions = [
        Action(item[0], item[1], owner.child(shard.component), "it differs") for shard in shards for item in wanted
    ]
    assert without_rollouts(owner, shards, actions) == actions[1:]
