"""The gate before the bucket of shared tables: decides whether events may be sealed into it. Pure.

In doubt it denies. The API server knows nothing about a bucket, so its encryption can be declared and not be proven.
"""

from typing import Final

from ingero_operator.api.shared_tables import Vouched
from ingero_operator.api.v1alpha1 import EchoStoreSpec, Policy
from ingero_operator.conditions import Condition, no, yes

TABLE_ENCRYPTED: Final = "TableEncrypted"


def judge_table(spec: EchoStoreSpec, least: Policy) -> Condition | None:
    """Whether events may be sealed into the tables of a spec; `None` where it has none. `least`: the minimum of the
    whole cluster."""
    if spec.table is None:
        return None
    if spec.table.encryption is not Vouched.DECLARED:
        message = (
            f"nothing is sealed into {spec.table.warehouse}: the operator cannot see whether it is encrypted; if it "
            "is, and the disks that readers cache its files on, set spec.table.encryption: Declared"
        )
        return no(TABLE_ENCRYPTED, "EncryptionNotDeclared", message)
    if least is not Policy.DECLARED:
        message = (
            f"nothing is sealed into {spec.table.warehouse}: encryption of a bucket can only be declared, and the "
            f"operator runs with --min-encryption {least}; lower that, or remove spec.table"
        )
        return no(TABLE_ENCRYPTED, "DeclarationNotEnough", message)
    return yes(TABLE_ENCRYPTED, "Declared", f"the encryption of {spec.table.warehouse} is declared")
