"""Names in the Kubernetes API."""

from typing import Final

GROUP: Final = "ingero.io"
"""API group of the custom resources."""

VERSION: Final = "v1alpha1"
"""Stored version of the custom resources."""

STRAGGLER_TAINT: Final = "ingero.io/straggler"
"""Key of the taint and of the evidence annotation that comes with it."""

OWNER_LABEL: Final = "ingero.io/owner"
"""Label on every child: name of the custom resource that it belongs to."""

TAINT_FINALIZER: Final = "ingero.io/taints"
"""Held only while a FleetCluster has taints on nodes."""
