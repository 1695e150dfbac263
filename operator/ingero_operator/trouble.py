"""What went wrong with a resource as a whole: facts that a condition names with their cure."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Trouble:
    """One obstacle. A stalling one stays until somebody changes something; others are tried again."""

    reason: str
    message: str
    stalls: bool = True


def image_not_allowed(field: str, image: str) -> Trouble:
    """A resource asks for an image that the operator may not run."""
    return Trouble(
        "ImageNotAllowed",
        f"{field}: {image} is in no repository that the operator allows; take another, or have the operator started "
        "with --allowed-images (workloads stay as they are)",
    )


def first(troubles: list[Trouble]) -> Trouble | None:
    """The one to show: stalling ones first, otherwise in the order in which they were met."""
    return next((item for item in troubles if item.stalls), troubles[0] if troubles else None)
