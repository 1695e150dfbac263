"""Errors of a resource as values; a condition shows each one and how to fix it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ReconcileError:
    """One error. A stalling error stays until a user changes something; other errors are retried."""

    reason: str
    message: str
    stalls: bool = True


def image_not_allowed(field: str, image: str) -> ReconcileError:
    """A resource asks for an image that the operator may not run."""
    return ReconcileError(
        "ImageNotAllowed",
        f"{field}: {image} is in no repository that the operator allows; take another, or have the operator started "
        "with --allowed-images (workloads stay as they are)",
    )


def most_important(errors: list[ReconcileError]) -> ReconcileError | None:
    """The error to show: stalling errors first, otherwise in the order in which they occurred."""
    return next((item for item in errors if item.stalls), errors[0] if errors else None)
