"""The encryption gate: every driver's spelling, and both locks fail closed."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero_operator.encryption import (
    ROWS,
    Level,
    Recorded,
    StorageClass,
    Volume,
    find_row,
    judge_class,
    judge_volume,
    key_name,
)
from ingero_operator.gate import volume_of

STAGE = "csi.storage.k8s.io/node-stage-secret-name"
KEY = "projects/p/locations/l/keyRings/r/cryptoKeys/k"
SET = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/diskEncryptionSets/d"
DECLARED = {
    "ingero.io/encryption-at-rest": "declared",
    "ingero.io/encryption-evidence": "dm-crypt on every node, audited",
}
NONE, PROVIDER, PROVEN = Level.NONE, Level.PROVIDER_DEFAULT, Level.PROVEN


def _class(provisioner: str, parameters: dict[str, str], annotations: dict[str, str] | None = None) -> StorageClass:
    return StorageClass("c", "class-uid", provisioner, parameters, annotations or {})


@pytest.mark.parametrize(
    ("provisioner", "parameters", "reached"),
    [
        ("ebs.csi.aws.com", {"encrypted": "true"}, PROVEN),
        ("kubernetes.io/aws-ebs", {"Encrypted": "true"}, PROVEN),
        ("ebs.csi.aws.com", {"encrypted": "True"}, NONE),
        ("ebs.csi.aws.com", {"encrypted": "1"}, NONE),
        ("ebs.csi.aws.com", {"encrypted": "true", "ENCRYPTED": "false"}, NONE),
        ("ebs.csi.aws.com", {"kmsKeyId": "arn:aws:kms:x"}, NONE),
        ("pd.csi.storage.gke.io", {"disk-encryption-kms-key": KEY}, PROVEN),
        ("pd.csi.storage.gke.io", {"Disk-Encryption-Kms-Key": KEY}, PROVIDER),
        ("pd.csi.storage.gke.io", {"disk-encryption-kms-key": "k"}, PROVIDER),
        ("disk.csi.azure.com", {"diskEncryptionSetID": SET}, PROVEN),
        ("disk.csi.azure.com", {"DISKENCRYPTIONSETID": SET}, PROVEN),
        ("disk.csi.azure.com", {"diskEncryptionSetID": SET, "kind": "Managed"}, PROVEN),
        ("kubernetes.io/azure-disk", {"diskEncryptionSetID": SET, "kind": "Dedicated"}, PROVIDER),
        ("disk.csi.azure.com", {}, PROVIDER),
        ("rook-ceph.rbd.csi.ceph.com", {"encrypted": "T"}, PROVEN),
        ("rbd.csi.ceph.com", {"encrypted": "yes"}, NONE),
        ("evilrbd.csi.ceph.com", {"encrypted": "true"}, NONE),
        ("rook-ceph.cephfs.csi.ceph.com", {"encrypted": "true"}, NONE),
        ("driver.longhorn.io", {"encrypted": "true"}, NONE),
        ("driver.longhorn.io", {"encrypted": "true", STAGE: "s"}, PROVEN),
        ("pxd.portworx.com", {"secure": "true"}, PROVEN),
        ("pxd.portworx.com", {"secure": "1"}, NONE),
        ("linodebs.csi.linode.com", {"linodebs.csi.linode.com/encrypted": "true"}, PROVEN),
        ("linodebs.csi.linode.com", {"linodebs.csi.linode.com/luks-encrypted": "true"}, NONE),
        ("csi.scaleway.com", {"encrypted": "1"}, PROVEN),
        ("csi.cloudscale.ch", {"csi.cloudscale.ch/luks-encrypted": "true", STAGE: "s"}, PROVEN),
        ("storage.csi.upcloud.com", {"encryption": "data-at-rest"}, PROVEN),
        ("storage.csi.upcloud.com", {"encryption": "true"}, NONE),
        ("vpc.block.csi.ibm.io", {"encrypted": "true", "encryptionKey": "crn:v1:x"}, PROVEN),
        ("vpc.block.csi.ibm.io", {"encrypted": "false", "encryptionKey": "crn:v1:x"}, PROVIDER),
        ("blockvolume.csi.oraclecloud.com", {"kms-key-id": "ocid1.key.oc1.x"}, PROVEN),
        ("blockvolume.csi.oraclecloud.com", {}, PROVIDER),
        ("dobs.csi.digitalocean.com", {}, PROVIDER),
        ("csi.hetzner.cloud", {"encrypted": "true"}, NONE),
        ("csi.vsphere.vmware.com", {"storagePolicyName": "encrypted"}, NONE),
        ("rancher.io/local-path", {}, NONE),
        ("zfs.csi.openebs.io", {"encrypted": "true"}, NONE),
        ("efs.csi.aws.com", {"encrypted": "true"}, NONE),
        ("example.com/unheard-of", {"encrypted": "true"}, NONE),
    ],
)
def test_a_class_reaches_what_its_driver_reads(provisioner: str, parameters: dict[str, str], reached: Level) -> None:
    assert judge_class(_class(provisioner, parameters), Level.DECLARED).level is reached
    assert judge_class(_class(provisioner, parameters), PROVEN).proven is (reached is PROVEN)


def test_a_declaration_reaches_declared_and_no_more() -> None:
    local = _class("rancher.io/local-path", {}, DECLARED)
    assert judge_class(local, Level.DECLARED).level is Level.DECLARED
    assert not judge_class(local, PROVIDER).proven


@pytest.mark.parametrize("provisioner", ["efs.csi.aws.com", "x.cephfs.csi.ceph.com", "example.com/unheard-of"])
def test_a_declaration_does_not_lift_shared_files_or_unknown_drivers(provisioner: str) -> None:
    assert not judge_class(_class(provisioner, {}, DECLARED), Level.DECLARED).proven


def test_a_declaration_without_evidence_counts_for_nothing() -> None:
    bare = _class("rancher.io/local-path", {}, DECLARED | {"ingero.io/encryption-evidence": "trust me" + " " * 20})
    assert not judge_class(bare, Level.DECLARED).proven


def test_a_refusal_names_class_driver_parameter_and_field() -> None:
    message = judge_class(_class("ebs.csi.aws.com", {}), PROVEN).message
    for part in ("class c", "ebs.csi.aws.com", 'encrypted: "true"', "spec.storage.className"):
        assert part in message


ANNOTATE, LOWER = "ingero.io/encryption-evidence", "spec.storage.encryption.policy: "


@pytest.mark.parametrize(
    ("provisioner", "annotations", "policy", "said"),
    [
        ("hostpath.csi.k8s.io", {}, Level.DECLARED, {ANNOTATE}),
        ("hostpath.csi.k8s.io", {}, PROVEN, {ANNOTATE, LOWER + "Declared"}),
        (
            "hostpath.csi.k8s.io",
            DECLARED | {"ingero.io/encryption-evidence": "yes"},
            Level.DECLARED,
            {"20 characters"},
        ),
        ("hostpath.csi.k8s.io", DECLARED, PROVIDER, {LOWER + "Declared"}),
        ("dobs.csi.digitalocean.com", {}, PROVEN, {LOWER + "ProviderDefault"}),
    ],
)
def test_a_refusal_says_what_would_be_accepted(
    provisioner: str, annotations: dict[str, str], policy: Level, said: set[str]
) -> None:
    message = judge_class(_class(provisioner, {}, annotations), policy).message

    assert all(words in message for words in said)
    assert (LOWER in message) is any(words.startswith(LOWER) for words in said)
    lowered = Level.PROVIDER_DEFAULT if "dobs" in provisioner else Level.DECLARED
    assert judge_class(_class(provisioner, {}, DECLARED), lowered).proven


def test_a_policy_of_none_is_refused() -> None:
    with pytest.raises(ValueError, match="policy"):
        judge_class(_class("ebs.csi.aws.com", {"encrypted": "true"}), NONE)


def test_every_name_of_the_table_finds_its_own_row() -> None:
    for row in ROWS:
        for name in row.names:
            assert find_row("x" + name if name.startswith(".") else name) is row


CLASS = _class("csi.scaleway.com", {"encrypted": "true"})
RECORD = Recorded("c", "class-uid", PROVEN)
VOLUME = Volume("pv", "pv-uid", "claim", "c", "csi.scaleway.com", {"encrypted": "true"}, "csi.scaleway.com")


def test_the_volume_of_the_judged_class_unlocks() -> None:
    assert judge_volume(VOLUME, RECORD, CLASS, "claim").level is PROVEN


@pytest.mark.parametrize(
    ("volume", "recorded", "current", "claim", "reason"),
    [
        (replace(VOLUME, claim_uid="other"), RECORD, CLASS, "claim", "ForeignVolume"),
        (replace(VOLUME, claim_uid=""), RECORD, CLASS, "", "ForeignVolume"),
        (replace(VOLUME, class_name="d"), RECORD, CLASS, "claim", "ClassDiffers"),
        (VOLUME, RECORD, None, "claim", "ClassReplaced"),
        (VOLUME, RECORD, replace(CLASS, uid="new"), "claim", "ClassReplaced"),
        (replace(VOLUME, provisioned_by=None), RECORD, CLASS, "claim", "StaticVolume"),
        (replace(VOLUME, driver="ebs.csi.aws.com"), RECORD, CLASS, "claim", "DriverDiffers"),
        (replace(VOLUME, attributes={"encrypted": "false"}), RECORD, CLASS, "claim", "VolumeNotEncrypted"),
        (VOLUME, replace(RECORD, level=NONE), CLASS, "claim", "ClassNotJudged"),
    ],
)
def test_any_doubt_keeps_the_volume_locked(
    volume: Volume, recorded: Recorded, current: StorageClass | None, claim: str, reason: str
) -> None:
    judged = judge_volume(volume, recorded, current, claim)
    assert (judged.proven, judged.reason) == (False, reason)


@pytest.mark.parametrize(
    ("provisioner", "attributes", "unlocks"),
    [
        ("driver.longhorn.io", {"encrypted": "true"}, True),
        ("driver.longhorn.io", {}, False),
        ("disk.csi.azure.com", {"DiskEncryptionSetID": SET}, True),
        ("disk.csi.azure.com", {}, False),
        ("ns.rbd.csi.ceph.com", {"encrypted": "false"}, False),
        ("ebs.csi.aws.com", {}, True),
        ("pd.csi.storage.gke.io", {}, True),
    ],
)
def test_a_volume_repeats_the_proof_where_its_driver_does(
    provisioner: str, attributes: dict[str, str], unlocks: bool
) -> None:
    volume = replace(VOLUME, driver=provisioner, attributes=attributes)
    assert judge_volume(volume, RECORD, _class(provisioner, {}), "claim").proven is unlocks


def _persistent_volume(by: str | None, **source: object) -> Volume:
    annotations = {} if by is None else {"pv.kubernetes.io/provisioned-by": by}
    return volume_of(
        {
            "metadata": {"name": "pv", "uid": "pv-uid", "annotations": annotations},
            "spec": {"claimRef": {"uid": "claim"}, "storageClassName": "c", **source},
        }
    )


@pytest.mark.parametrize(
    ("provisioner", "volume", "reason"),
    [
        ("rancher.io/local-path", _persistent_volume("rancher.io/local-path", hostPath={}), "DECLARED"),
        ("rancher.io/local-path", _persistent_volume("rancher.io/local-path", local={}), "DECLARED"),
        ("k8s.io/minikube-hostpath", _persistent_volume("k8s.io/minikube-hostpath", hostPath={}), "DECLARED"),
        (
            "kubernetes.io/no-provisioner",
            _persistent_volume("local-volume-provisioner-node-1-uid", local={}),
            "DECLARED",
        ),
        ("rancher.io/local-path", _persistent_volume(None, hostPath={}), "StaticVolume"),
        ("rancher.io/local-path", _persistent_volume("rancher.io/local-path", nfs={}), "DriverDiffers"),
        ("rancher.io/local-path", _persistent_volume("somebody", hostPath={}), "DriverDiffers"),
        ("csi.hetzner.cloud", _persistent_volume("csi.hetzner.cloud", hostPath={}), "DriverDiffers"),
        ("ebs.csi.aws.com", _persistent_volume("ebs.csi.aws.com", hostPath={}), "DriverDiffers"),
    ],
)
def test_a_directory_of_a_node_is_known_by_its_provisioner(provisioner: str, volume: Volume, reason: str) -> None:
    recorded = Recorded("c", "class-uid", Level.DECLARED)

    assert judge_volume(volume, recorded, _class(provisioner, {}, DECLARED), "claim").reason == reason


def _mostly(usual: str) -> st.SearchStrategy[str]:
    return st.sampled_from([usual, usual, usual, "", "other"])


_drivers = st.sampled_from(["csi.scaleway.com", "csi.scaleway.com", "rbd.csi.ceph.com", "example.com/unheard-of"])
_values = st.dictionaries(st.just("encrypted"), st.sampled_from(["true", "true", "false", "yes"]))
_classes = st.builds(
    StorageClass, _mostly("c"), _mostly("class-uid"), _drivers, _values, st.sampled_from([{}, DECLARED])
)
_volumes = st.builds(
    Volume, st.just("pv"), st.just("u"), _mostly("claim"), _mostly("c"), _drivers, _values, st.none() | _mostly("p")
)


@given(
    _classes, st.none() | _classes, _volumes, st.sampled_from([Level.DECLARED, PROVIDER, PROVEN]), _mostly("claim")
)
def test_no_state_unlocks_a_volume_whose_class_was_not_judged_encrypted(
    judged: StorageClass, now: StorageClass | None, volume: Volume, policy: Level, claim: str
) -> None:
    level = judge_class(judged, policy).level
    outcome = judge_volume(volume, Recorded(judged.name, judged.uid, level), now, claim)
    if outcome.proven:
        assert outcome.level is level and level >= policy
        assert now is not None and (now.name, now.uid) == (judged.name, judged.uid)
        assert volume.claim_uid == claim and volume.provisioned_by


@pytest.mark.parametrize(
    ("provisioner", "parameters", "name"),
    [
        ("ebs.csi.aws.com", {"encrypted": "true", "KMSKeyID": "arn:aws:kms:x"}, "arn:aws:kms:x"),
        ("rbd.csi.ceph.com", {"encrypted": "true", "encryptionKMSID": "vault"}, "vault"),
        ("rbd.csi.ceph.com", {"encrypted": "true", "ENCRYPTIONKMSID": "vault"}, ""),
        ("csi.scaleway.com", {"encrypted": "true"}, ""),
        ("example.com/unheard-of", {"kmsKeyId": "x"}, ""),
    ],
)
def test_the_key_that_a_class_names_is_shown(provisioner: str, parameters: dict[str, str], name: str) -> None:
    assert key_name(_class(provisioner, parameters)) == name
