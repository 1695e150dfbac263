"""What the types of every version share: field kinds that a structural schema can express."""

import functools
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic.alias_generators import to_camel

from ingero_kit.settings import parse_duration

NAME_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
_DNS_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_DNS_NAME = rf"{_DNS_LABEL}(\.{_DNS_LABEL})*"
OBJECT_PATTERN = rf"^{_DNS_NAME}$"
LABEL_KEY_PATTERN = rf"^({_DNS_NAME}/)?[A-Za-z0-9]([A-Za-z0-9._-]{{0,61}}[A-Za-z0-9])?$"
DATA_KEY_PATTERN = r"^\.?[A-Za-z0-9_-][A-Za-z0-9._-]*$"
"""Keys of Secrets and ConfigMaps that can be a file's name: neither `.` nor anything that begins with two dots."""
DURATION_PATTERN = r"^([1-9][0-9]{0,5}(ms|s|m|h)|[1-9][0-9]{0,3}d)+$"
INTERVAL_PATTERN = r"^[1-9][0-9]{0,3}(s|m)$"
QUANTITY_PATTERN = r"^[0-9]{1,12}(\.[0-9]{1,3})?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
LEAST_MEMORY = "32Mi"


class Part(BaseModel):
    """Base of every part of a custom resource. Fields that a newer version added are left alone when read."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True, use_attribute_docstrings=True
    )


def rules(*items: tuple[str, str, str]) -> ConfigDict:
    """CEL rules for the schema of a part: (rule, message, field path or nothing)."""
    found: list[JsonValue] = [
        {"rule": rule, "message": message, **({"fieldPath": path} if path else {})} for rule, message, path in items
    ]
    return ConfigDict(json_schema_extra={"x-kubernetes-validations": found})


Text = Annotated[str, Field(max_length=253)]
Label = Annotated[str, Field(max_length=63, pattern=r"^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?$")]
LabelKey = Annotated[str, Field(min_length=1, max_length=253, pattern=LABEL_KEY_PATTERN)]
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=OBJECT_PATTERN)]
Namespace = Annotated[str, Field(min_length=1, max_length=63, pattern=rf"^{_DNS_LABEL}$")]
Span = Annotated[str, Field(max_length=16, pattern=DURATION_PATTERN)]
"""A duration as the user wrote it; `seconds` reads it. No more than three centuries fit in: calendars end."""
Interval = Annotated[str, Field(max_length=8, pattern=INTERVAL_PATTERN)]
"""A whole number of seconds or minutes."""
Quantity = Annotated[str, Field(max_length=20, pattern=QUANTITY_PATTERN)]
Image = Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$")]
Context = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9._:,-]+$")]
"""A part of an SELinux context."""
Percent = Annotated[int, Field(ge=0, le=100)]


@functools.lru_cache(1024)
def seconds(span: str) -> float:
    """Seconds of a duration that passed the schema."""
    return float(str(parse_duration(span)))


class SecretKey(Part):
    """One key of a Secret in the resource's own namespace."""

    name: ObjectName
    """Name of the Secret."""
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=DATA_KEY_PATTERN)] = "token"
    """Key in it."""


class ConfigMapKey(Part):
    """One key of a ConfigMap in the resource's own namespace."""

    name: ObjectName
    """Name of the ConfigMap."""
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=DATA_KEY_PATTERN)]
    """Key in it."""


class Resources(Part):
    """What a container asks for. There is no CPU limit: it would slow down the very thing that measures."""

    cpu: Quantity | None = None
    """CPU request."""
    memory: Quantity | None = None
    """Memory request and limit."""

    model_config = rules(
        (
            "!has(self.memory) || (isQuantity(self.memory) && "
            f"quantity(self.memory).compareTo(quantity('{LEAST_MEMORY}')) >= 0)",
            f"memory must be at least {LEAST_MEMORY}: no component starts with less",
            ".memory",
        )
    )


class Toleration(Part):
    """A toleration as in a pod."""

    key: LabelKey | None = None
    """Key of the taint; every taint without it."""
    operator: Annotated[str, Field(json_schema_extra={"enum": ["Exists", "Equal"]})] | None = None
    """Exists or Equal."""
    value: Label | None = None
    """Value of the taint."""
    effect: (
        Annotated[str, Field(json_schema_extra={"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]})] | None
    ) = None
    """Effect; every one without it."""

    model_config = rules(
        (
            "has(self.key) || (has(self.operator) && self.operator == 'Exists')",
            "a toleration without a key needs operator: Exists",
            "",
        ),
        (
            "!has(self.value) || self.value == '' || !has(self.operator) || self.operator != 'Exists'",
            "a toleration with operator: Exists has no value",
            ".value",
        ),
    )


class LocalName(Part):
    """An object in the resource's own namespace."""

    name: ObjectName
    """Its name."""


class SeLinuxOptions(Part):
    """An SELinux context as in a pod; what is left out is the runtime's choice."""

    user: Context | None = None
    """User."""
    role: Context | None = None
    """Role."""
    type: Context | None = None
    """Type, such as spc_t."""
    level: Context | None = None
    """Level, such as s0:c1,c2."""


class AppArmorProfile(Part):
    """An AppArmor profile as in a pod."""

    type: Annotated[str, Field(json_schema_extra={"enum": ["RuntimeDefault", "Unconfined", "Localhost"]})]
    """RuntimeDefault, Unconfined or Localhost."""
    localhost_profile: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Name of a profile that the nodes have loaded, for Localhost."""

    model_config = rules(
        (
            "has(self.localhostProfile) == (self.type == 'Localhost')",
            "appArmorProfile.localhostProfile goes with the type Localhost, and with no other",
            "",
        )
    )


class Confinement(Part):
    """What SELinux and AppArmor make of a pod."""

    se_linux_options: SeLinuxOptions | None = None
    """SELinux context; the runtime's choice without it."""
    app_armor_profile: AppArmorProfile | None = None
    """AppArmor profile; the runtime's choice without it."""


PullSecrets = Annotated[tuple[LocalName, ...], Field(max_length=8)]
Labels = Annotated[dict[LabelKey, Label], Field(max_length=16)]


class Peer(Part):
    """Pods that may reach a listener."""

    namespace: Namespace | None = None
    """Their namespace; the resource's own without it."""
    labels: Annotated[dict[LabelKey, Label], Field(min_length=1, max_length=16)]
    """Their labels."""
