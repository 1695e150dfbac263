"""HTTP headers and gRPC metadata of a push and its answer."""

from typing import Final

THRESHOLD: Final = "X-Ingero-Threshold"
"""Answer: score below which a node counts as a straggler, six decimals, 0.1 to 0.99. Absent without a quorum."""

QUORUM_MET: Final = "X-Ingero-Quorum-Met"
"""Answer: `true`; this header and the threshold are sent together or not at all."""

VERDICT: Final = "X-Ingero-Verdict"
"""Answer: Fleet's verdict on the pushing node, see `ingero_contract.verdicts`."""

CLUSTER: Final = "ingero.cluster.id"
"""Request: cluster id, for senders that do not use the query parameter."""

GRPC_THRESHOLD: Final = "ingero-threshold"
"""gRPC answer metadata twin of `X-Ingero-Threshold`."""

GRPC_QUORUM_MET: Final = "ingero-quorum-met"
"""gRPC answer metadata twin of `X-Ingero-Quorum-Met`."""

GRPC_VERDICT: Final = "ingero-verdict"
"""gRPC answer metadata twin of `X-Ingero-Verdict`."""
