"""Names in the Kubernetes API."""

from typing import Final

GROUP: Final = "ingero.io"
"""API group of the custom resources."""

VERSION: Final = "v1alpha1"
"""Stored version of the custom resources."""

STRAGGLER_TAINT: Final = "ingero.io/straggler"
"""Key of the taint and of the evidence annotation that comes with it."""

STRAGGLER_CONDITION: Final = "ingero.io/Straggler"
"""Type of the condition on a watched node that says whether it straggles."""

CONDITION_MANAGER: Final = "ingero-operator-condition"
"""Field manager of that condition, so that applying nothing removes it."""

OWNER_LABEL: Final = "ingero.io/owner"
"""Label on every child: name of the custom resource that it belongs to."""

EXCLUDE_LABEL: Final = "ingero.io/exclude"
"""Label on a node that the operator must leave alone."""

SPEC_HASH: Final = "ingero.io/spec-hash"
"""Annotation on every child: digest of what the operator rendered."""

PROOF_LABEL: Final = "ingero.io/volume-proof"
"""Label of the ConfigMap whose existence lets a store start."""

TAINT_FINALIZER: Final = "ingero.io/taints"
"""Finalizer that a FleetCluster carries only while nodes may have its taints or conditions."""

MANAGER: Final = "ingero-operator"
"""Field manager of everything that the operator applies, and value of the managed-by label."""
