"""Decide whether a StorageClass and a volume are encrypted at rest; unknown counts as unencrypted.

To add a driver, add a row to `ROWS` and a row to its test. Everything here is pure: values in, `Judgement` out.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum

DECLARED_KEY = "ingero.io/encryption-at-rest"
EVIDENCE_KEY = "ingero.io/encryption-evidence"
MIN_EVIDENCE = 20
PARSE_BOOL_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})  # Go's strconv.ParseBool


class Level(IntEnum):
    """How strongly encryption at rest is assured; a higher level satisfies every lower policy."""

    NONE = 0
    DECLARED = 1
    PROVIDER_DEFAULT = 2
    PROVEN = 3

    @property
    def label(self) -> str:
        """The name that the specification uses."""
        return self.name.title().replace("_", "") if self else "nothing"


@dataclass(frozen=True)
class StorageClass:
    name: str
    uid: str
    provisioner: str
    parameters: Mapping[str, str]
    annotations: Mapping[str, str]


@dataclass(frozen=True)
class Volume:
    """A PersistentVolume as the API server reports it.

    `driver` is `spec.csi.driver`, the name that an in-tree volume migrated to, or the provisioner of a directory.
    """

    name: str
    uid: str
    claim_uid: str
    class_name: str
    driver: str
    attributes: Mapping[str, str]
    provisioned_by: str | None


@dataclass(frozen=True)
class Recorded:
    """What the class check recorded before the claim was created."""

    class_name: str
    class_uid: str
    level: Level


@dataclass(frozen=True)
class Judgement:
    level: Level
    reason: str
    message: str

    @property
    def proven(self) -> bool:
        return self.level is not Level.NONE


Proof = Callable[[Mapping[str, str]], bool]


@dataclass(frozen=True)
class DriverRule:
    """One driver: what proves encryption, the level without that proof, and what its volumes repeat."""

    names: tuple[str, ...]
    fix: str = ""  # what proves it, in words; empty where no class of the driver can prove it
    proof: Proof | None = None
    key: str = ""  # parameter that names the key, shown to users
    otherwise: Level = Level.NONE  # level without the proof and without any declaration
    declarable: bool = True
    folded_keys: bool = False
    volume_proof: Proof | None = None  # checks spec.csi.volumeAttributes; None: the volume does not repeat it
    suffix: bool = False


def _exactly(key: str, value: str) -> Proof:
    return lambda parameters: parameters.get(key) == value


def _truthy(key: str) -> Proof:
    return lambda parameters: parameters.get(key) in PARSE_BOOL_TRUE


def _matches(key: str, pattern: str) -> Proof:
    compiled = re.compile(pattern)
    return lambda parameters: compiled.fullmatch(parameters.get(key, "")) is not None


def _all(*proofs: Proof) -> Proof:
    return lambda parameters: all(proof(parameters) for proof in proofs)


def _any(*proofs: Proof) -> Proof:
    return lambda parameters: any(proof(parameters) for proof in proofs)


_AZURE_SET = _matches(
    "diskencryptionsetid",
    r"(?i)/subscriptions/[^/]+/resourceGroups/[^/]+/providers/"
    r"Microsoft\.Compute/diskEncryptionSets/[^/]+",
)
_MANAGED = _matches("kind", r"(?i)(managed)?")  # the driver's own disks, not blobs in a storage account
_LINODE = "linodebs.csi.linode.com"
_STAGE_SECRET = "csi.storage.k8s.io/node-stage-secret-name"
_NO_PROVISIONER = "kubernetes.io/no-provisioner"
_DIRECTORIES = (
    "rancher.io/local-path", "k8s.io/minikube-hostpath", "microk8s.io/hostpath", "docker.io/hostpath",
    "openebs.io/local",
)  # fmt: skip
_LOCAL = (*_DIRECTORIES, _NO_PROVISIONER, "topolvm.io", "local.csi.openebs.io", "hostpath.csi.k8s.io")
_STATIC_PROVISIONER = "local-volume-provisioner-"

ROWS: tuple[DriverRule, ...] = (
    DriverRule(("ebs.csi.aws.com", "kubernetes.io/aws-ebs"), 'encrypted: "true"', _exactly("encrypted", "true"),
        key="kmsKeyId", folded_keys=True),
    DriverRule(("pd.csi.storage.gke.io", "kubernetes.io/gce-pd"),
        "disk-encryption-kms-key: <name of a Cloud KMS key>",
        _matches("disk-encryption-kms-key", r"projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+"),
        key="disk-encryption-kms-key", otherwise=Level.PROVIDER_DEFAULT),
    DriverRule(("disk.csi.azure.com", "kubernetes.io/azure-disk"), "diskEncryptionSetID: <resource id>",
        _all(_AZURE_SET, _MANAGED), key="diskEncryptionSetID",
        otherwise=Level.PROVIDER_DEFAULT, folded_keys=True, volume_proof=_AZURE_SET),
    DriverRule(("rbd.csi.ceph.com",), 'encrypted: "true"', _truthy("encrypted"), suffix=True,
        key="encryptionKMSID", volume_proof=_truthy("encrypted")),
    DriverRule(("driver.longhorn.io",), f'encrypted: "true" and {_STAGE_SECRET}',
        _all(_truthy("encrypted"), _matches(_STAGE_SECRET, r".+")), volume_proof=_truthy("encrypted")),
    DriverRule(("pxd.portworx.com", "kubernetes.io/portworx-volume"), 'secure: "true"', _exactly("secure", "true")),
    DriverRule((_LINODE,), f'{_LINODE}/luks-encrypted: "true"',
        _any(_exactly(f"{_LINODE}/encrypted", "true"),
             _all(_exactly(f"{_LINODE}/luks-encrypted", "true"), _matches(_STAGE_SECRET, r".+")))),
    DriverRule(("csi.scaleway.com",), 'encrypted: "true"', _truthy("encrypted"), volume_proof=_truthy("encrypted")),
    DriverRule(("csi.cloudscale.ch",), f'csi.cloudscale.ch/luks-encrypted: "true" and {_STAGE_SECRET}',
        _all(_exactly("csi.cloudscale.ch/luks-encrypted", "true"), _matches(_STAGE_SECRET, r".+"))),
    DriverRule(("storage.csi.upcloud.com",), "encryption: data-at-rest", _exactly("encryption", "data-at-rest")),
    DriverRule(("vpc.block.csi.ibm.io",), 'encrypted: "true" and encryptionKey: <CRN>',
        _all(_exactly("encrypted", "true"), _matches("encryptionKey", r"crn:.+")), key="encryptionKey",
        otherwise=Level.PROVIDER_DEFAULT),
    DriverRule(("blockvolume.csi.oraclecloud.com",), "kms-key-id: <OCID>", _matches("kms-key-id", r"ocid1\.key\..+"),
        key="kms-key-id", otherwise=Level.PROVIDER_DEFAULT),
    DriverRule(("dobs.csi.digitalocean.com",), otherwise=Level.PROVIDER_DEFAULT),
    DriverRule(
        ("csi.trident.netapp.io", "csi.vsphere.vmware.com", "kubernetes.io/vsphere-volume", "csi.hetzner.cloud",
         "cinder.csi.openstack.org", "kubernetes.io/cinder", *_LOCAL)),
    DriverRule((".openebs.io",), suffix=True),
    DriverRule(("cephfs.csi.ceph.com",), "a block storage class (a shared file system cannot hold the store)",
        declarable=False, suffix=True),
    DriverRule(("efs.csi.aws.com", "file.csi.azure.com", "nfs.csi.k8s.io", "smb.csi.k8s.io"),
        "a block storage class (a shared file system cannot hold the store)", declarable=False),
)  # fmt: skip


def find_row(provisioner: str) -> DriverRule | None:
    """The row of a provisioner, exact names before suffixes (Rook prefixes the driver with its namespace)."""
    exact = (row for row in ROWS if not row.suffix and provisioner in row.names)
    suffixed = (
        row for row in ROWS if row.suffix
        for name in row.names if provisioner == name or provisioner.endswith("." + name.lstrip("."))
    )  # fmt: skip
    return next(exact, None) or next(suffixed, None)


def directory_driver(provisioned_by: str) -> str:
    """The driver of a volume on a node's directory or disk (`hostPath`, `local`), by its provisioner.

    Such a volume names no driver. Only provisioners that create nothing else are accepted. They can be declared but
    never proven, so the annotation raises no level.
    """
    if provisioned_by.startswith(_STATIC_PROVISIONER):
        return _NO_PROVISIONER
    return provisioned_by if provisioned_by in _DIRECTORIES else ""


def _holds(row: DriverRule, proof: Proof | None, parameters: Mapping[str, str]) -> bool:
    if proof is None:
        return False
    if not row.folded_keys:
        return proof(parameters)
    folded: dict[str, str] = {}
    for key, value in parameters.items():
        if folded.setdefault(key.lower(), value) != value:  # two spellings that disagree prove nothing
            return False
    return proof(folded)


def key_name(storage_class: StorageClass) -> str:
    """Which key a class encrypts with, as its parameters name it; empty where they name none."""
    row = find_row(storage_class.provisioner)
    if row is None or not row.key:
        return ""
    desired = row.key.lower() if row.folded_keys else row.key
    for name, value in storage_class.parameters.items():
        if (name.lower() if row.folded_keys else name) == desired:
            return value
    return ""


def judge_class(storage_class: StorageClass, policy: Level) -> Judgement:
    """The class check: the level that this class reaches, or NONE with the fix when that is below `policy`.

    `policy` is the stricter of the store's and the cluster's own minimum; NONE as a policy is refused (ValueError).
    """
    if policy is Level.NONE:
        raise ValueError("policy must be DECLARED, PROVIDER_DEFAULT or PROVEN")
    where = f"class {storage_class.name} ({storage_class.provisioner})"
    row = find_row(storage_class.provisioner)
    if row is None:
        return Judgement(
            Level.NONE, "UnknownProvisioner",
            f"{where} is not in the table of drivers and counts as unencrypted; choose a class of a listed driver",
        )  # fmt: skip
    if not row.declarable:
        return Judgement(Level.NONE, "NotBlockStorage", f"{where} is refused; choose {row.fix}")
    evidence = storage_class.annotations.get(EVIDENCE_KEY, "").strip()
    declared = storage_class.annotations.get(DECLARED_KEY) == "declared" and len(evidence) >= MIN_EVIDENCE
    level = Level.PROVEN if _holds(row, row.proof, storage_class.parameters) else row.otherwise
    if level is Level.NONE and declared:
        level = Level.DECLARED
    if level is Level.NONE or level < policy:
        return Judgement(
            Level.NONE, "ClassNotEncrypted",
            f"{where} reaches {level.label} and {policy.label} is required; {_remedy(row, level, policy)}",
        )  # fmt: skip
    return Judgement(level, level.name, f"{where} reaches {level.label}")


def _remedy(row: DriverRule, level: Level, policy: Level) -> str:
    """What lets the store have a class that reaches `level` only, as a sentence."""
    if row.proof:
        return (
            f"it needs {row.fix}: create such a class and set spec.storage.className to it "
            "(possible until a claim exists)"
        )
    best = max(row.otherwise, Level.DECLARED)
    needs = []
    if level < best:
        needs.append(
            f"it needs the annotations {DECLARED_KEY}: declared, and {EVIDENCE_KEY} with a sentence of at least "
            f"{MIN_EVIDENCE} characters that says what encrypts its volumes"
        )
    if best < policy:
        needs.append(
            f"no class of this driver reaches more than {best.label}: choose another driver's class, or set "
            f"spec.storage.encryption.policy: {best.label}, if the operator's --min-encryption allows it"
        )
    return "; ".join(needs)


def judge_volume(volume: Volume, recorded: Recorded, current: StorageClass | None, claim_uid: str) -> Judgement:
    """The volume check: only a volume that the judged class created for the store's claim unlocks the pod.

    `current` is the present class of the recorded name (None: deleted). Nothing here raises the recorded level.
    """
    row = find_row(current.provisioner) if current else None
    if recorded.level is Level.NONE:
        return Judgement(Level.NONE, "ClassNotJudged", "no class was judged before this claim was created")
    if not claim_uid or volume.claim_uid != claim_uid:
        return Judgement(Level.NONE, "ForeignVolume", f"volume {volume.name} is bound to another claim")
    if volume.class_name != recorded.class_name:
        return Judgement(Level.NONE, "ClassDiffers", f"volume {volume.name} is of class {volume.class_name!r}")
    if current is None or current.name != recorded.class_name or current.uid != recorded.class_uid or row is None:
        return Judgement(
            Level.NONE, "ClassReplaced",
            f"class {recorded.class_name} is no longer the one that was judged; the volume stays locked",
        )  # fmt: skip
    if not volume.provisioned_by:
        return Judgement(Level.NONE, "StaticVolume", f"volume {volume.name} was made by hand and proves nothing")
    if find_row(volume.driver) is not row:
        return Judgement(Level.NONE, "DriverDiffers", f"volume {volume.name} is of driver {volume.driver!r}")
    if recorded.level is Level.PROVEN and row.volume_proof and not _holds(row, row.volume_proof, volume.attributes):
        return Judgement(Level.NONE, "VolumeNotEncrypted", f"volume {volume.name} does not say that it is encrypted")
    return Judgement(recorded.level, recorded.level.name, f"volume {volume.name} reaches {recorded.level.label}")
